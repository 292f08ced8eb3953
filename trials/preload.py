"""What a process imports before trials are forked from it: all that is heavy, nothing that starts a thread.

Only engines of ours are here. Others settle threads, devices and the environment for themselves when they are
imported, so they get an interpreter of their own each time.
"""

import importlib

FORKABLE: dict[str, tuple[str, ...]] = {
    "simulator": ("trials.worker", "trials.engines.simulator", "pyarrow.parquet"),
    "torch_paged": (
        "trials.worker", "pyarrow.parquet", "trials.engines.torch_engine", "trials.engines.torch_paged",
        "trials.engines.kernels.speed",
    ),
}  # fmt: skip


def preload(engine: str) -> None:
    """Import what trials of this engine import. The environment must already say how many threads they use."""
    if engine == "torch_paged":
        import os

        from trials.engines.kernels.threads import prepare_process

        prepare_process(int(os.environ["OMP_NUM_THREADS"]))
    for module in FORKABLE[engine]:
        importlib.import_module(module)
