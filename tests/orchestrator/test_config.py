"""Laws of configuration: everything is resolved and checked before anything runs, and reads back as itself."""

import pytest
import yaml
from fake_rooms import SWEEP, make_sweep, write_trace

from orchestrator.config import SWEEP_ONLY
from orchestrator.points import Point
from orchestrator.resolve import load_sweep, load_trial
from orchestrator.sweep_file import differences, stored_sweep, sweep_yaml
from trials.trace import TraceError
from trials.units import SpecError


def test_defaults_are_all_candidates_on_all_windows_with_five_controls(tmp_path):
    text = SWEEP.replace("repeats: 2\n", "").replace("space: {vary: {policy.block_size: {powers_of_two: [8, 32]}}}",
                                                      "space: block_size")  # fmt: skip
    sweep = make_sweep(tmp_path, text=text)
    assert (sweep.config.repeats, sweep.budget) == (3, 27)
    assert [name for name, _ in sweep.controls] == [
        "contiguous", "one_block", "vendor_default", "smallest", "largest",
    ]  # fmt: skip
    assert (sweep.config.min_gain, sweep.config.objective) == (0.02, "qualified_output_throughput")


def test_what_is_stored_reads_back_as_the_same_sweep(tmp_path):
    sweep = make_sweep(tmp_path, "seed=3", "policy.watermark=0.01")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sweep.yaml").write_text(sweep_yaml(sweep))
    assert stored_sweep(tmp_path / "out" / "sweep.yaml") == sweep


def test_no_tracker_stays_no_tracker(tmp_path):
    (tmp_path / "sweep.yaml").write_text(sweep_yaml(make_sweep(tmp_path)))
    assert stored_sweep(tmp_path / "sweep.yaml").config.tracking is None


def test_a_sweep_without_a_tracking_key_gets_the_default_one(tmp_path):
    assert make_sweep(tmp_path, text=SWEEP.replace("tracking: null\n", "")).config.tracking.uri is None


def test_paths_are_relative_to_the_yaml(tmp_path):
    (tmp_path / "deep").mkdir()
    write_trace(tmp_path / "deep" / "t.parquet")
    (tmp_path / "deep" / "s.yaml").write_text(SWEEP)
    sweep = load_sweep(tmp_path / "deep" / "s.yaml")
    assert sweep.config.trace.path == str(tmp_path / "deep" / "t.parquet")


def test_all_candidates_of_a_repeat_share_one_window(tmp_path):
    sweep = make_sweep(tmp_path)
    for repeat in (0, 1):
        specs = [sweep.spec(p) for p in [*sweep.grid(), *sweep.control_points()] if p.repeat == repeat]
        assert {s.trace.window.start for s in specs} == {repeat * 20 * 10**9}
        assert {s.repeat for s in specs} == {repeat}


def test_sets_are_typed_as_yaml(tmp_path):
    sweep = make_sweep(
        tmp_path, "policy.prefix_caching=false", "pool.bytes=2GiB", "controls=[contiguous]", "trials=2"
    )
    assert sweep.config.policy.prefix_caching is False
    assert sweep.config.pool.bytes == 2 << 30
    assert sweep.config.controls == ("contiguous",)
    assert sweep.budget == 2


def test_goodput_replaces_the_slo(tmp_path):
    make_sweep(tmp_path)
    sweep = load_sweep(tmp_path / "s.yaml", goodput="ttft:300 tpot:40")
    assert sweep.config.slo == "ttft:p99<300ms;tpot:p99<40ms"


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["polcy.block_size=3"], "did you mean 'policy'"),
        (["policy.blocksize=3"], "did you mean 'block_size'"),
        (["engine.name=simulater"], "did you mean 'simulator'"),
        (["policy.block_size=0"], "block_size"),
        (["policy.block_size=-1"], "block_size"),
        (["policy.block_size=3.5"], "block_size"),
        (["policy.block_size=abc"], "block_size"),
        (["slo=ttft:p99<5"], "no unit"),
        (["slo=itl:p99<50ms", "measure={ladder: {low: 1, high: 4}}"], "ttft or e2el"),
        (["space=block_sise"], "did you mean 'block_size'"),
        (["controls=[contigous]"], "did you mean 'contiguous'"),
        (["controls=[largest, largest]"], "twice"),
        (["objective=speed"], "objective"),
        (["trials=30"], "3 candidates x 2 repeats = 6"),
        (["trials=0"], "trials"),
        (["repeats=4"], "3 fit"),
        (["repeat=1"], "a sweep says repeats"),
        (["pool.bytes=1MiB"], "holds no request of the trace"),
        (["policy.max_model_len=100"], "max_model_len 100"),
        (["trace_hash=abc"], "restore the file"),
        (["space={vary: {policy.watermark: {range: [0, 0.2]}}}"], "needs a budget"),
        (["space={vary: {policy.watermark: {range: [0, 0.2]}}}", "sampler=exhaustive"], "sampler: tpe"),
        (["space={vary: {policy.watermark: {range: [0, 0.2]}}}", "sampler=tpe"], "needs a budget"),
        (["engine.step_time=table:nowhere.json"], "no such table"),
        (["nonsense"], "cannot be read"),
        (["a..b=1"], "cannot be read"),
        (["model.num_layers=3"], "no keys"),
        (["seed=[1"], "not valid YAML"),
        (["seed=" + "1" * 5000], "not valid YAML"),
        (["seed=!!bool perhaps"], "not valid YAML"),
        (["calibration=&a [*a]"], "contains itself"),
        (["calibration={a: 1, a: 2}"], "stands twice"),
        (['engine.python="\\0"'], "no file and no name can"),
        (["name=../escape"], "name"),
        (["min_gain=1.5"], "min_gain"),
        (["objective=capacity_load"], "needs measure.ladder"),
        (["measure={load: {rps: 1}, ladder: {over: pool_bytes, low: 1MiB, high: 1GiB}}"], "belongs to a trial"),
        (["measure={ladder: {over: pool_bytes, low: 1MiB, high: 1GiB}}"], "needs the load beside it"),
        (["executor=cluster"], "executor"),
        (["executor.slots=99999999999999999999"], "at most 65536"),
        (["executor.lease_s=.inf"], "a finite number is needed"),
        (["trials=true"], "a whole number is needed"),
        (["repeats=true"], "a whole number is needed"),
        (["engine.step_time=fast"], "the form 'fast' does not exist"),
        (["space={vary: {policy.block_size: [4, 8]}}"], "\n  space.vary.policy.block_size: a mapping"),
        (["engine.env={'': x}"], "cannot be the name of a variable"),
        (["engine.env={a=b: x}"], "cannot be the name of a variable"),
    ],
)
def test_bad_input_is_refused_with_words_before_anything_runs(tmp_path, sets, words):
    with pytest.raises(SpecError) as refused:
        make_sweep(tmp_path, *sets)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "sets",
    [
        "calibration.api_key=hf_abcdefgh", "calibration.found={by: 'https://ghp_hf_abcdefgh@host/x'}",
        "executor.content='s3://me:hf_abcdefgh@bucket'", "executor.slot.labels={token: hf_abcdefgh}",
        "screen={step_time: 'table:https://hf_abcdefgh@host/t.json'}",
    ],
)  # fmt: skip
def test_a_sweep_with_a_secret_is_refused_and_the_words_do_not_repeat_it(tmp_path, sets):
    with pytest.raises(SpecError, match="looks like a secret, and a sweep is copied") as refused:
        make_sweep(tmp_path, sets)
    assert "hf_abcdefgh" not in str(refused.value)


def test_goodput_that_cannot_be_read_is_refused(tmp_path):
    make_sweep(tmp_path)
    with pytest.raises(SpecError, match="goodput"):
        load_sweep(tmp_path / "s.yaml", goodput="ttft=300")


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02", b"PAR1 torn"])
def test_a_trace_that_is_empty_binary_or_torn_is_refused(tmp_path, content):
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(TraceError):
        make_sweep(tmp_path)


def test_an_absent_trace_is_refused(tmp_path):
    (tmp_path / "s.yaml").write_text(SWEEP)
    with pytest.raises(TraceError, match="no such trace"):
        load_sweep(tmp_path / "s.yaml")


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "\x00"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(SpecError):
        load_sweep(tmp_path / "s.yaml")


def test_a_missing_key_is_named(tmp_path):
    with pytest.raises(SpecError, match="slo"):
        make_sweep(tmp_path, text=SWEEP.replace('slo: "ttft:p99<500ms;itl:p99<50ms"\n', ""))


def test_a_trial_refuses_the_keys_of_a_sweep(tmp_path):
    make_sweep(tmp_path)
    with pytest.raises(SpecError, match="key of a sweep"):
        load_trial(tmp_path / "s.yaml")


def trial_file(tmp_path):
    data = {k: v for k, v in yaml.safe_load(SWEEP).items()
            if k not in SWEEP_ONLY}  # fmt: skip
    write_trace(tmp_path / "t.parquet")
    (tmp_path / "trial.yaml").write_text(yaml.safe_dump(data))
    return tmp_path / "trial.yaml"


def test_a_trial_is_checked_against_its_trace(tmp_path):
    path = trial_file(tmp_path)
    assert load_trial(path, ["policy.block_size=32"]).policy.block_size == 32
    with pytest.raises(SpecError, match="holds no request"):
        load_trial(path, ["pool.bytes=1MiB"])
    with pytest.raises(SpecError, match="no request of the trace arrives"):
        load_trial(path, ["trace.window={start: 900s, duration: 1s}"])


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["engine.step_time=fast"], "the form 'fast' does not exist"),
        (["engine.step_time=table:trial.yaml"], "Invalid JSON"),
        (["engine.args.stands_for=abc"], "a table, not roofline:h100-sxm; make one with `kvknee calibrate`"),
        (["engine.python=nowhere/python"], "not an executable file"),
        (["engine.python=python3"], "must be an absolute path"),
        (["engine.env={HF_TOKEN: env:NOT_SET_ANYWHERE}"], "NOT_SET_ANYWHERE is not set"),
        (["trace.warmup=1000d"], "no request arrives in the window"),
        (["measure.load.rate_scale=1e-300"], "raise the load"),
        (["measure={ladder: {low: 1.0e-300, high: 1.0}}"], "raise the load"),
        (["measure={ladder: {low: 1, high: 2, within: 1.0e-9}}"], "at most 100,000"),
        (["measure={ladder: {low: 1, high: 2, windows: 100}}"], "no request arrives in the window"),
    ],
)
def test_what_the_worker_would_refuse_is_refused_before_it_is_started(tmp_path, sets, words):
    path = trial_file(tmp_path)
    with pytest.raises(SpecError) as refused:
        load_trial(path, sets)
    assert words in str(refused.value)


def test_a_sweep_is_refused_whose_simulator_cannot_stand_for_what_it_names(tmp_path):
    with pytest.raises(SpecError, match="stands_for needs step times that were measured"):
        make_sweep(tmp_path, "engine.args.stands_for=abc")


def test_a_control_that_cannot_hold_a_request_is_noted_and_not_hidden(tmp_path):
    sweep = make_sweep(tmp_path, "pool.bytes=64MiB", "controls=[contiguous]")
    assert any("control contiguous" in note for note in sweep.notes)
    assert [p.control for p in sweep.control_points()] == ["contiguous", "contiguous"]


def test_two_sweeps_differ_by_what_decides_and_not_by_where_they_run(tmp_path):
    def stored(*sets):
        return yaml.safe_load(sweep_yaml(make_sweep(tmp_path, *sets)))

    assert differences(stored(), stored("executor.slots=4")) == []
    assert differences(stored(), stored("seed=4")) == ["seed: 0 -> 4"]
    assert differences(stored(), stored("policy.watermark=0.1")) == ["policy.watermark: 0.0 -> 0.1"]


def test_the_hash_of_a_trial_does_not_depend_on_the_trace_s_place(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = make_sweep(tmp_path / "a"), make_sweep(tmp_path / "b")
    point = Point((("block_size", 8),), None, 0)
    assert one.spec(point).trace.path != two.spec(point).trace.path
    assert one.hash(one.spec(point)) == two.hash(two.spec(point))
