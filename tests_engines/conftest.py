"""These tests need the engines' own environment."""

import importlib.util

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if importlib.util.find_spec("vllm") is None:
        raise pytest.UsageError("no vLLM in this interpreter: run `make test-engines`, which builds .venv-engines")
