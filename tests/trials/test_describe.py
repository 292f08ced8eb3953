"""The numbers of a description, against worked values, a dumb oracle, and what was measured of public traces."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trials.describe import (
    BLOCK_SIZES,
    Description,
    Lengths,
    describe,
    ideal_hits,
    nearest_rank,
    tail_slack_percent,
)
from trials.fingerprint import trace_hash
from trials.formats import reader
from trials.trace import Ragged, Trace, TraceMeta, make_trace

CONV = "azure2023/AzureLLMInferenceTrace_conv.csv"
CODE = "azure2023/AzureLLMInferenceTrace_code.csv"


def made(arrivals_s: list[float], prompts: list[int], ids: list[list[int]] | None = None, per: int = 0) -> Trace:
    return make_trace(
        np.array([round(a * 1e9) for a in arrivals_s], np.int64),
        np.array(prompts, np.int64),
        np.full(len(prompts), 10, np.int64),
        Ragged.of(ids) if ids is not None else None,
        TraceMeta(tokens_per_id=per, name="made up"),
    )


def _slack(description: Description) -> list[float]:
    return [part.percent for part in description.static_tail_slack]


def _row(lengths: Lengths) -> list[int]:
    return [lengths.min, lengths.p1, lengths.p10, lengths.p50, lengths.p90, lengths.p99, lengths.max]


# --- worked values


def test_rate_burstiness_and_minutes_of_a_small_trace() -> None:
    arrivals = describe(made([5, 6, 8, 64, 65.5, 66], [3] * 6)).arrivals
    assert arrivals.span_s == 61
    assert arrivals.rate_rps == pytest.approx(6 / 61)
    gaps = [1, 2, 56, 1.5, 0.5]
    assert arrivals.gap_cv == pytest.approx(np.std(gaps) / np.mean(gaps))
    assert arrivals.longest_gap_s == 56
    assert arrivals.busiest_minute == 4  # minutes count from the first arrival: 5, 6, 8, 64 and then 65.5, 66
    assert arrivals.distinct_stamps == 6


def test_a_trace_without_a_span_has_no_rate() -> None:
    arrivals = describe(made([0, 0, 0], [3, 4, 5])).arrivals
    assert (arrivals.rate_rps, arrivals.gap_cv, arrivals.mean_minute) == (None, None, None)
    assert arrivals.busiest_minute == 3
    assert describe(made([0], [3])).arrivals.longest_gap_s == 0


@given(
    values=st.lists(st.integers(1, 1000), min_size=1, max_size=300),
    percent=st.sampled_from([1, 10, 50, 90, 99, 100]),
)
def test_nearest_rank_is_the_smallest_value_that_so_many_do_not_exceed(values: list[int], percent: int) -> None:
    found = nearest_rank(np.sort(np.array(values)), percent)
    enough = [v for v in values if 100 * sum(w <= v for w in values) >= percent * len(values)]
    assert found == min(enough)


@pytest.mark.parametrize(("length", "block_size", "slack"), [(15, 16, 1), (16, 16, 0), (17, 16, 15), (32, 16, 0),
                                                              (17, 1, 0), (17, 32, 15), (17, 4, 3)])  # fmt: skip
def test_slack_is_the_unused_part_of_the_last_block(length: int, block_size: int, slack: int) -> None:
    assert tail_slack_percent(np.array([length]), block_size) == pytest.approx(100 * slack / length)


def test_slack_is_taken_at_final_length() -> None:
    description = describe(made([0, 1], [5, 7]))  # 15 and 17 tokens with their 10 output tokens
    assert [part.block_size for part in description.static_tail_slack] == list(BLOCK_SIZES)
    assert _slack(description)[4] == pytest.approx(100 * (1 + 15) / 32)


def test_hits_are_leading_runs_of_full_ids() -> None:
    trace = made([0, 1, 2, 3, 4], [8, 8, 10, 12, 12], [[1, 2], [1, 2], [1, 2, 3], [9, 2, 3], [1, 2, 3]], per=4)
    # row 2 holds id 3 in part (tokens 8, 9): neither a hit nor remembered; row 3's 2 and 3 stand under 9, not 1
    assert ideal_hits(trace).tolist() == [0, 8, 8, 0, 8]
    sharing = describe(trace).sharing
    assert sharing.hit_tokens == 24
    assert sharing.ideal_hit_ratio == pytest.approx(24 / 50)
    assert sharing.tokens_per_id == 4
    assert (sharing.share_of_rows_with_ids, sharing.share_of_rows_that_hit) == (1.0, 0.6)


def test_a_partial_last_id_is_no_hit_even_where_its_row_comes_again() -> None:
    trace = made([0, 1], [6, 6], [[1, 2], [1, 2]], per=4)
    assert ideal_hits(trace).tolist() == [0, 4]


@given(
    rows=st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 3)), min_size=1, max_size=12)
)
def test_hits_equal_those_of_an_oracle_that_remembers_whole_openings(rows: list[tuple[list[int], int]]) -> None:
    prompts = [max(1, 4 * len(ids) - cut) for ids, cut in rows]
    trace = made([0] * len(rows), prompts, [ids for ids, _ in rows], per=4)
    seen: set[tuple[int, ...]] = set()
    expected = []
    for (ids, _), prompt in zip(rows, prompts, strict=True):
        openings = [tuple(ids[:n]) for n in range(1, min(len(ids), prompt // 4) + 1)]
        run = 0
        while run < len(openings) and openings[run] in seen:
            run += 1
        expected.append(4 * run)
        seen.update(openings)
    assert ideal_hits(trace).tolist() == expected


def test_without_ids_sharing_is_unknown_not_absent() -> None:
    sharing = describe(made([0, 1], [5, 5])).sharing
    assert (sharing.tokens_per_id, sharing.hit_tokens, sharing.share_of_rows_with_ids) == (0, 0, 0.0)


def test_a_description_is_frozen_carries_the_hash_and_survives_json() -> None:
    trace = made([0, 1, 2], [5, 6, 7], [[1], [1], []], per=4)
    description = describe(trace)
    assert description.trace_hash == trace_hash(trace)
    assert Description.model_validate_json(description.model_dump_json()) == description
    with pytest.raises(ValidationError, match="frozen"):
        description.rows = 3  # type: ignore[misc]


# --- public traces, as measured


@pytest.mark.parametrize(
    ("kind", "file", "rows", "prompt", "output", "means"),
    [
        ("azure", CODE, 8_819, [3, 17, 147, 1469, 5194, 7436, 7437], [6, 6, 7, 13, 55, 252, 1899], (2048, 28)),
        ("azure", CONV, 19366,
         [2, 29, 207, 1020, 2735, 4142, 14050], [7, 16, 54, 129, 424, 601, 1000], (1155, 211)),
        ("lengths", "sharegpt_lengths/qwen3_32b_300.jsonl", 300, [257, 257, 355, 728, 1445, 2767, 4570],
         [512, 513, 533, 635, 785, 1000, 1224], (862, 665)),
    ],
)  # fmt: skip
def test_lengths_of_public_traces(
    real_traces: Path, kind: str, file: str, rows: int, prompt: list[int], output: list[int], means: tuple[int, int]
) -> None:
    description = describe(reader(kind)([real_traces / file]))
    assert description.rows == rows
    assert _row(description.prompt) == prompt
    assert _row(description.output) == output
    assert (round(description.prompt.mean), round(description.output.mean)) == means


@pytest.mark.parametrize(
    ("file", "span_s", "rate", "cv", "busiest", "mean"),
    [(CODE, 3_436, 2.57, 13.15, 632, 154), (CONV, 3_502, 5.53, 1.09, 507, 332)],
)
def test_arrivals_of_public_traces(
    real_traces: Path, file: str, span_s: int, rate: float, cv: float, busiest: int, mean: int
) -> None:
    arrivals = describe(reader("azure")([real_traces / file])).arrivals
    assert round(arrivals.span_s) == span_s
    assert arrivals.rate_rps == pytest.approx(rate, abs=0.005)
    assert arrivals.gap_cv == pytest.approx(cv, abs=0.005)
    assert arrivals.busiest_minute == busiest
    assert arrivals.mean_minute == pytest.approx(mean, abs=0.5)


@pytest.mark.parametrize(
    ("kind", "file", "table"),
    [
        ("azure", CODE, [0, 0.024, 0.072, 0.169, 0.368, 0.735, 1.54, 3.13, 6.48]),
        ("azure", CONV, [0, 0.037, 0.109, 0.256, 0.547, 1.13, 2.26, 4.58, 8.72]),
        (
            "lengths",
            "sharegpt_lengths/qwen3_32b_300.jsonl",
            [0, 0.032, 0.097, 0.218, 0.496, 1.05, 2.15, 4.18, 8.62],
        ),
    ],
)
def test_slack_of_public_traces(real_traces: Path, kind: str, file: str, table: list[float]) -> None:
    found = _slack(describe(reader(kind)([real_traces / file])))
    for value, expected in zip(found, table, strict=True):
        assert value == pytest.approx(expected, abs=0.005 if expected > 1 else 0.0005)


def test_sharing_of_a_public_trace_equals_a_recount_by_openings(real_traces: Path) -> None:
    trace = reader("mooncake")([real_traces / "mooncake/conversation_head5000.jsonl"])
    seen: set[tuple[int, ...]] = set()
    hit = 0
    for row in range(1_000):
        ids = tuple(trace.prefix_ids.row(row)[: trace.num_prompt_tokens[row] // 512].tolist())
        openings = [ids[:n] for n in range(1, len(ids) + 1)]
        hit += 512 * next((n for n, opening in enumerate(openings) if opening not in seen), len(openings))
        seen.update(openings)
    assert int(ideal_hits(trace)[:1_000].sum()) == hit
    assert describe(trace).sharing.ideal_hit_ratio == pytest.approx(0.3392, abs=0.0001)
