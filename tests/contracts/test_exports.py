"""One suite over all formats that are written: what comes back is the same trace, or the losses say why not."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trials.content import Content
from trials.describe import ideal_hits
from trials.fingerprint import trace_hash
from trials.formats import FORMATS, WRITTEN, reader, writer
from trials.generate import generate, load_preset
from trials.overlay import Beams, Cancels, Forks, Overlay, overlaid
from trials.trace import NONE, Ragged, Trace, TraceError, TraceMeta, make_trace, validate
from trials.units import SpecError

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(params=WRITTEN)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def back(name: str, trace: Trace, folder: Path) -> tuple[Trace, set[str]]:
    """What comes back of a trace, and the columns that are said to be lost."""
    path = folder / "out"
    exported = writer(name)(trace, path)
    return reader(name)([path]), {loss.column for loss in exported.losses}


def chained(prompts: list[int], per: int, seed: int, tail_rule: str = "ceil") -> Ragged:
    """Ids of a random tree, each under one id in front of it."""
    rng, lists, known = np.random.default_rng(seed), [], dict[tuple[int, int], int]()
    for prompt in prompts:
        node, ids = -1, []
        for _ in range(-(-prompt // per) if tail_rule == "ceil" else prompt // per):
            node = known.setdefault((node, int(rng.integers(0, 2))), len(known))
            ids.append(node)
        lists.append(ids)
    return Ragged.of(lists)


def joined(trace: Trace, prompt: int) -> Trace:
    """The trace with a last row of this prompt, whose ids are full and one more."""
    per, last = trace.meta.tokens_per_id, int(trace.arrival_ns[-1])
    count = -(-prompt // per) if trace.meta.tail_rule == "ceil" else prompt // per
    ids = [trace.prefix_ids.row(row).tolist() for row in range(len(trace))] + [list(range(9_000, 9_000 + count))]
    return make_trace(
        np.append(trace.arrival_ns, last), np.append(trace.num_prompt_tokens, prompt),
        np.append(trace.num_output_tokens, 1), Ragged.of(ids), trace.meta,
    )  # fmt: skip


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Small traces with any of what a trace can say."""
    rows = draw(st.integers(1, 12))
    tick = draw(st.sampled_from([1, 100, 10**6]))
    gaps = draw(st.lists(st.integers(0, 10**6), min_size=rows, max_size=rows))
    arrival = np.cumsum(np.array(gaps, np.int64)) * tick
    if draw(st.booleans()):
        arrival -= arrival[0]
    prompts = draw(st.lists(st.integers(1, 2000), min_size=rows, max_size=rows))
    per = draw(st.sampled_from([0, 16, 64, 512]))
    rule = draw(st.sampled_from(["ceil", "floor"]))
    ids = chained(prompts, per, draw(st.integers(0, 9)), rule) if per else None
    columns = {}
    if draw(st.booleans()):
        columns["priority"] = np.array(draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)))
    if draw(st.booleans()):
        columns["session"] = np.array(draw(st.lists(st.integers(-1, 2), min_size=rows, max_size=rows)))
    if draw(st.booleans()):
        columns["cancel_after_ns"] = np.array(draw(st.lists(st.integers(-1, 9), min_size=rows, max_size=rows)))
    return make_trace(arrival, np.array(prompts), np.arange(1, rows + 1), ids, TraceMeta(per, rule), **columns)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces())
def test_without_losses_the_hash_is_kept_and_with_them_it_is_not(name: str, tmp_path: Path, trace: Trace) -> None:
    losses = {loss.column for loss in writer(name)(trace, tmp_path / "out").losses}
    try:
        found = reader(name)([tmp_path / "out"])
    except TraceError:  # how many tokens an id has cannot be told from so few rows
        assert "tokens_per_id" in losses
        return
    validate(found)
    assert (trace_hash(found) == trace_hash(trace)) == (not losses), losses


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces())
def test_lengths_and_order_always_come_through(name: str, tmp_path: Path, trace: Trace) -> None:
    if trace.meta.tokens_per_id:  # a row more, from whose ids their size follows
        per = trace.meta.tokens_per_id
        trace = joined(trace, 2 * per + 1)
    found, lost = back(name, trace, tmp_path)
    assert found.num_prompt_tokens.tolist() == trace.num_prompt_tokens.tolist()
    assert found.num_output_tokens.tolist() == trace.num_output_tokens.tolist()
    if "arrival_ns" not in lost:
        assert found.arrival_ns.tolist() == trace.arrival_ns.tolist()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces(), seed=st.integers(0, 5))
def test_what_is_shared_at_the_formats_granularity_is_still_shared(tmp_path: Path, trace: Trace, seed: int) -> None:
    """Forks and ids of any size, written as ids of 512: two rows have their full blocks in common, no more."""
    forked = overlaid(trace, Overlay(forks=Forks(share=0.5, width=3)), seed)
    found, _ = back("guidellm", forked, tmp_path)
    before, after = Content(forked), Content(found)
    for row in range(len(forked)):
        for other in range(row):
            prompts = min(int(forked.num_prompt_tokens[row]), int(forked.num_prompt_tokens[other]))
            common = min(before.common_tokens(row, other), prompts)
            assert after.common_tokens(row, other) // 512 == common // 512


def test_every_column_that_is_dropped_is_named(name: str, tmp_path: Path) -> None:
    busy = overlaid(
        generate(load_preset("agents"), 1),
        Overlay(forks=Forks(share=0.1, width=2), beams=Beams(share=0.1), cancels=Cancels(share=0.2, patience="1s")),
        3,
    )
    _, lost = back(name, busy, tmp_path)
    assert lost >= {
        "session", "parent", "inherited_tokens", "starts", "think_ns", "after", "cancel_after_ns",
        "cancel_after_tokens", "prefix_ids",
    }  # fmt: skip


def test_a_format_that_is_only_read_says_so() -> None:
    with pytest.raises(SpecError, match="format 'weka' can be read but not written; known: aiperf-mooncake, azure"):
        writer("weka")
    with pytest.raises(SpecError, match="format 'azzure' does not exist; did you mean 'azure'"):
        writer("azzure")
    assert set(WRITTEN) <= set(FORMATS)


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("azure", {"azure", "aiperf-mooncake"}),
        ("mooncake", {"mooncake", "vllm-timed", "aiperf-mooncake", "guidellm"}),
        ("vllm-timed", {"vllm-timed", "aiperf-mooncake"}),
    ],
)
def test_golden_samples_come_back_where_the_format_can_carry_them(
    tmp_path: Path, source: str, kept: set[str]
) -> None:
    golden = {
        "azure": "azure_small.csv",
        "mooncake": "mooncake_small.jsonl",
        "vllm-timed": "vllm_timed_small.jsonl",
    }
    trace = reader(source)([GOLDEN / golden[source]])
    came = {name for name in WRITTEN if trace_hash(back(name, trace, tmp_path)[0]) == trace_hash(trace)}
    assert came == kept


def test_priority_goes_through_where_a_server_can_be_told(tmp_path: Path) -> None:
    trace = make_trace(np.arange(3), np.array([4, 5, 6]), np.array([1, 1, 1]), priority=np.array([0, 7, 0]))
    found, lost = back("aiperf-mooncake", trace, tmp_path)
    assert (found.priority.tolist(), lost) == ([0, 7, 0], set())
    assert back("vllm-timed", trace, tmp_path)[1] == {"priority", "prefix_ids"}


def test_an_azure_file_is_what_azure_publishes(tmp_path: Path) -> None:
    trace = make_trace(np.array([0, 100, 90_061 * 10**9]), np.array([4, 5, 6]), np.array([1, 2, 3]))
    writer("azure")(trace, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_bytes() == (
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n1970-01-01 00:00:00.0000000,4,1\r\n"
        b"1970-01-01 00:00:00.0000001,5,2\r\n1970-01-02 01:01:01.0000000,6,3"
    )


def test_rows_of_the_timed_formats_are_exact_numbers_in_their_unit(tmp_path: Path) -> None:
    trace = make_trace(np.array([0, 1_500_000_001]), np.array([4, 5]), np.array([1, 2]))
    stamps = {}
    for name in ("vllm-timed", "aiperf-mooncake", "guidellm"):
        writer(name)(trace, tmp_path / name)
        stamps[name] = (tmp_path / name).read_text().splitlines()[1].split(",")[0]
    assert stamps == {
        "vllm-timed": '{"timestamp": 1.500000001', "aiperf-mooncake": '{"timestamp": 1500.000001',
        "guidellm": '{"timestamp": 1.500000001',
    }  # fmt: skip


def test_the_reader_of_vllms_rows_is_told_the_size_of_an_id(tmp_path: Path) -> None:
    trace = reader("mooncake")([GOLDEN / "mooncake_small.jsonl"])
    assert writer("vllm-timed")(trace, tmp_path / "v").hint == "--timed-trace-chunk-hash-size 512"
    assert writer("aiperf-mooncake")(trace, tmp_path / "a").hint == ""


def test_real_mooncake_rows_go_to_every_tool_and_come_back(real_traces: Path, tmp_path: Path) -> None:
    trace = reader("mooncake")([real_traces / "mooncake/conversation_head5000.jsonl"])
    for name in ("mooncake", "vllm-timed", "aiperf-mooncake", "guidellm"):
        found, lost = back(name, trace, tmp_path)
        assert (trace_hash(found), lost) == (trace_hash(trace), set())


def test_real_agent_sessions_keep_their_sharing_at_512_tokens(real_traces: Path, tmp_path: Path) -> None:
    """Hits that an infinite cache sees at 512 tokens, in the trace's own 64-token ids and in what is written."""
    trace = reader("weka")(sorted((real_traces / "weka").glob("*.json")))
    found, lost = back("mooncake", trace, tmp_path)
    content = Content(trace)
    expected = 0
    for row in range(len(trace)):
        best = max((content.common_tokens(row, other) for other in range(row)), default=0)
        expected += min(best, int(trace.num_prompt_tokens[row])) // 512 * 512
    assert int(ideal_hits(found).sum()) == expected
    assert lost >= {"prefix_ids", "session", "after"}
    assert (found.parent == NONE).all()


def test_stamps_go_to_the_nearest_tick_and_the_furthest_move_is_told(tmp_path: Path) -> None:
    trace = make_trace(np.array([0, 1_499_999, 2_500_001]), np.array([4, 5, 6]), np.array([1, 1, 1]))
    exported = writer("mooncake")(trace, tmp_path / "m")
    assert reader("mooncake")([tmp_path / "m"]).arrival_ns.tolist() == [0, 1_000_000, 3_000_000]
    assert ("arrival_ns", "whole 1000000 ns: rows move by up to 499999 ns") in exported.losses
