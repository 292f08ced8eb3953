"""The ring against a list that is walked: who opens a block, who fills one, who is done, and the sums."""

import random

import pytest

from trials.decode_ring import DecodeRing
from trials.plan import Run


def run_of(row: int, prompt: int = 10, output: int = 5, **fields: int) -> Run:
    """A request that has just sampled its first token; `fields` as in Run."""
    run = Run(row, prompt, output, sampled=1, computed=prompt, admission=row)
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def walked(runs: list[Run], step: int, size: int) -> dict[str, object]:
    """What a walk over all decoding runs says of one step, in running order."""
    live = sorted((r for r in runs if r.began >= 0), key=lambda r: r.admission)
    return {
        "crossing": [r.row for r in live if r.computed_at(step) % size == 0],
        "filling": [r.row for r in live if (r.computed_at(step) + 1) % size == 0 and len(r.keys) > r.num_indexed],
        "context": sum(r.computed_at(step) for r in live),
        "blocks": sum(-(-r.computed_at(step) // size) for r in live),
    }


def said(ring: DecodeRing, step: int) -> dict[str, object]:
    return {
        "crossing": list(ring.crossing(step) or {}), "filling": list(ring.filling(step) or {}),
        "context": ring.context, "blocks": ring.blocks,
    }  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 16])
@pytest.mark.parametrize("seed", range(25))
def test_ring_says_of_every_step_what_a_walk_over_all_sequences_says(seed: int, size: int) -> None:
    """Runs begin, are stopped, and begin again where they stood, in any order."""
    rng = random.Random(seed)
    ring, runs, stopped = DecodeRing(size), list[Run](), list[Run]()
    for step in range(120):
        if rng.random() < 0.4:
            run = run_of(len(runs), rng.randint(1, 30), rng.randint(2, 40))
            run.keys, run.num_indexed = [0] * rng.choice([0, 0, 1000]), run.computed // size
            runs.append(run)
            ring.begin(run, step)
        live = [r for r in runs if r.began >= 0]
        if live and rng.random() < 0.2:
            run = rng.choice(live)
            held, sampled = run.computed_at(step), run.sampled_at(step)
            ring.stop(run, step)
            assert (run.computed, run.sampled, run.began) == (held, sampled, -1)
            stopped.append(run)
        if stopped and rng.random() < 0.3:
            ring.begin(stopped.pop(rng.randrange(len(stopped))), step)
        expected = walked(runs, step, size)
        assert said(ring, step) == expected
        ring.blocks += len(expected["crossing"])  # type: ignore[arg-type]
        done = [r for r in runs if r.began >= 0 and r.sampled_at(step) + 1 == r.num_output_tokens]
        assert [r.row for r in ring.advance(step)] == sorted(r.row for r in done)
        for run in done:
            ring.stop(run, step + 1)
            assert run.sampled == run.num_output_tokens
    assert len(runs) > 20


def test_sequence_crosses_every_block_size_steps_and_only_then() -> None:
    ring = DecodeRing(4)
    ring.begin(run_of(0, prompt=6, output=50), 10)
    assert [step for step in range(10, 30) if ring.crossing(step)] == [12, 16, 20, 24, 28]


def test_block_size_1_crosses_in_every_step() -> None:
    ring = DecodeRing(1)
    ring.begin(run_of(0, output=9), 3)
    assert all(ring.crossing(step) for step in range(3, 11))


def test_run_that_has_nothing_left_to_index_is_not_asked_again() -> None:
    ring = DecodeRing(4)
    run = run_of(0, prompt=6, output=50)
    run.keys, run.num_indexed = [1, 2], 1
    ring.begin(run, 0)
    assert list(ring.filling(1) or {}) == [0]
    ring.filled_all(run)
    assert not ring.filling(1)
    assert not any(ring.filling(step) for step in range(2, 20))


def test_order_is_that_of_admission_although_one_stood_still_in_between() -> None:
    ring = DecodeRing(4)
    runs = [run_of(row, prompt=8, output=50) for row in range(3)]
    for run in runs:
        ring.begin(run, 0)
    ring.stop(runs[0], 0)
    ring.begin(runs[0], 0)
    assert list(ring.crossing(0) or {}) == [0, 1, 2]


def test_date_of_a_run_that_was_stopped_is_forgotten() -> None:
    """It delivers its last token later than it was to; the old date must not end it."""
    ring = DecodeRing(4)
    run = run_of(0, prompt=8, output=4)
    ring.begin(run, 0)  # its 2nd, 3rd and 4th token come in steps 0, 1, 2
    assert ring.advance(0) == []
    ring.stop(run, 1)
    assert ring.advance(1) == []
    ring.begin(run, 2)
    assert ring.advance(2) == []
    assert ring.advance(3) == [run]


def test_empty_ring_asks_for_nothing() -> None:
    ring = DecodeRing(16)
    assert (ring.crossing(0), ring.filling(0), ring.advance(0), ring.context, ring.blocks) == (None, None, [], 0, 0)
