"""What the process itself occupies: now, at its peak, and without memory that was freed but not given back."""

import contextlib
import ctypes
import gc
import os
from pathlib import Path

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Resident set size of this process."""
    if _STATM.exists():  # Linux: psutil reads the same file
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import psutil

    return int(psutil.Process().memory_info().rss)


def release_freed_memory() -> None:
    """Collect garbage and give freed heap back, so that what is made next does not hide in it.

    glibc only; elsewhere freed memory stays and shows as a negative residual.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class PeakResident:
    """Largest resident size since `reset`: the kernel's high-water mark where Linux lets a process clear its
    own, else the largest that `look` has seen."""

    def __init__(self) -> None:
        self.bytes = 0
        self._cleared = False

    def reset(self) -> None:
        try:
            _CLEAR.write_text("5")
            self._cleared = True
        except OSError:
            self._cleared = False
        self.bytes = resident_bytes()

    def look(self) -> int:
        """Bring `bytes` up to date; returns the size now."""
        now = resident_bytes()
        self.bytes = max(self.bytes, now, _high_water() if self._cleared else 0)
        return now


def _high_water() -> int:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
