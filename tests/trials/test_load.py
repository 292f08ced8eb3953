"""What a window, a warm-up and a load offer: the same requests in both phases, and nothing beside them."""

import numpy as np
import pytest

from tests.builders import build_trace
from trials.load import Offer, counted, offer, scale_of, window_of
from trials.spec import Load, TraceSpec, Window
from trials.trace import Trace, TraceError

S = 1_000_000_000


def every(ms: float, count: int, first_ms: float = 0.0) -> Trace:
    """`count` requests, one each `ms`, the first at `first_ms`."""
    return build_trace([10] * count, [3] * count, arrivals_ms=[first_ms + ms * k for k in range(count)])


def spec(start: int | None = None, duration: int = S, warmup: int = 0) -> TraceSpec:
    window = None if start is None else Window.model_validate({"start": f"{start}ns", "duration": f"{duration}ns"})
    return TraceSpec.model_validate({"path": "t", "window": window, "warmup": f"{warmup}ns"})


def both(trace: Trace, asked: TraceSpec, load: Load | None = None) -> tuple[Offer, Offer]:
    load = load or Load(rate_scale=1.0)
    return offer(trace, asked, load, "cold"), offer(trace, asked, load, "steady")


def counted_rows(offered: Offer) -> list[int]:
    return offered.rows[offered.counted > 0].tolist()


@pytest.mark.parametrize(("start", "duration", "warmup"), [(None, S, 2 * S), (0, 3 * S, S), (4 * S, 3 * S, 2 * S)])
def test_as_many_are_counted_as_are_offered(start: int | None, duration: int, warmup: int) -> None:
    trace, asked = every(300, 40), spec(start, duration, warmup)
    requests, (begin, end) = counted(trace, asked)
    assert requests == len(counted_rows(both(trace, asked)[0]))
    assert (begin, end) == tuple(ns / 1e9 for ns in window_of(trace, asked)[1:])


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(
    ("start", "duration", "warmup"),
    [(None, S, 0), (None, S, 2 * S), (0, 3 * S, S), (0, 3 * S, 0), (4 * S, 3 * S, 2 * S), (S, 4 * S, 2 * S)],
)
def test_cold_and_steady_count_the_same_requests(
    start: int | None, duration: int, warmup: int, scale: float
) -> None:
    cold, steady = both(every(100, 100, first_ms=777), spec(start, duration, warmup), Load(rate_scale=scale))
    assert counted_rows(cold) == counted_rows(steady)
    assert cold.num_warmup == 0
    window = [o.window_ns[1] - o.window_ns[0] for o in (cold, steady)]
    assert abs(window[0] - window[1]) <= 1  # rounded ends
    for offered in (cold, steady):
        inside = offered.counted > 0
        begin, finish = offered.window_ns
        assert (offered.due_ns[inside] >= begin).all()
        assert (offered.due_ns[inside] <= finish).all()
        assert (offered.due_ns[~inside] < begin).all()


def test_steady_replays_exactly_the_stretch_in_front_of_the_window() -> None:
    cold, steady = both(every(100, 100), spec(4 * S, 2 * S, warmup=S))
    assert cold.rows.tolist() == list(range(40, 60))
    assert steady.rows.tolist() == list(range(30, 60))
    assert steady.counted.tolist() == [0] * 10 + [1] * 20
    assert steady.window_ns == (S, 3 * S)
    assert cold.window_ns == (0, 2 * S)
    assert steady.due_ns[0] == 0


def test_where_the_window_starts_with_the_trace_its_first_warmup_is_the_stretch_in_both_phases() -> None:
    cold, steady = both(every(100, 100), spec(0, 3 * S, warmup=S))
    assert cold.rows.tolist() == list(range(10, 30))
    assert steady.rows.tolist() == list(range(30))
    assert counted_rows(cold) == counted_rows(steady) == list(range(10, 30))
    assert (cold.window_ns, steady.window_ns) == ((0, 2 * S), (S, 3 * S))


def test_window_that_starts_inside_the_warmup_gives_up_what_the_warmup_needs() -> None:
    assert window_of(every(100, 100), spec(S, 4 * S, warmup=2 * S)) == (0, 2 * S, 5 * S)


def test_whole_trace_includes_its_last_request_and_its_time_starts_with_the_first() -> None:
    cold, _ = both(every(100, 11, first_ms=5000), spec())
    assert cold.rows.tolist() == list(range(11))
    assert cold.window_ns == (0, S + 1)
    assert cold.due_ns[[0, -1]].tolist() == [0, S]


def test_window_ends_before_a_request_that_arrives_at_its_end() -> None:
    cold, _ = both(every(100, 30), spec(0, S))
    assert cold.rows.tolist() == list(range(10))


def test_rate_scale_divides_arrival_gaps_and_the_window_alike() -> None:
    _, steady = both(every(100, 100), spec(4 * S, 2 * S, warmup=S), Load(rate_scale=4.0))
    assert np.diff(steady.due_ns).tolist() == [25_000_000] * 29
    assert steady.window_ns == (S // 4, 3 * S // 4)


def test_rps_is_the_mean_arrival_rate_of_the_trace() -> None:
    trace = every(100, 101)  # 10 a second
    assert scale_of(trace, Load(rps=25.0)) == 2.5
    cold, _ = both(trace, spec(), Load(rps=25.0))
    assert cold.due_ns[-1] == 4 * S
    with pytest.raises(TraceError, match="use a concurrency load"):
        scale_of(build_trace([5, 5], [1, 1]), Load(rps=2.0))


def test_window_without_a_request_is_refused_with_what_there_is() -> None:
    with pytest.raises(TraceError, match=r"window 20s \.\. 21s .* covers 0s \.\. 9\.9s"):
        window_of(every(100, 100), spec(20 * S, S))
    with pytest.raises(TraceError, match=r"warm-up 60s"):
        window_of(every(100, 100), spec(0, 30 * S, warmup=60 * S))
    with pytest.raises(TraceError, match="no request"):
        window_of(every(100, 100), spec(None, warmup=60 * S))


@pytest.mark.parametrize("scale", [1.0, 2.0, 1e6])
def test_requests_that_all_arrive_at_once_get_a_window_that_lasts_until_they_have_ended(scale: float) -> None:
    """One request, or a burst without a window, spans no time: its window was 1 ns, which made any throughput a
    billion times too high, and at rate_scale 2 it was 0 ns, which ended the trial with a traceback."""
    for count in (1, 5):
        for offered in both(build_trace([4] * count, [2] * count), spec(), Load(rate_scale=scale)):
            assert offered.until_ended
            assert offered.window_ns[1] > offered.window_ns[0]


def test_window_of_time_is_kept_where_a_burst_is_asked_for_with_one() -> None:
    cold, _ = both(build_trace([4] * 5, [2] * 5), spec(0, S))
    assert not cold.until_ended
    assert cold.window_ns == (0, S)


def test_however_fast_the_load_a_window_has_a_length() -> None:
    cold, _ = both(every(0.001, 10), spec(), Load(rate_scale=1e6))
    assert cold.window_ns[1] > cold.window_ns[0]


def test_closed_load_has_no_window_of_its_own() -> None:
    cold, _ = both(every(100, 20), spec(), Load(concurrency=3))
    assert cold.until_ended
    assert cold.concurrency == 3


@pytest.mark.parametrize("scale", [1e-300, 1e-12])
def test_arrivals_that_would_last_for_ages_are_refused(scale: float) -> None:
    with np.errstate(all="raise"), pytest.raises(TraceError, match="raise the load"):
        offer(every(1000, 10), spec(), Load(rate_scale=scale), "cold")


def test_schedule_of_another_offer_is_refused() -> None:
    cold, steady = both(every(100, 100), spec(4 * S, 2 * S, warmup=S))
    steps = np.arange(len(cold.rows))
    assert cold.locked(steps).lock is not None
    assert cold.locked(steps).lock.met_step is steps
    with pytest.raises(TraceError, match="has 20 requests, 30 are offered"):
        steady.locked(steps)


def test_offers_are_the_same_only_where_requests_times_and_what_counts_agree() -> None:
    trace = every(100, 100)
    cold, steady = both(trace, spec(4 * S, 2 * S))
    assert cold.same_as(steady)
    warm = offer(trace, spec(4 * S, 2 * S, warmup=S), Load(rate_scale=1.0), "steady")
    assert not cold.same_as(warm)
    assert not cold.same_as(offer(trace, spec(4 * S, 2 * S), Load(rate_scale=2.0), "cold"))
    assert not cold.same_as(cold.locked(np.arange(20)))
    assert not cold.same_as(offer(every(100, 100), spec(4 * S, 2 * S + 1), Load(rate_scale=1.0), "cold"))
