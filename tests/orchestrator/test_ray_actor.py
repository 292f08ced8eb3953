"""A slot's actor, without a Ray around it."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import ray_actor
from orchestrator.launch import Outcome
from orchestrator.ray_actor import Answer, SlotActor


def _order(key: str) -> Any:
    return SimpleNamespace(key=key, spec=None, delivery=None)


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> SlotActor:
    """One whose trials end at once, and tell whether they were asked to stop before they began."""

    def follow(spec: Any, out: Path, how: Any, stop: threading.Event) -> Any:
        yield "stopped" if stop.is_set() else "runs"
        yield Outcome(0, "itself", "", 0.0, "", ())

    made = object.__new__(SlotActor)
    made._stops, made._heard_s = {}, time.monotonic()
    monkeypatch.setattr(ray_actor, "follow", follow)
    monkeypatch.setattr(SlotActor, "_how", lambda self, order: None)
    monkeypatch.setattr(SlotActor, "_located", lambda self, spec, delivery: None)
    monkeypatch.setattr(SlotActor, "_answer", lambda self, outcome, out: Answer(None))
    return made


def test_a_cancel_that_comes_before_the_run_is_not_forgotten(actor: SlotActor) -> None:
    actor.cancel("0001-1")
    assert next(actor.run(_order("0001-1"))) == "stopped"


def test_an_attempt_that_has_answered_does_not_take_the_cancel_of_the_next_with_it(actor: SlotActor) -> None:
    """What went wrong: the first cleaned up after its answer was heard, and with it the second's cancel."""
    first = actor.run(_order("0001-1"))
    assert next(first) == "runs"
    assert isinstance(next(first), Answer)
    actor.cancel("0001-1")  # the second's, on its way in front of it
    assert list(first) == []  # only now is the first at its end
    second = actor.run(_order("0001-1"))
    assert next(second) == "stopped"
    assert isinstance(next(second), Answer)
    assert list(second) == []
    assert actor._stops == {}
