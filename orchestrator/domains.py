"""What an engine accepts, asked of it in its own interpreter before anything runs, and the space cut down to that.

What it still refuses later is a refused trial in its own words; nothing is changed in silence.
"""

import json
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from orchestrator.launch import WORKER, environment, interpreter
from orchestrator.package import install, pack
from search_spaces.dimension import Dimension
from search_spaces.space import Space, without_dead
from trials.spec import TrialSpec
from trials.units import SpecError

ASKED = ("transformers_cb", "vllm")  # our own engines take any block size and have every knob
_DEADLINE_S = 300.0


class EngineSays(BaseModel):
    """`worker --describe` in short: block sizes (tokens), and fields of the policy that change nothing there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    minimum: int
    multiple_of: int
    source: str
    not_applicable: tuple[str, ...] = ()

    def accepts(self, block_size: int) -> bool:
        """Whether the engine would take that block size."""
        return block_size >= self.minimum and block_size % self.multiple_of == 0


def ask(spec: TrialSpec) -> EngineSays | None:
    """What the spec's engine says, from the process that a trial would get; None for one that takes everything.

    SpecError, in the engine's words, where that interpreter cannot say.
    """
    if spec.engine.name not in ASKED:
        return None
    said = _describe(spec)
    return EngineSays(**said["block_sizes"], not_applicable=tuple(said["not_applicable"]))


def _describe(spec: TrialSpec) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(spec.model_dump_json(), encoding="utf-8")
        try:
            command = [interpreter(spec), *WORKER, "--describe", str(path)]
            env = environment(spec, install(pack()))
            ended = subprocess.run(
                command, env=env, cwd=folder, capture_output=True, text=True, timeout=_DEADLINE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SpecError(f"engine {spec.engine.name} cannot be asked what it accepts: {error}") from None
    if ended.returncode:
        last = (ended.stderr.strip() or f"exit code {ended.returncode}").splitlines()[-1]
        raise SpecError(f"engine {spec.engine.name}: {last.removeprefix('error: ')}")
    said: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return said


def cut(space: Space, says: EngineSays | None) -> Space:
    """The space without block sizes that the engine refuses and knobs that it does not have, each with a note."""
    if says is None:
        return space
    kept, notes = [], list(space.notes)
    for dimension in space.dimensions:
        if dimension.field in says.not_applicable:
            notes.append(f"policy.{dimension.field} left out: it changes nothing in {space.base.engine.name}")
        elif dimension.field == "block_size":
            kept.append(_block_sizes(dimension, says, notes))
        else:
            kept.append(dimension)
    return without_dead(replace(space, dimensions=tuple(kept), notes=tuple(notes)))


def _block_sizes(dimension: Dimension, says: EngineSays, notes: list[str]) -> Dimension:
    takes = f"{says.source} takes multiples of {says.multiple_of} from {says.minimum} on"
    if not dimension.values:
        return dimension
    good = tuple(v for v in dimension.values if says.accepts(int(v)))
    if not good:
        raise SpecError(f"no block size of the space is one that the engine takes: {takes}")
    if len(good) < len(dimension.values):
        left = ", ".join(str(v) for v in dimension.values if v not in good)
        notes.append(f"block sizes left out, {takes}: {left}")
    return replace(dimension, values=good)
