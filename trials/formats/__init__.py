"""Public trace formats: one small file each, `read(paths) -> Trace` and, for some, `write(trace, path)`.

Import goes by format, never by file name. The list is read to print --help, so nothing heavy is imported here.
"""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from trials.units import SpecError, nearest

if TYPE_CHECKING:
    from trials.formats.losses import Exported
    from trials.trace import Trace

Writer = Callable[["Trace", Path], "Exported"]
Reader = Callable[[Sequence[Path]], "Trace"]

FORMATS = {
    "azure": "trials.formats.azure",
    "mooncake": "trials.formats.mooncake",
    "lengths": "trials.formats.lengths",
    "vidur": "trials.formats.vidur",
    "weka": "trials.formats.weka",
    "bailian": "trials.formats.bailian",
    "burstgpt": "trials.formats.burstgpt",
    "aiperf-dag": "trials.formats.aiperf_dag",
    "blis": "trials.formats.blis",
    "otel": "trials.formats.otel",
    "vllm-timed": "trials.formats.vllm_timed",
    "aiperf-mooncake": "trials.formats.aiperf_mooncake",
    "guidellm": "trials.formats.guidellm",
}
WRITTEN = ("azure", "mooncake", "vllm-timed", "aiperf-mooncake", "guidellm")
OWN_CLOCKS = ("weka", "aiperf-dag")  # every session counts from its own start


def reader(name: str) -> Reader:
    """The reader of a format; SpecError with the known names where there is none."""
    if name not in FORMATS:
        raise SpecError(f"format {name!r} does not exist; {nearest(name, FORMATS)}")
    return cast("Reader", importlib.import_module(FORMATS[name]).read)


def writer(name: str) -> Writer:
    """The writer of a format; SpecError with the known names where there is none."""
    if name not in WRITTEN:
        what = "can be read but not written" if name in FORMATS else "does not exist"
        raise SpecError(f"format {name!r} {what}; {nearest(name, WRITTEN)}")
    return cast("Writer", importlib.import_module(FORMATS[name]).write)
