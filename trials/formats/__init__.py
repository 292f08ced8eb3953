"""Public trace formats: one small file each, `read(paths) -> Trace`. Import goes by format, never by file name."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from trials.trace import Trace
from trials.units import SpecError, nearest

Reader = Callable[[Sequence[Path]], Trace]

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
}


def reader(name: str) -> Reader:
    """The reader of a format; SpecError with the known names where there is none."""
    if name not in FORMATS:
        raise SpecError(f"format {name!r} does not exist; {nearest(name, FORMATS)}")
    return cast(Reader, importlib.import_module(FORMATS[name]).read)
