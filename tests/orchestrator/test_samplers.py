"""What samplers are shown of the past is what Optuna itself would make of it, and nothing of it is copied."""

import random
from pathlib import Path

import optuna
import pytest
from fake_rooms import SWEEP, make_sweep
from optuna.trial import TrialState, create_trial

from orchestrator import samplers
from orchestrator.past import Past

VARIED = """
trials: 60
space: {vary: {policy.block_size: {powers_of_two: [1, 64]}, policy.watermark: {range: [0, 0.2]},
  policy.eviction: {one_of: [lru, fifo]}}}
"""
MIXED = "\n".join(line for line in SWEEP.splitlines() if not line.startswith("space:")) + VARIED


def past_of(space, n: int) -> list[Past]:
    """Of made-up candidates; each third has a second bound, the last two run."""
    r = random.Random(n)
    found = []
    for number in range(n):
        params = {d.field: r.choice(d.values) if d.values else r.uniform(d.low, d.high) for d in space.dimensions}
        bounds = {"ttft": r.random() - 0.5} | ({"itl": r.random() - 0.5} if number % 3 == 0 else {})
        answered = number < n - 2
        found.append(Past(params, (r.random(),) if answered else None, bounds if answered else {}, not answered))
    return found


def by_optuna(space, past, axes):
    """The same trials as Optuna makes and copies them."""
    names = sorted({name for p in past for name in p.constraints})
    made = []
    for p in past:
        params = {
            d.field: p.params[d.field] if d.categorical or not d.values else d.values.index(p.params[d.field])
            for d in space.dimensions
        }
        bounds = {name: max(-1.0, min(p.constraints.get(name, -1.0), samplers.MOST_OVER)) for name in names}
        answered = p.values is not None
        made.append(create_trial(
            state=TrialState.COMPLETE if answered else TrialState.RUNNING, values=p.values, params=params,
            distributions=axes, constraints=bounds if answered else None,
            system_attrs=samplers._generation(p.before),
        ))  # fmt: skip
    return made


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_proposals_are_those_of_trials_that_optuna_made_and_copied(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = make_sweep(tmp_path, text=MIXED).space
    past = past_of(space, 60)
    quick = [samplers._named(sampler, space, past, seed, ("maximize",)) for seed in range(6)]
    monkeypatch.setattr(samplers, "_trials", by_optuna)
    assert quick == [samplers._named(sampler, space, past, seed, ("maximize",)) for seed in range(6)]


def test_the_past_is_not_copied_and_not_changed(tmp_path: Path) -> None:
    space = make_sweep(tmp_path, text=MIXED).space
    axes = {d.field: samplers._axis(d) for d in space.dimensions}
    told = samplers._trials(space, past_of(space, 20), axes)
    before = [dict(trial.__dict__) for trial in told]
    study = optuna.create_study(sampler=samplers.SAMPLERS["tpe"](0))
    study.add_trials(list(told))
    study.ask(axes)
    assert all(
        kept.params is given.params for kept, given in zip(study.get_trials(deepcopy=False), told, strict=False)
    )
    assert [trial.__dict__ for trial in told] == before
