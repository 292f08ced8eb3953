"""The smallest pool that holds: found by bytes, with the pool below it measured not to hold."""

from trials.content import Content
from trials.engine import Refused
from trials.engines import simulator
from trials.pool_size import Sized, size_pool
from trials.spec import trial_spec
from trials.trace import Trace

from tests.builders import build_trace  # isort: skip


def burst() -> Trace:
    """Twenty at once, of 96 + 33 tokens: 128 of them held at the end, 8 blocks of 16."""
    return build_trace([96] * 20, [33] * 20)


def spec(ladder, slo="ttft:p90<25ms"):
    return trial_spec({
        "engine": {"name": "simulator", "step_time": "constant:1000"},
        "model": {"num_layers": 1, "num_kv_heads": 1, "num_query_heads": 1, "head_dim": 8, "hidden_size": 8,
                  "intermediate_size": 8, "vocab_size": 8, "kv_dtype": "float16"},
        "pool": {"bytes": "1MiB"}, "policy": {"prefix_caching": False}, "trace": {"path": "t"}, "slo": slo,
        "measure": {"load": {"rate_scale": 1.0}, "ladder": {"over": "pool_bytes", **ladder}},
    })  # fmt: skip


def sized(asked):
    content = Content(burst())
    return size_pool(lambda own: simulator.open(own, content), burst(), asked, lambda text: None)


BLOCK = 16 * 32  # bytes


def test_smallest_pool_that_holds_and_the_one_below_it():
    """Eighteen of the twenty prompts must be in at once, 6 blocks each; a block less, and the p90 waits."""
    found = sized(spec({"low": 100, "high": "1MiB", "within": 0.002}))
    assert isinstance(found, Sized)
    capacity = found.outcome.capacity
    assert 108 * BLOCK <= capacity.value <= 108 * BLOCK * 1.003
    assert capacity.value / 1.003 <= capacity.parts[0].beyond < 108 * BLOCK
    assert found.facts.groups[0].pool_bytes == capacity.value
    replay = found.outcome.replays[0]
    assert replay.result.holds
    assert replay.replay.stopped_early is None
    assert not capacity.at_least


def test_smallest_of_the_ladder_that_holds_is_at_most():
    found = sized(spec({"low": "100KiB", "high": "1MiB"}))
    assert isinstance(found, Sized)
    assert found.outcome.capacity.words.startswith("<= 102,400 bytes; nothing tried failed")


def test_no_pool_that_holds_and_none_that_opens():
    none = sized(spec({"low": 8 * BLOCK, "high": 16 * BLOCK}))
    assert isinstance(none, Sized)
    assert none.outcome.capacity.value is None
    assert none.outcome.capacity.words == "no pool of the ladder holds: ttft:p90<25ms binds"
    assert isinstance(sized(spec({"low": 1, "high": 10})), Refused)
