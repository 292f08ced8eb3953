"""Slots that are not alike: what a control is on one against another, and values as on a slot that gives the mean.

A hot or slow device outweighs a block size. Controls run on every slot, so what each slot gives is known; whatever
was measured there is divided by it once, before anything is compared, and nobody behind this sees a raw value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import TypeVar

from search_spaces.candidates import Measured
from search_spaces.objective import Score
from search_spaces.proofs import Again
from trials.spec import PoolPolicy

Effects = Mapping[str, float]  # slot -> what it gives, over the mean of all slots
_OnSlot = TypeVar("_OnSlot", Measured, Again)
_ROUNDS = 32  # until what candidates are and what slots give no longer move one another


def slot_effects(measured: Sequence[Measured]) -> dict[str, float]:
    """From candidates that were measured on more than one slot on one window; empty where none was.

    A candidate that was on some of the slots alone is held against what those give, not against the mean of all.
    """
    seen: dict[tuple[PoolPolicy, int], dict[str, float]] = {}
    for trial in sorted(measured, key=lambda m: m.number):
        if trial.slot and trial.score.value is not None:
            seen.setdefault((trial.policy, trial.repeat), {}).setdefault(trial.slot, trial.score.value)
    same = [values for values in seen.values() if len(values) > 1 and min(values.values()) > 0]
    effects = dict.fromkeys(sorted({slot for values in same for slot in values}), 1.0)
    for _ in range(_ROUNDS if effects else 0):
        level = [fmean(value / effects[slot] for slot, value in values.items()) for values in same]
        gives = {
            slot: median(values[slot] / mean for values, mean in zip(same, level, strict=True) if slot in values)
            for slot in effects
        }
        effects = {slot: share / fmean(gives.values()) for slot, share in gives.items()}
    return effects


def levelled(trials: Sequence[_OnSlot], effects: Effects) -> list[_OnSlot]:
    """The same trials, each as it would be on a slot that gives the mean; where a slot is not known, as it is."""
    return [replace(t, score=_over(t.score, effects[t.slot])) if t.slot in effects else t for t in trials]


def _over(score: Score, effect: float) -> Score:
    return replace(
        score,
        value=None if score.value is None else score.value / effect,
        less_than=None if score.less_than is None else score.less_than / effect,
        phases=tuple(replace(phase, value=phase.value / effect) for phase in score.phases),
    )


def effect_words(effects: Effects, min_gain: float) -> str | None:
    """Said where slots differ by more than what a candidate has to gain."""
    if not effects or max(effects.values()) / min(effects.values()) - 1 <= min_gain:
        return None
    each = ", ".join(f"{slot} {share - 1:+.1%}" for slot, share in effects.items())
    return (
        f"slots differ by more than min_gain, by their controls: {each}; every value is given as on a slot that "
        "gives the mean"
    )
