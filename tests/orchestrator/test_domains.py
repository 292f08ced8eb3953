"""An engine is asked in its own interpreter, and the space is cut to its answer, out loud."""

import json
import stat
from pathlib import Path

import pytest

from orchestrator.domains import EngineSays, ask, cut
from search_spaces.space import Space, build_space, space_spec
from trials.spec import TrialSpec, trial_spec
from trials.units import SpecError

CPU = EngineSays(minimum=32, multiple_of=32, source="CPU_ATTN", not_applicable=("eviction",))


def spec_of(name: str = "vllm", python: str | None = None) -> TrialSpec:
    engine = {"name": name, "python": python, "step_time": "roofline:h100-sxm" if name == "simulator" else None}
    return trial_spec(
        {
            "engine": engine, "model": "llama-3.1-8b", "pool": {"bytes": "1GiB"},
            "trace": {"path": "none.parquet"}, "slo": "ttft:p99<1s",
        }
    )  # fmt: skip


def space_of(**vary: object) -> Space:
    return build_space(space_spec({"vary": {f"policy.{name}": v for name, v in vary.items()}}), spec_of())


def interpreter(folder: Path, script: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_block_sizes_that_the_engine_refuses_are_left_out_and_named() -> None:
    space = cut(space_of(block_size={"powers_of_two": [8, 128]}), CPU)
    assert space.dimensions[0].values == (32, 64, 128)
    assert space.num_candidates == 3
    assert space.notes == ("block sizes left out, CPU_ATTN takes multiples of 32 from 32 on: 8, 16",)


def test_knobs_that_the_engine_does_not_have_do_not_multiply_trials() -> None:
    space = space_of(block_size={"one_of": [32, 64]}, eviction={"one_of": ["lru", "fifo", "lfu"]})
    assert space.num_candidates == 6
    after = cut(space, CPU)
    assert after.num_candidates == 2
    assert [d.field for d in after.dimensions] == ["block_size"]
    assert "policy.eviction left out: it changes nothing in vllm" in after.notes[0]


def test_what_hangs_on_what_the_engine_does_not_have_is_left_out_with_it() -> None:
    """And on sizes that it refuses; what the base meets stays."""
    sizes = {"one_of": [16, 32, 64]}
    space = space_of(
        block_size=sizes, eviction={"one_of": ["lru", "fifo"]},
        prefix_match={"one_of": ["block", "partial"], "when": {"policy.eviction": "fifo"}},
        queue={"one_of": ["fcfs", "priority"], "when": {"policy.block_size": 16}},
        victim={"one_of": ["largest", "last_admitted"], "when": {"policy.eviction": "lru"}},
    )  # fmt: skip
    after = cut(space, CPU)
    assert [d.field for d in after.dimensions] == ["block_size", "victim"]
    assert sum("left out: it matters only under another" in note for note in after.notes) == 2


def test_a_space_of_which_the_engine_has_nothing_is_refused_and_says_what_it_lacks() -> None:
    with pytest.raises(
        SpecError, match=r"nothing is left to vary: policy\.eviction left out: it changes nothing in vllm"
    ):
        cut(space_of(eviction={"one_of": ["lru", "fifo"]}), CPU)


def test_a_space_without_any_size_that_the_engine_takes_is_refused_with_what_it_takes() -> None:
    with pytest.raises(SpecError, match="CPU_ATTN takes multiples of 32 from 32 on"):
        cut(space_of(block_size={"one_of": [1, 16, 48]}), CPU)


def test_an_engine_that_takes_everything_is_not_asked() -> None:
    space = space_of(block_size={"one_of": [1, 16]})
    assert ask(spec_of("simulator", "/no/such/python")) is None
    assert cut(space, None) is space


def test_the_answer_comes_from_the_engines_own_interpreter(tmp_path: Path) -> None:
    said = {
        "block_sizes": {"minimum": 4, "multiple_of": 2, "source": "somebody"}, "not_applicable": ["queue"],
        "identity": {}, "engine_hash": "0" * 64,
    }  # fmt: skip
    python = interpreter(tmp_path, f"echo 'some noise'\necho '{json.dumps(said)}'")
    says = ask(spec_of("vllm", python))
    assert says == EngineSays(minimum=4, multiple_of=2, source="somebody", not_applicable=("queue",))
    assert [size for size in range(1, 9) if says.accepts(size)] == [4, 6, 8]


def test_an_interpreter_without_the_engine_is_told_in_its_words(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "echo 'error: no vLLM in this interpreter' >&2; exit 2")
    with pytest.raises(SpecError, match="engine vllm: no vLLM in this interpreter"):
        ask(spec_of("vllm", python))
    with pytest.raises(SpecError, match="cannot be asked what it accepts"):
        ask(spec_of("vllm", str(tmp_path / "nowhere")))
