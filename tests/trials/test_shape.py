"""The shape of a workload: what it keeps is what the trace has."""

import numpy as np
import pytest

from tests.builders import build_trace
from trials.describe import describe, ideal_hits
from trials.shape import shape_of
from trials.trace import STARTS, make_trace


def test_quantiles_are_lengths_that_occur_and_reach_from_least_to_most():
    trace = build_trace([7, 9, 400], [1, 2, 3], arrivals_ms=[0, 5, 9])
    shape = shape_of(trace)
    assert len(shape.prompt_quantiles) == len(shape.output_quantiles) == 101
    assert (shape.prompt_quantiles[0], shape.prompt_quantiles[50], shape.prompt_quantiles[100]) == (7, 9, 400)
    assert list(shape.prompt_quantiles) == sorted(shape.prompt_quantiles)
    assert shape.rate_rps == pytest.approx(3 / 0.009)


def test_shares_of_forks_turns_and_cancels_are_counted():
    trace = make_trace(
        np.array([0, 0, 10, 20]), np.full(4, 8), np.full(4, 2), parent=np.array([-1, 0, -1, -1]),
        inherited_tokens=np.array([0, 8, 0, 0]), starts=np.array([0, STARTS["fork"], 0, 0]),
        cancel_after_tokens=np.array([-1, -1, 1, -1]), cancel_after_ns=np.array([-1, -1, 5, 7]),
    )  # fmt: skip
    shape = shape_of(trace)
    assert (shape.fork_share, shape.turn_share, shape.cancel_share) == (0.25, 0.0, 0.5)


def test_hit_ratio_is_kept_by_rows_seen():
    ids = [[row // 3] for row in range(300)]
    trace = build_trace([16 + row for row in range(300)], [1] * 300, ids=ids)
    shape = shape_of(trace)
    assert [h.rows for h in shape.hits] == [64, 128, 256, 300]
    assert shape.hits[-1].ratio == describe(trace).sharing.ideal_hit_ratio
    assert shape.hits[0].ratio == ideal_hits(trace)[:64].sum() / trace.num_prompt_tokens[:64].sum()
    assert shape_of(build_trace([8], [1])).hits == ()
