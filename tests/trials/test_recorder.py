"""What a replay writes down: every token's time, also where several come at once."""

import numpy as np

from tests.builders import build_trace
from tests.contracts import misbehaving as m
from trials.latency import fates, gaps, order_runs
from trials.load import offer
from trials.metrics import measure
from trials.replay import replay
from trials.slo import parse_slo
from trials.spec import Load, TraceSpec


class TwoAtOnce(m.Honest):
    """Row 0 gets its third and fourth token in one step, and ends a step earlier for it."""

    def extra(self) -> list[tuple[int, int]]:
        found = [s for s in self.running if s.work.row == 0 and s.sampled == 3]
        for served in found:
            served.sampled += 1
        return [(s.work.row, 2) for s in found]


def test_several_tokens_of_one_step_are_one_gap_and_zeros_and_all_are_delivered() -> None:
    trace = build_trace([16, 16], [6, 6])
    engine = TwoAtOnce(m.Asked())
    done = replay(engine, trace, offer(trace, TraceSpec(path="none"), Load(rate_scale=1.0), "cold"))
    assert done.void_because == []
    assert done.requests.num_delivered.tolist() == [6, 6]
    runs = order_runs(done)
    for row, expected in ((0, [0, *[m.STEP_NS] * 4]), (1, [m.STEP_NS] * 5)):
        lengths, times = gaps(done, runs, np.arange(2) == row)
        assert sorted(np.repeat(lengths, times).tolist()) == expected
    assert done.requests.last_token_ns.tolist() == [5 * m.STEP_NS, 6 * m.STEP_NS]
    assert fates(done.requests).served.all()
    assert measure(done, engine.facts, parse_slo("ttft:p99<1s"), trace).metrics.itl_ms.n == 10
