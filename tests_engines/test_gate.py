"""The upgrade gate: vLLM in a second environment, changed so that allocation moves, is named every time.

The second environment is this one by links, with vLLM's scheduler and pool copied, so that they can be changed. A
recipe is recorded in it while it is untouched; then an upgrade comes over it, as one would over a serving host.
"""

import shutil
import sys
import sysconfig
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import yaml

from orchestrator.control_upgrade import recipe_of
from orchestrator.diff import Build, build_of, diff
from orchestrator.folder import write_text
from orchestrator.package import install, pack
from orchestrator.recipe import load_recipe
from orchestrator.reproduce import reproduce, run_package
from tests.builders import build_trace
from trials.result import load_result
from trials.spec import TrialSpec
from trials.trace import load_trace, save_trace

SITE = Path(sysconfig.get_paths()["purelib"])
CORE = "vllm/v1/core"
REQUIRED = "        num_required_blocks = cdiv(num_tokens, self.block_size)\n"
FREED = "        for block in ordered_blocks:\n            if block.pool"


@dataclass(frozen=True)
class Upgrade:
    """Text of a file of vllm/v1/core, and what it becomes; which account is to be named."""

    name: str
    file: str = ""
    old: str = ""
    new: str = ""
    named: str = ""


UPGRADES = (
    Upgrade("untouched"),
    Upgrade("one block more", "single_type_kv_cache_manager.py", REQUIRED,
            REQUIRED.replace("cdiv(num_tokens, self.block_size)", "cdiv(num_tokens, self.block_size) + 1"), "free"),
    Upgrade("one block fewer", "single_type_kv_cache_manager.py", REQUIRED,
            REQUIRED.replace("cdiv(num_tokens, self.block_size)",
                             "max(1, cdiv(num_tokens, self.block_size) - 1)"), "free"),
    Upgrade("another free order", "block_pool.py", FREED,
            FREED.replace("ordered_blocks", "list(ordered_blocks)[::-1]"), "evicted_blocks"),
)  # fmt: skip


@dataclass
class Second:
    """The second environment: its interpreter, what is installed in it, and every run of it so far, once each."""

    folder: Path
    package: Path
    ran: dict[tuple[str, bool], Path] = field(default_factory=dict)
    state: str = "untouched"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def core(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages")) / CORE

    def become(self, upgrade: Upgrade) -> None:
        """Install the upgrade over what is there."""
        shutil.rmtree(self.core)
        shutil.copytree(SITE / CORE, self.core, ignore=shutil.ignore_patterns("__pycache__"))
        self.state = upgrade.name
        if not upgrade.file:
            return
        path = self.core / upgrade.file
        text = path.read_text(encoding="utf-8")
        assert text.count(upgrade.old) >= 1, f"{upgrade.file} of this vLLM is written otherwise"
        path.write_text(text.replace(upgrade.old, upgrade.new), encoding="utf-8")

    def run(self, spec: TrialSpec, out: Path, lock: Path | None) -> str:
        """In a new process; the same question to the same state is answered from the first run's files."""
        kept = self.folder / "runs" / f"{self.state}-{'locked' if lock else 'clocked'}"
        if not kept.exists() and (why := run_package(self.package, spec, kept, lock)):
            return why
        shutil.copytree(kept, out, dirs_exist_ok=True)
        return ""


def linked_environment(folder: Path) -> None:
    """An interpreter that sees this environment's distributions by links, but vllm/v1/core as files of its own."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    config = (Path(sys.prefix) / "pyvenv.cfg").read_text(encoding="utf-8")
    (folder / "pyvenv.cfg").write_text(config, encoding="utf-8")
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    branch = Path(CORE).parts
    for entry in SITE.iterdir():
        if entry.name != branch[0]:
            (site / entry.name).symlink_to(entry)
    for depth in range(1, len(branch)):
        here, there = SITE.joinpath(*branch[:depth]), site.joinpath(*branch[:depth])
        there.mkdir()
        for entry in here.iterdir():
            if entry.name not in ("__pycache__", branch[depth]):
                (there / entry.name).symlink_to(entry)
    shutil.copytree(SITE / CORE, site / CORE, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Second:
    folder = tmp_path_factory.mktemp("gate")
    linked_environment(folder / "environment")
    return Second(folder / "environment", install(pack(), folder / "package"))


@pytest.fixture(scope="module")
def question(second: Second, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ENGINE.yaml beside its trace: a pool that is short of blocks, and prompts that come again."""
    folder = tmp_path_factory.mktemp("question")
    again = [[1, 2, 3, 4, 5], [], [1, 2, 3, 4, 5], [], [1, 2, 3, 4, 5], []]
    trace = build_trace([75, 100, 75, 50, 75, 60], [30, 20, 30, 25, 10, 20], [0, 160, 320, 340, 560, 580], again)
    save_trace(trace, folder / "trace.parquet")
    text = {
        "engine": {"name": "vllm_scheduler", "python": str(second.python), "step_time": "linear:4000,40,10"},
        "model": {"num_layers": 2, "num_kv_heads": 2, "num_query_heads": 4, "head_dim": 32, "hidden_size": 128,
                  "intermediate_size": 256, "vocab_size": 512, "kv_dtype": "float32", "dtype": "float32"},
        "pool": {"blocks": 14}, "slo": "ttft:p99<1s", "phases": ["cold"],
        "policy": {"block_size": 16, "max_model_len": 128, "max_num_seqs": 8, "max_num_batched_tokens": 256},
        "trace": {"path": "trace.parquet"},
    }  # fmt: skip
    (folder / "engine.yaml").write_text(yaml.safe_dump(text), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def recipe(second: Second, question: Path) -> Path:
    """Recorded in the second environment, untouched."""
    build = build_of(question / "engine.yaml", question / "trace.parquet")
    (question / "first").mkdir()
    assert second.run(build.spec, question / "first", None) == ""
    result = load_result(question / "first" / "result.json")
    assert result.status == "complete", result.reason
    assert result.eligible, result.ineligible_because
    made = recipe_of(build.spec, load_trace(question / "trace.parquet"), result, question)
    write_text(question / "recipe.yaml", made.model_dump_json())
    assert load_recipe(question / "recipe.yaml").hashes == result.hashes
    return question / "recipe.yaml"


def present(question: Path, spec: TrialSpec, out: Path, lock: Path | None) -> str:
    """The untouched build, as it was recorded."""
    shutil.copytree(question / "first", out)
    return ""


@pytest.mark.parametrize("upgrade", UPGRADES, ids=lambda u: u.name)
def test_reproduce_and_diff_name_what_moved_and_an_untouched_copy_passes(
    upgrade: Upgrade, second: Second, question: Path, recipe: Path, tmp_path: Path
) -> None:
    second.become(upgrade)
    again = reproduce(recipe, tmp_path / "again", second.run)
    spec = build_of(question / "engine.yaml", question / "trace.parquet").spec
    apart = diff(Build(spec, partial(present, question)), Build(spec, second.run), tmp_path / "apart")
    print("\n".join((*again.lines, *apart.lines)))
    if not upgrade.file:
        assert (again.exit_code, apart.exit_code) == (0, 0)
        assert apart.parts == ()
        return
    assert (again.exit_code, apart.exit_code) == (4, 4)
    for parts in (again.parts, apart.parts):
        assert [part for part in parts if f"{CORE}/{upgrade.file}" in part], parts
    for differences in (again.ledger_differences, apart.ledger_differences):
        assert differences, "no account is named"
        assert upgrade.named in {d.column for d in differences}
