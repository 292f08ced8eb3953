"""Slots that are not alike: what a control is on one against another, and differences taken within a slot first.

A hot or slow device outweighs a block size. Controls run on every slot, so each slot's ratio to their mean is
known; two candidates are compared on a slot that both were on, and only where there is none are their values
divided by those ratios.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from search_spaces.candidates import Candidate

Effects = Mapping[str, float]  # slot -> what it gives, over the mean of all slots


def slot_effects(candidates: Sequence[Candidate]) -> dict[str, float]:
    """From candidates that were measured on more than one slot on one window; empty where none was."""
    ratios: dict[str, list[float]] = {}
    for candidate in candidates:
        for repeat in {r for r, _ in candidate.on_slots}:
            seen = {slot: value for (r, slot), value in candidate.on_slots.items() if r == repeat}
            mean = fmean(seen.values())
            if len(seen) > 1 and mean > 0:
                for slot, value in seen.items():
                    ratios.setdefault(slot, []).append(value / mean)
    return {slot: median(found) for slot, found in sorted(ratios.items()) if median(found) > 0}


def adjusted(candidate: Candidate, effects: Effects) -> dict[int, float]:
    """Values by window, each as it would be on a slot that gives the mean."""
    return {r: v / effects.get(candidate.trials[r].slot, 1.0) for r, v in candidate.values.items()}


def paired(one: Candidate, other: Candidate, effects: Effects) -> tuple[dict[int, float], dict[int, float]]:
    """Both by window, to be compared: on a slot that both were on, else adjusted."""
    first, second = adjusted(one, effects), adjusted(other, effects)
    for repeat in first.keys() & second.keys():
        shared = one.slots_at(repeat) & other.slots_at(repeat)
        if shared:
            first[repeat] = fmean(one.on_slots[repeat, slot] for slot in shared)
            second[repeat] = fmean(other.on_slots[repeat, slot] for slot in shared)
    return first, second


def effect_words(effects: Effects, min_gain: float) -> str | None:
    """Said where slots differ by more than what a candidate has to gain."""
    if not effects or max(effects.values()) / min(effects.values()) - 1 <= min_gain:
        return None
    each = ", ".join(f"{slot} {share - 1:+.1%}" for slot, share in effects.items())
    return f"slots differ by more than min_gain, by their controls: {each}; candidates are compared within a slot"
