"""Fixtures for every room: where public traces are."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.public_traces import TRACES, folder
from trials.engines.kernels.threads import prepare_process

# Whoever runs the tests in the background hands an ignored SIGINT down; what is tested here is interrupted by it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before anything imports torch or numba: real tensors run on one thread in every test, as in a trial.
prepare_process(1)


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """The folder of public traces that KVKNEE_TRACES names (benchmarks/public_traces.py says what lies in it)."""
    at = folder(TRACES)
    if at is None:
        pytest.skip(f"{TRACES} names no folder of public traces")
    assert at.is_dir(), f"{TRACES}={at}: no such folder"
    return at


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """One private Ray a session, with two made-up GPUs (nothing computes on them)."""
    import ray

    from orchestrator.ray_session import start_ray

    os.environ["RAY_AUTH_MODE"] = "disabled"
    start_ray(None, cpus=4, gpus=2)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One MLflow database a session: making its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture(autouse=True)
def _denormals_as_found() -> Iterator[None]:
    """Real-tensor executions flush denormals in their thread; the next test finds them as they were."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def _every_block_comes_back() -> Iterator[None]:
    """Whatever a test did to the engines it built: in the end nothing is held and each block was freed once."""
    yield
    builders = sys.modules.get("tests.builders")
    built = builders.BUILT if builders is not None else []
    while built:
        builders.let_everybody_go(built.pop())
