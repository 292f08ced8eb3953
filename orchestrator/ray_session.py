"""Being connected to Ray: to a cluster that is there, or to a private one of this machine."""

import contextlib
import os
import socket
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from orchestrator.reach import require_reachable

_STORE_BYTES = 100_000_000  # results are KB to MB; Ray would take 30 % of the memory


def start_ray(address: str | None, cpus: int, gpus: int | None = None) -> bool:
    """Connect; True when a local cluster was started here, and is ours to end.

    Without an address a private one is started, with the token authentication off: Ray would otherwise write a
    token into the user's home, and nothing but this machine's loopback can reach the cluster.
    """
    # What Ray prints of workers and nodes that die is pages long, and is read when ray is imported: here it comes
    # back as Lost, in a line.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")
    import ray

    if address is not None:
        require_reachable(address)
    if ray.is_initialized():
        return False
    quiet = {"log_to_driver": False, "configure_logging": True, "logging_level": "error"}
    if address is not None:
        ray.init(address=address, **quiet)
        return False
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with importable():
        ray.init(
            address="local",
            num_cpus=max(cpus, os.cpu_count() or 1),
            num_gpus=gpus,
            include_dashboard=False,
            object_store_memory=_STORE_BYTES,
            **quiet,
        )
    return True


@contextlib.contextmanager
def importable() -> Iterator[None]:
    """Ray's processes must find this package, also when it is used from a checkout and another folder."""
    root, before = str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH")
    if root in sysconfig.get_paths().values():  # installed: never before the standard library
        yield
        return
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [before])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def cluster_says(address: str, timeout_s: float = 5.0) -> str:
    """What the cluster at HOST:PORT or ray://HOST:PORT has. Raises ConnectionError with what to look at."""
    import ray

    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        raise ConnectionError(f"{address!r} is no cluster address; write it like 10.0.0.5:6379")
    try:  # Ray itself tries for minutes
        socket.create_connection((host, int(port)), timeout_s).close()
    except OSError as error:
        raise ConnectionError(
            f"nothing answers at {address} ({error}); is `ray start --head` running there?"
        ) from None
    try:
        ours = not ray.is_initialized()
        start_ray(address, 0)
    except Exception as error:
        hint = "every node and client needs RAY_AUTH_MODE=token and the same token, or disabled everywhere"
        raise ConnectionError(f"{address} answers but does not let us in: {error}; {hint}") from error
    try:
        have, nodes = ray.cluster_resources(), [n for n in ray.nodes() if n["Alive"]]
        return (
            f"{len(nodes)} nodes, {have.get('CPU', 0):g} CPUs, {have.get('GPU', 0):g} GPUs, Ray {ray.__version__}"
        )
    finally:
        if ours:
            ray.shutdown()
