"""What a process imports before trials are forked from it: all that is heavy, nothing that starts a thread.

Only engines of ours are here. Others settle threads, devices and the environment for themselves when they are
imported, so they get an interpreter of their own each time.
"""

import importlib
import os
import sys
from collections.abc import Sequence

# The last four are imported late, by numpy, pyarrow and importlib, when a trial first needs them.
_ANY = ("trials.worker", "pyarrow.parquet", "pyarrow.compute", "numpy.ma", "email.parser", "email.feedparser")
FORKABLE: dict[str, tuple[str, ...]] = {
    "simulator": (*_ANY, "trials.engines.simulator"),
    "torch_paged": (
        *_ANY, "trials.engines.torch_engine", "trials.engines.torch_paged", "trials.engines.kernels.speed",
    ),
}  # fmt: skip
# Read and hashed once: what that makes, compiles and looks up is otherwise made anew in each process.
_A_SPEC = """{"engine": {"name": "simulator", "step_time": "roofline:h100-sxm"}, "model": "llama-3.1-8b",
"pool": {"bytes": "1GiB"}, "trace": {"path": "t"}, "measure": {"load": {"rate_scale": 1}},
"slo": "ttft:p99<1s;itl:p50<=50ms;qualify:ttft<1s;attainment>=99%"}"""
_ARROW_ALLOCATOR = "JE_ARROW_MALLOC_CONF"  # pyarrow's own jemalloc would start a thread as soon as it is loaded


def preload(engine: str) -> None:
    """Import what trials of this engine import. The environment must already say how many threads they use."""
    os.environ[_ARROW_ALLOCATOR] = "background_thread:false"
    if engine == "torch_paged":
        from trials.engines.kernels.threads import prepare_process

        prepare_process(int(os.environ["OMP_NUM_THREADS"]))
    for module in FORKABLE[engine]:
        importlib.import_module(module)
    del os.environ[_ARROW_ALLOCATOR]
    _keep_arrow_from_pandas()
    spec = importlib.import_module("trials.spec").TrialSpec.model_validate_json(_A_SPEC)
    importlib.import_module("trials.fingerprint").spec_hash(spec, "", None)


class _NoPandas:
    """Finds everything but pandas."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)


def _keep_arrow_from_pandas() -> None:
    """pyarrow looks for pandas once, when it makes its first array, and imports it (0.3 s) where it is installed.

    Trials of ours have no use for it, so it looks for it here, in vain, and never again.
    """
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)
