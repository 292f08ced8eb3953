"""Two builds side by side: what is named when allocation moves, and that nothing is where it does not."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from fake_rooms import SWEEP, write_trace
from typer.testing import CliRunner

import trials
from orchestrator.cli import app
from orchestrator.diff import Build, build_of, diff
from tests.builders import build_trace
from trials.tables import read_locks
from trials.trace import save_trace
from trials.units import SpecError
from trials.worker import run_trial

SPEC = {
    **{k: v for k, v in yaml.safe_load(SWEEP).items() if k in ("engine", "model", "slo")},
    "pool": {"blocks": 24}, "policy": {"block_size": 16, "max_model_len": 256}, "phases": ["cold"],
}  # fmt: skip
HEAD_FIRST = """

_opened = BlockPool.__init__


def _other_order(self, num_blocks, block_size, reserve_blocks=0, caching=True, rules=None):
    _opened(self, num_blocks, block_size, reserve_blocks, caching, rules)
    self._tail_first = False


BlockPool.__init__ = _other_order
"""
ONE_COMMENT = "\n# nothing is done otherwise\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Twelve requests at a gap that leaves some of them waiting for each other's blocks."""
    write_trace(tmp_path / "t.parquet", rows=12, gap_s=0.02)
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(SPEC))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(SPEC))
    return tmp_path


def here(build: Build, **policy: object) -> Build:
    """The same in this process: quick, where a new one is not the point."""

    def run(spec, out: Path, lock: Path | None) -> str:
        out.mkdir(parents=True)
        spec = spec.model_copy(update={"policy": spec.policy.model_copy(update=policy)})
        run_trial(spec, out, read_locks(lock) if lock is not None else None)
        return ""

    return Build(build.spec, run)


def of(place: Path, name: str = "a.yaml", **policy: object) -> Build:
    return here(build_of(place / name, place / "t.parquet"), **policy)


def test_a_build_beside_itself_differs_in_nothing(place: Path) -> None:
    found = diff(of(place), of(place, "b.yaml"), None)
    assert found.exit_code == 0
    assert (found.parts, found.ledger_differences, found.moved, found.problems) == ((), (), (), ())
    assert found.throughput is not None
    assert found.throughput[0] == found.throughput[1] > 0
    assert found.lines[-1] == "the builds allocate alike"
    assert "byte-exact" in "\n".join(found.lines)


def test_the_account_that_moved_is_named_with_its_first_step_and_bytes_better_or_worse(place: Path) -> None:
    """Blocks of 8 instead of 16: less tail slack, which is a difference too."""
    both = of(place), of(place, "b.yaml", block_size=8)
    better, worse = diff(*both, None), diff(*reversed(both), None)
    for found in (better, worse):
        assert found.exit_code == 4
        named = {d.column for d in found.ledger_differences}
        assert "tail_slack" in named
        first = next(d for d in found.ledger_differences if d.column == "tail_slack")
        assert first.step == 0
    slack = [next(m for m in f.moved if m.account == "tail_slack") for f in (better, worse)]
    assert slack[0].after - slack[0].before == pytest.approx(-(slack[1].after - slack[1].before))
    assert slack[0].after < slack[0].before
    assert any("tail_slack of cold" in line and "bytes a step on average" in line for line in better.lines)


def test_what_a_change_is_worth_is_told_at_the_load_and_labelled(place: Path) -> None:
    found = diff(of(place), of(place, "b.yaml", max_num_seqs=1), None)
    assert found.throughput is not None
    assert found.throughput[1] < found.throughput[0]
    line = next(line for line in found.lines if line.startswith("qualified output"))
    assert "[modelled] at rate_scale=1" in line
    assert "-" in line.partition("->")[2]


def test_whatever_else_the_two_yamls_ask_is_named(place: Path) -> None:
    (place / "b.yaml").write_text(yaml.safe_dump({**SPEC, "seed": 7}))
    found = diff(of(place), of(place, "b.yaml"), None)
    assert found.lines[0] == "asked otherwise: seed: 0 -> 7"


def test_a_build_without_an_answer_differs_and_a_first_one_without_leaves_nothing_to_compare(
    place: Path,
) -> None:
    dead = Build(of(place).spec, lambda spec, out, lock: out.mkdir() or "it fell over")
    found = diff(of(place), dead, None)
    assert found.exit_code == 4
    assert "it fell over" in found.problems[0]
    found = diff(dead, of(place), None)
    assert found.exit_code == 3
    assert "it fell over" in found.lines[0]


def test_a_folder_without_trials_is_no_package(place: Path) -> None:
    with pytest.raises(SpecError, match="holds no trials"):
        build_of(place / "a.yaml", place / "t.parquet", place)


def tree(folder: Path, more: str) -> Path:
    """A copy of trials/ with a few lines more in its pool."""
    shutil.copytree(Path(trials.__file__).parent, folder / "trials", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "trials" / "block_pool.py").open("a", encoding="utf-8") as source:
        source.write(more)
    return folder


def test_verb_runs_two_package_trees_in_processes_of_their_own(place: Path) -> None:
    """A prompt that comes again when part of it was evicted: which part, the order of release decides."""
    ids = [[1, 2, 3], [], [1, 2, 3]]
    save_trace(build_trace([50, 20, 50], [2, 20, 2], [0, 20, 40], ids), place / "t.parquet")
    spec = {**SPEC, "engine": {"name": "simulator", "step_time": "constant:1000"}, "pool": {"blocks": 4},
            "policy": {"block_size": 16, "max_model_len": 64}}  # fmt: skip
    (place / "a.yaml").write_text(yaml.safe_dump(spec))
    answers = {}
    for name, more in (("same", ONE_COMMENT), ("moved", HEAD_FIRST)):
        ran = CliRunner().invoke(app, [
            "diff", str(place / "a.yaml"), str(place / "a.yaml"), "--trace", str(place / "t.parquet"),
            "--package-b", str(tree(place / name, more)), "--json",
        ])  # fmt: skip
        answers[name] = (ran.exit_code, json.loads(ran.stdout))
    assert [answers[name][0] for name in ("same", "moved")] == [0, 4]
    for _, found in answers.values():
        assert any("block_pool.py" in part for part in found["parts"])
    assert answers["same"][1]["ledger_differences"] == []
    assert answers["moved"][1]["ledger_differences"][0]["step"] > 0
