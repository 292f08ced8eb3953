"""What the driver of a sweep works with: its folder, its executor, its tracker, its viewer."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.executors import Executor
from orchestrator.folder import SweepFolder
from orchestrator.progress import Viewer
from orchestrator.tracking import Tracker


@dataclass(frozen=True, slots=True)
class Rooms:
    """What the driver works with. `build` names the code that trials are sent with; `now_s` is the wall clock."""

    folder: SweepFolder
    executor: Executor
    tracker: Tracker
    viewer: Viewer
    build: str
    now_s: Callable[[], float] = time.time
