"""`kvknee controls`: the eight failures provoked on purpose, and the guard that must catch each.

Every failure runs three ways, first in the smallest case that shows it and then on a generated trace: without the
fault nothing is said against the trial; with it the named check objects; with that check switched off the fault
passes, so it is that check which holds it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from orchestrator import control_faults as faults
from orchestrator.control_scenes import SCALES, Scale, make_spec, open_engine, small_trace
from orchestrator.control_upgrade import upgrade
from trials.engine import Work
from trials.recount import check_row

BOUND_LENGTHS = (1, 15, 16, 17, 63)


@dataclass(frozen=True, slots=True)
class Control:
    """`check` names production code; its objection contains `says`."""

    name: str
    check: str
    says: str
    look: faults.Look


CONTROLS = (
    Control("allocator reserve counted as useful cache", "pool residual (trials.worker)",
            "on the device", faults.reserve_as_cache),
    Control("a static packed batch hiding churn pressure", "block flow (trials.churn)",
            "block flow", faults.static_batch),
    Control("the smallest block winning memory and losing latency", "SLO clause (search_spaces.objective)",
            "itl:p99", faults.smallest_block),
    Control("every non-contiguous block called wasted", "waste against failed admissions (trials.pressure)",
            "failed admissions explain", faults.scattered_as_waste),
    Control("a boundary length allocating an extra empty block", "recount of tables (trials.ledger)",
            "it is to have", faults.extra_block),
    Control("sharing that looks free until many children diverge together", "divergence bound (trials.holding)",
            "does not hold", faults.divergence),
    Control("high occupancy producing slower streams", "qualification (trials.latency, search_spaces.objective)",
            "attainment", faults.high_occupancy),
    Control("an engine upgrade silently changing allocation", "engine hash and step-locked ledger (reproduce)",
            "block_pool.py", upgrade),
)  # fmt: skip


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Provoked(_Model):
    """One failure at one scale: what was said each way. `holds`: silence, the named check's objection, silence."""

    failure: str
    scale: Scale
    check: str
    clean: tuple[str, ...]
    mutant: tuple[str, ...]
    check_off: tuple[str, ...]
    caught: bool  # by the named check
    holds: bool


class ControlsReport(_Model):
    """All provoked failures, and whether each was caught by its guard alone."""

    provoked: tuple[Provoked, ...]
    bound: tuple[str, ...]  # one line a length
    exit_code: Literal[0, 1]


def provoke(control: Control, scale: Scale) -> Provoked:
    """Three ways. Whatever a check raises comes through."""
    clean = control.look(scale, False, True)
    mutant = control.look(scale, True, True)
    off = control.look(scale, True, False)
    caught = any(control.says in said for said in mutant)
    return Provoked(
        failure=control.name, scale=scale, check=control.check, clean=tuple(clean), mutant=tuple(mutant),
        check_off=tuple(off), caught=caught, holds=not clean and caught and not off,
    )  # fmt: skip


def bound_lines() -> Iterator[str]:
    """The bound itself, on an engine that holds n tokens: ceil(n / 16) blocks, and a recount that agrees."""
    for tokens in BOUND_LENGTHS:
        trace = small_trace([(0, tokens, 2)])
        engine = open_engine(make_spec(blocks=8), trace)
        engine.start(cold=True)
        engine.add(Work(0, tokens, 2))
        engine.step()
        (group,), (row,) = engine.audit().groups, engine.ledger()
        said = check_row(row, group, engine.facts.groups[0])
        blocks = len(group.tables[0])
        slack = blocks * 16 - group.held_tokens[0]
        fine = not said and group.held_tokens[0] == tokens and 0 <= slack < 16 and row.tail_slack_tokens == slack
        verdict = "PASS: tail slack stays below one block" if fine else "FAIL: tail slack reaches a block"
        yield f"{verdict}: n = {tokens}, {blocks} block{'s' * (blocks > 1)} of 16, slack {slack}"


def run_controls() -> ControlsReport:
    """All eight at both scales. exit_code 0 only if every one of them holds, and the bound with them."""
    provoked = tuple(provoke(control, scale) for control in CONTROLS for scale in SCALES)
    bound = tuple(bound_lines())
    fine = all(p.holds for p in provoked) and all(line.startswith("PASS") for line in bound)
    return ControlsReport(provoked=provoked, bound=bound, exit_code=0 if fine else 1)
