"""These tests need the engines' own environment."""

import gc
import importlib.util
from collections.abc import Callable

import pytest

_UNFREEZE: Callable[[], None] = gc.unfreeze


def pytest_configure(config: pytest.Config) -> None:
    if importlib.util.find_spec("vllm") is None:
        raise pytest.UsageError("no vLLM in this interpreter: run `make test-engines`, which builds .venv-engines")


@pytest.fixture(autouse=True)
def heap_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that closes thaws the heap that vLLM froze, to be rid of its own rings. A trial opens one and ends;
    here dozens follow one another, and each would have all of torch and vLLM looked through eight times."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


def pytest_sessionfinish() -> None:
    _UNFREEZE()
