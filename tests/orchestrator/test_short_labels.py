"""Labels of wide spaces: short, no two alike, and the same in every sentence of an outcome."""

import pytest

from orchestrator.short_labels import short_labels, shortened
from search_spaces.outcome import CandidateOutcome, NearestMiss, Outcome, VerdictRow

USUAL = "block_size=16 max_num_seqs=256 queue=fcfs victim=largest"
OTHER = "block_size=1 max_num_seqs=256 queue=fcfs"  # the beginning of the next
WIDER = "block_size=1 max_num_seqs=256 queue=fcfs victim=fewest_outputs"


def candidate(label: str, in_space: bool = True) -> CandidateOutcome:
    return CandidateOutcome(label=label, in_space=in_space, is_default=label == USUAL, block_size=16, policy={},
                            trials=(), repeats=(), values=(), value=None, feasible=True)  # fmt: skip


def outcome(*labels: str) -> Outcome:
    miss = NearestMiss(label=WIDER, trial=0, clause="ttft:p99<1s", observed=None, limit=1.0, over=None)
    verdict = VerdictRow(
        option=f"{USUAL} (vendor_default)", control=True, signal="", verdict="ship", reason=f"{OTHER}, behind"
    )
    return Outcome(
        kind="flat", sentence=f"keep {USUAL}; tied with {OTHER}, {WIDER}", objective="x", winner=USUAL,
        tied=(OTHER, WIDER), nearest_miss=miss, min_gain=0.02, num_repeats=1, noise="", verdicts=(verdict,),
        candidates=tuple(map(candidate, labels)),
    )  # fmt: skip


def test_a_label_keeps_its_block_size_and_what_the_default_has_otherwise() -> None:
    found = short_labels([candidate(USUAL), candidate(OTHER), candidate(WIDER), candidate("contiguous", False)])
    assert found == {USUAL: "block_size=16", OTHER: "block_size=1", WIDER: "block_size=1 victim=fewest_outputs"}


def test_every_field_and_sentence_says_the_short_form_and_a_label_inside_another_is_not_it() -> None:
    short = shortened(whole := outcome(USUAL, OTHER, WIDER), short_labels(whole.candidates))
    assert short.sentence == "keep block_size=16; tied with block_size=1, block_size=1 victim=fewest_outputs"
    assert short.winner == "block_size=16"
    assert short.tied == ("block_size=1", "block_size=1 victim=fewest_outputs")
    assert short.nearest_miss is not None
    assert short.nearest_miss.label == "block_size=1 victim=fewest_outputs"
    assert (short.verdicts[0].option, short.verdicts[0].reason) == (
        "block_size=16 (vendor_default)",
        "block_size=1, behind",
    )
    assert [c.label for c in short.candidates] == [
        "block_size=16",
        "block_size=1",
        "block_size=1 victim=fewest_outputs",
    ]


@pytest.mark.parametrize("labels", [
    ("block_size=16", "block_size=32"),  # short already
    (USUAL, OTHER, f"{OTHER} max_num_seqs=256"),  # two would be the same
    ("block_size=4 a=1 b=2",),  # no default to differ from
])  # fmt: skip
def test_labels_stay_as_they_are_where_they_are_short_or_would_not_be_told_apart(labels: tuple[str, ...]) -> None:
    assert short_labels(list(map(candidate, labels))) == {}
