"""The eighth failure: an engine upgrade that changes allocation without a word, and the recipe that must notice.

A copy of trials/ in which released blocks go back head first is run against a recipe that was written with the
present one, as `kvknee reproduce` runs it: in a new process, locked to the recorded steps.
"""

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq

import orchestrator.reproduce as reproduction
import trials.worker
from orchestrator.control_scenes import OBJECTIVE, Scale, Swap, generated_trace, make_spec, small_trace, swapped
from orchestrator.folder import write_text
from orchestrator.recipe import LOCK_COLUMNS, Beside, Chosen, ExpectedReplay, Locator, Recipe, account_columns
from trials.fingerprint import file_digest, trace_parts
from trials.result import TrialResult
from trials.spec import TrialSpec
from trials.tables import read_locks
from trials.trace import Trace, save_trace, write_whole
from trials.worker import run_trial

# Appended to block_pool.py: a legal pool that answers every request, and evicts other blocks.
_UPGRADE = """

_opened = BlockPool.__init__


def _head_first(self, num_blocks, block_size, reserve_blocks=0, caching=True, rules=None):
    _opened(self, num_blocks, block_size, reserve_blocks, caching, rules)
    self._tail_first = False


BlockPool.__init__ = _head_first
"""


def _scene(scale: Scale) -> tuple[TrialSpec, Trace]:
    """A prompt that comes again after another took part of the pool: which part of it is still cached decides."""
    if scale == "trace":
        return make_spec(blocks=90), generated_trace()
    ids = [[0, 1, 2], [], [0, 1, 2]]
    return make_spec(blocks=4, max_model_len=64), small_trace([(0, 50, 2), (20, 20, 2), (40, 50, 2)], ids)


def upgrade(scale: Scale, faulty: bool, guarded: bool) -> list[str]:
    """What `reproduce` says of the engine as it is, or as its upgrade left it; empty where it reproduced."""
    recipe = _recorded(scale)
    with swapped(*([] if guarded else _UNCHECKED)):
        report = reproduction.reproduce(recipe, None, _runner(scale, faulty))
    return [] if report.exit_code == 0 else [line for line in report.lines if not line.startswith("latency")]


def _runner(scale: Scale, faulty: bool) -> reproduction.Run:
    """The upgraded engine runs in a new process from its own package, the present one here; each once."""

    def run(spec: TrialSpec, out: Path, lock: Path | None) -> str:
        kept = _place() / scale / f"{'upgraded' if faulty else 'present'}-{'locked' if lock else 'clocked'}"
        if not kept.exists():
            kept.mkdir(parents=True)
            if not faulty:
                _quietly(spec, kept, lock)
            elif why := reproduction.run_package(_upgraded(), spec, kept, lock):
                return why
        shutil.copytree(kept, out, dirs_exist_ok=True)
        return ""

    return run


@cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    """Of this process, and removed with it."""
    return tempfile.TemporaryDirectory(prefix="kvknee-controls-")


def _place() -> Path:
    return Path(_folder().name)


_UNCHECKED = [
    Swap(reproduction, "_moved_engine", lambda *_: []),
    Swap(reproduction, "_ledger_differences", lambda *_: ()),
    Swap(reproduction, "_digest_words", lambda *_: []),
]


@cache
def _upgraded() -> Path:
    """A copy of trials/ whose pool lets go of the head of a request first."""
    folder = _place() / "package"
    shutil.copytree(Path(trials.__file__).resolve().parent, folder / "trials")
    with (folder / "trials" / "block_pool.py").open("a", encoding="utf-8") as source:
        source.write(_UPGRADE)
    return folder


@cache
def _recorded(scale: Scale) -> Path:
    """A recipe of one trial that was run with the engine as it is."""
    folder = _place() / scale
    folder.mkdir()
    spec, trace = _scene(scale)
    save_trace(trace, folder / "trace.parquet")
    where = str(folder / "trace.parquet")
    spec = spec.model_copy(update={"trace": spec.trace.model_copy(update={"path": where})})
    result = _quietly(spec, folder / "first", None)
    write_text(folder / "recipe.yaml", recipe_of(spec, trace, result, folder).model_dump_json())  # JSON is YAML
    return folder / "recipe.yaml"


def _quietly(spec: TrialSpec, out: Path, lock: Path | None) -> TrialResult:
    out.mkdir(exist_ok=True)
    with swapped(Swap(trials.worker, "say", lambda *_: None)):
        return run_trial(spec, out, read_locks(lock) if lock is not None else None)


def _beside(folder: Path, name: str, columns: list[str], source: str) -> Beside:
    table = pq.read_table(folder / "first" / source)
    write_whole(folder / name, lambda path: pq.write_table(table.select(columns or account_columns(table)), path))
    return Beside(file=name, sha256=file_digest(folder / name))


def recipe_of(spec: TrialSpec, trace: Trace, result: TrialResult, folder: Path) -> Recipe:
    """A recipe of one trial whose files lie in folder/first, beside trace.parquet; it promises allocation alone."""
    attempt = json.loads((folder / "first" / "attempt.json").read_text(encoding="utf-8"))
    where = Locator(relative="trace.parquet", absolute=str(folder / "trace.parquet"))
    return Recipe(
        name="controls", created_by="kvknee controls", evidence="modelled",
        outcome=Chosen(
            kind="flat", sentence="one trial", objective=OBJECTIVE, winner="control", tied=(), binding=""
        ),
        spec=spec, trace=where, hashes=result.hashes, trace_parts=trace_parts(trace),
        engine_identity=attempt["engine_identity"],
        ledger=tuple(
            ExpectedReplay(
                phase=r.phase, load=r.load, clock=r.clock, num_steps=r.observation.num_steps,
                rows_digest=r.ledger.rows_digest, time_mean=r.ledger.time_mean, peak=r.ledger.peak,
                peak_step=r.ledger.peak_step,
            )
            for r in result.replays
        ),
        latency="nothing is promised: allocation is what is compared", metrics=(), workload={}, verdicts=(),
        schedule=_beside(folder, "recipe.lock.parquet", list(LOCK_COLUMNS), "requests.parquet"),
        ledger_rows=_beside(folder, "recipe.ledger.parquet", [], "ledger.parquet"),
        environment={}, calibration={},
    )  # fmt: skip
