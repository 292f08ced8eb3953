"""`kvknee calibrate`: the measuring process started as a trial's is, and its table in words."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestrator.launch import environment
from orchestrator.package import install, pack
from orchestrator.resolve import load_trial
from orchestrator.targets import target_file
from trials.spec import MODELLED, TrialSpec
from trials.step_tables import StepTable, load_table
from trials.table_facts import Residual
from trials.trace import write_whole
from trials.units import SpecError

_MEASURE = ("-P", "-m", "trials.calibrate")
_TAIL = 5  # lines of the process's last words


def calibrate(
    path: Path, out: Path, block_sizes: Sequence[int], rounds: int, sets: Sequence[str] = ()
) -> StepTable:
    """Measure the engine of a trial's YAML and write its table to `out`. SpecError where it cannot be measured."""
    spec = load_trial(path, sets)
    if spec.engine.name in MODELLED:
        raise SpecError(
            f"engine {spec.engine.name} has no step times of its own to measure; name one that is measured, for "
            "example torch_paged"
        )
    target_file(out)
    if out.exists():
        load_table(out)  # nothing but a table is written over
    return measured(spec, out, block_sizes or default_sizes(spec), rounds)


def default_sizes(spec: TrialSpec) -> list[int]:
    """A quarter of the spec's block size, itself, and four times it: enough to tell what a block costs."""
    size, longest = spec.policy.block_size, spec.policy.max_model_len
    return sorted({max(1, size // 4), size, min(4 * size, longest)})


def measured(spec: TrialSpec, out: Path, block_sizes: Sequence[int], rounds: int) -> StepTable:
    """In a process of the engine's own interpreter; its progress is passed on to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "spec.json", Path(folder) / "table.json"
        given.write_text(spec.model_dump_json(), encoding="utf-8")
        sizes = ",".join(str(size) for size in block_sizes)
        command = [spec.engine.python or sys.executable, *_MEASURE, str(given), str(made), sizes, str(rounds)]
        code, words = _follow(command, spec, folder)
        if code:
            raise SpecError("\n".join(words[-_TAIL:]) or f"the measuring process ended with {code} and no words")
        text = made.read_bytes()
    write_whole(out, lambda temporary: temporary.write_bytes(text))
    return load_table(out)


def _follow(command: Sequence[str], spec: TrialSpec, folder: str) -> tuple[int, list[str]]:
    """(exit code, what was said beside progress)."""
    said: list[str] = []
    with subprocess.Popen(
        command, env=environment(spec, install(pack())), cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            text = _progress(line)
            if text is None:
                said.append(line.rstrip())
            else:
                print(text, file=sys.stderr, flush=True)
    return process.returncode, said


def _progress(line: str) -> str | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return str(document["progress"]) if isinstance(document, dict) and "progress" in document else None


def table_lines(table: StepTable) -> list[str]:
    """What was measured, how far it is off, and what a block costs."""
    region = table.region
    lines = [
        f"{table.model} on {table.device or 'an unnamed device'}, {table.notes}, engine {table.engine_hash[:12]}"
    ]
    if region is not None:
        lines.append(
            f"measured: up to {region.num_decodes:g} decoding, {region.mean_context:g} tokens each, "
            f"{region.tokens:g} computed a step, blocks of {', '.join(map(str, region.block_sizes))}"
        )
    lines.append(f"price of a block: {table.block_term.words}")
    return lines + [_residual(r) for r in table.residuals]


def _residual(r: Residual) -> str:
    which = "held out" if r.held_out else "fitted"
    return (
        f"  {r.kind:<8}{which:<9}{r.steps:>6} steps: median {r.median:+.1%}, nine of ten within {r.p90_abs:.1%}, "
        f"summed {r.of_total:+.1%}"
    )
