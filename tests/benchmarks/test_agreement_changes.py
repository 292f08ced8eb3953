"""The broken rules stand in today's scheduler and are put back; the loads for them are what they say."""

import importlib

import pytest

from benchmarks.agreement_changes import FLAW, Changed
from benchmarks.agreement_pair import Driver, apply
from benchmarks.agreement_rules import RULES, control_cases
from benchmarks.agreement_views import Observer, OurView


def method_of(change: Changed) -> object:
    module, _, path = change.place.partition(":")
    owner, _, method = path.partition(".")
    return vars(getattr(importlib.import_module(module), owner))[method]


@pytest.mark.parametrize("change", [*RULES, *FLAW], ids=lambda change: change.rule)
def test_a_rule_is_broken_while_asked_and_whole_again_afterwards(change: Changed) -> None:
    before = method_of(change)
    with change.applied():
        assert method_of(change) is not before
    assert method_of(change) is before


def test_at_least_twenty_rules_each_told_apart() -> None:
    assert len({change.rule for change in RULES}) == len(RULES) >= 20
    assert len({(change.place, change.changes) for change in RULES if "priorit" not in change.rule}) >= 20


def test_a_place_that_is_gone_is_an_error() -> None:
    gone = Changed("gone", "trials.serving:Serving.preempt", (("no such line", "pass"),))
    with pytest.raises(LookupError, match="0 times 'no such line'"), gone.applied():
        pass


def test_control_loads_preempt_hit_evict_and_abort() -> None:
    """Without vLLM: our engine alone drains them, and every kind of event is there to be seen."""
    seen = {"preempted": 0, "hit": 0, "evicted": 0, "aborted": 0, "forks": 0}
    for case in control_cases():
        observer, driver = Observer(OurView(case)), Driver(case)
        engine = observer.view.engine
        engine.start(cold=True)
        while not driver.over:
            moment = driver.moment()
            seen["aborted"] += apply(engine, case, moment).count(True)
            step = observer.step()
            if step is not None:
                driver.stepped(step)
                seen["preempted"] += len(step.preempted)
                seen["hit"] += sum(tokens for _, tokens in step.admitted)
                seen["evicted"] += step.ledger.evicted_blocks
                seen["forks"] += len(step.started)
        assert not driver.stuck
        assert engine.step() is None
        engine.check()
    assert min(seen.values()) > 10, seen
