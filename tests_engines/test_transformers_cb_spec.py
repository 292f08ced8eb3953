"""transformers' continuous batching as a trial asks for it: read back, refused in words, identified, loaded."""

import json
from pathlib import Path

import pytest
from cb_driving import opened, sharing_requests
from driving import make_folder, make_requests, make_spec, picks_of, run_worker, serve

from trials.content import Content
from trials.engine import PoolGeometry, Refused
from trials.engines import transformers_cb
from trials.trace import Trace, save_trace
from trials.units import SpecError


@pytest.fixture(scope="module")
def shared() -> Trace:
    return sharing_requests()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"block_size": 3}, "page_size must be at least 4"),
        ({"engine": {"args": {"cpu_offload_space": 0.1}}}, "transformers will not start"),
        ({"engine": {"args": {"attn_implementation": "no_such"}}}, "no_such"),
        ({"engine": {"args": {"no_such_argument": 1}}}, "no_such_argument"),
        ({"engine": {"args": {"scheduler_type": "lifo"}}}, "fifo and prefill_first"),
        ({"engine": {"args": {"page_size": 32}}}, "page_size follow from pool"),
        ({"engine": {"tensor_parallel_size": 2}}, "tensor_parallel_size must be 1"),
        ({"num_blocks": 2}, "keeps 2 blocks for itself"),
        ({"model": {"kv_dtype": "bfloat16"}}, "the model's own dtype"),
    ],
)  # fmt: skip
def test_what_it_will_not_run_is_refused_in_words(shared: Trace, more: dict[str, object], words: str) -> None:
    asked: dict[str, object] = {"block_size": 16, "num_blocks": 40} | more
    refused = transformers_cb.open(make_spec("transformers_cb", **asked), Content(shared))  # type: ignore[arg-type]
    assert isinstance(refused, Refused)
    assert words in refused.words


def test_what_runs_is_read_back_and_not_what_was_asked() -> None:
    trace = make_requests([20], [3])
    # 3 layers of 1 head of 20 elements: blocks of 4 tokens are no multiple of 128 bytes, sectors hold two.
    engine = opened(trace, 4, 41, model={"num_layers": 1, "num_kv_heads": 1, "num_query_heads": 2, "head_dim": 6})
    (geometry,) = engine.facts.groups
    assert geometry.block_bytes == 192
    assert geometry.reserve_blocks == 4
    assert geometry.num_blocks == 40
    assert geometry.remainder_bytes == 192
    knobs = dict(engine.facts.effective)
    assert knobs["attention_backend"] == "sdpa"
    assert knobs["block_size"] == "4"
    assert knobs["eviction"] == "all_at_once"
    assert geometry.kernel_block_size == 1, "without flash kernels the cache is read token by token"
    serve(engine, trace)
    engine.close()


def test_device_bytes_are_named_and_the_rest_is_a_small_signed_residual(shared: Trace) -> None:
    engine = opened(shared, 16, 40)
    serve(engine, shared)
    device = engine.audit().device
    assert device.pool == 40 * 16 * 2 * 2 * 2 * 32 * 4
    assert device.weights >= 2 * 512 * 64 * 4
    assert device.workspace > 64 * (38 * 16 + 64) * 4, "the mask alone takes as much"
    assert abs(device.residual) < 64 << 20
    engine.close()


def test_the_identity_names_the_installed_files_that_decide() -> None:
    found = transformers_cb.identity(make_spec("transformers_cb", 16, 40))["installed"]
    assert "transformers/generation/continuous_batching/scheduler.py" in found
    assert "transformers/models/llama/modeling_llama.py" in found


def test_the_candidates_policy_is_no_part_of_the_engine() -> None:
    base = transformers_cb.identity(make_spec("transformers_cb", 16, 40))
    assert transformers_cb.identity(make_spec("transformers_cb", 64, 9, prefix_caching=False)) == base
    other = make_spec("transformers_cb", 16, 40, engine={"args": {"scheduler_type": "prefill_first"}})
    assert transformers_cb.identity(other) != base


def test_the_worker_runs_a_trial_under_this_interpreter(shared: Trace, tmp_path: Path) -> None:
    save_trace(shared, tmp_path / "t.parquet")
    ended = run_worker(make_spec("transformers_cb", 16, 40, str(tmp_path / "t.parquet")), tmp_path)
    assert ended.returncode == 0, ended.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "complete"
    assert result["ineligible_because"] == []
    assert result["evidence"] == "measured"
    assert result["effective"]["block_size"] == 16
    assert result["counts"]["completed"] == 6


def test_describe_says_what_it_accepts(tmp_path: Path) -> None:
    ended = run_worker(make_spec("transformers_cb", 16, 40), tmp_path, "--describe")
    assert ended.returncode == 0, ended.stderr[-2000:]
    said = json.loads(ended.stdout)
    assert said["block_sizes"]["minimum"] == 4
    assert "eviction" in said["not_applicable"]
    assert "watermark" in said["knobs"]


def test_args_that_contradict_the_spec_are_bad_input() -> None:
    from trials.engines.cb_config import batching_args

    spec = make_spec("transformers_cb", 16, 40, engine={"args": {"num_blocks": 3}})
    with pytest.raises(SpecError, match="num_blocks follow from pool"):
        batching_args(spec, PoolGeometry(16, 40, 0, 2048, 0, 40 * 16 * 2048, 16, 16))


@pytest.mark.parametrize("weights", [True, False])
def test_a_folder_is_loaded_with_its_weights_or_as_a_shape(weights: bool, tmp_path: Path) -> None:
    trace = make_requests([50, 70], [12, 9])
    folder = make_folder(tmp_path / "model", weights)
    said: list[dict[int, list[int]]] = [{}, {}]
    for once in said:
        engine = opened(trace, 16, 40, model={"path": str(folder)})
        engine.on_pick = lambda row, token, once=once: once.setdefault(row, []).append(token)  # type: ignore[attr-defined]
        assert serve(engine, trace).delivered == {0: 12, 1: 9}
        engine.close()
    assert said[0] == said[1], "weights that are drawn are drawn from the seed"
    if weights:
        assert said[0] == {row: picks_of(folder, trace, row) for row in range(2)}, "other weights than the folder's"
