"""WHERE trials run and what is remembered: the only package with side effects.

`orchestrator.load(DIR)` gives a sweep's folder as tidy pandas frames; pandas is imported when it is called.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.frames_load import SweepFrames

__all__ = ["load"]


def load(folder: "Path | str") -> "SweepFrames":
    """A sweep's folder as tidy frames: `trials`, `replays`, `requests`, `ledger`, and its `outcome`.

    Works while the sweep runs. SpecError where the folder holds none.
    """
    from orchestrator.frames_load import load as read

    return read(folder)
