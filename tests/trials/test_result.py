"""result.json: written whole, in a fixed order, and read back as what it was."""

import json

import pytest
from toy_replays import make_facts, make_replay, toy_server

from trials.metrics import measure
from trials.result import Effective, Hashes, TrialResult, load_result, save_result
from trials.slo import parse_slo


def make_result(seed=1):
    replay, _, facts = toy_server(seed, trouble=0.3)
    one = measure(replay, facts, parse_slo("ttft:p99<500ms;itl:p99<50ms"))
    size, pool = facts.groups[0].block_size, facts.groups[0]
    effective = Effective(
        block_size=size, kernel_block_size=size, num_blocks=pool.num_blocks, reserve_blocks=0,
        pool_bytes=pool.pool_bytes, bytes_per_token=3, reuse_quantum_tokens=size,
    )  # fmt: skip
    return TrialResult(
        status="complete", evidence="modelled", eligible=True, hashes=Hashes(spec="s", trace="t", engine="e"),
        requested={"b": 1, "a": [1, 2]}, effective=effective, replays=(one,), decides=0, counts=one.counts,
        metrics=one.metrics, ledger=one.ledger, audited_steps=3,
    )  # fmt: skip


def test_a_result_is_read_back_as_it_was(tmp_path):
    result = make_result()
    save_result(result, tmp_path / "deep" / "result.json")
    assert load_result(tmp_path / "deep" / "result.json") == result


def test_equal_results_are_equal_bytes_whatever_the_order_of_keys(tmp_path):
    first, second = make_result(), make_result()
    second = second.model_copy(update={"requested": {"a": [1, 2], "b": 1}})
    save_result(first, tmp_path / "1.json")
    save_result(second, tmp_path / "2.json")
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()


def test_infinite_latencies_are_null_and_json_stays_strict(tmp_path):
    save_result(make_result(), tmp_path / "r.json")
    text = (tmp_path / "r.json").read_text()
    assert "Infinity" not in text
    assert "NaN" not in text
    lost = measure(make_replay([], [5]), make_facts(), parse_slo("ttft:p99<5ms"))
    assert json.loads(lost.model_dump_json())["metrics"]["ttft_ms"]["p99"] is None


def test_a_failing_write_leaves_the_old_result(tmp_path):
    path = tmp_path / "result.json"
    save_result(make_result(), path)
    before = path.read_bytes()
    with pytest.raises((TypeError, ValueError)):
        save_result(make_result().model_copy(update={"requested": {"bad": object()}}), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_a_truncated_result_is_no_result(tmp_path, cut):
    path = tmp_path / "result.json"
    save_result(make_result(), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match="validation error"):
        load_result(path)


def test_unknown_fields_are_refused(tmp_path):
    path = tmp_path / "result.json"
    save_result(make_result(), path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "host": "here"}))
    with pytest.raises(ValueError, match="host"):
        load_result(path)
