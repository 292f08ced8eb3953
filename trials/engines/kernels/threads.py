"""Thread counts and cache folder of a fresh process: what must be settled before torch and numba are imported."""

import os
import sys
import tempfile
from pathlib import Path

from trials.units import SpecError

_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def prepare_process(threads: int) -> None:
    """Fix this process's thread pools at `threads` and say where compiled kernels are kept.

    Both libraries read these variables once, on import, so this comes first; SpecError where it comes too late
    to have an effect. numba's own work-queue layer is three times slower than OpenMP on the same call, so
    OpenMP is required. Compiled kernels lie beside their source; where that folder may not be written they go
    to the temporary folder, never to the user's home.
    """
    if threads < 1:
        raise SpecError(f"threads: {threads} is not a number of threads; write 1 or more")
    wanted = {name: str(threads) for name in _COUNTS} | {"NUMBA_THREADING_LAYER": "omp"}
    late = [name for name in ("torch", "numba") if name in sys.modules]
    differing = [
        f"{name}={os.environ.get(name, 'unset')}" for name in wanted if os.environ.get(name) != wanted[name]
    ]
    if late and differing:
        raise SpecError(
            f"threads: {threads} cannot be set any more, {' and '.join(late)} are imported already "
            f"({', '.join(differing)}); call prepare_process first, or start the process with these variables"
        )
    os.environ.update(wanted)
    here = Path(__file__).parent
    if "NUMBA_CACHE_DIR" not in os.environ and not os.access(here, os.W_OK):
        os.environ["NUMBA_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / f"kvknee-kernels-{os.getuid()}")
