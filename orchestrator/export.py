"""`kvknee export`: results of a sweep or a trial in the words of other tools; docs/metrics.md has the names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.export_aiperf import aiperf_csv, aiperf_json
from orchestrator.export_otel import otel
from orchestrator.export_prometheus import prometheus
from orchestrator.exported import Exported, gather
from orchestrator.folder import write_text
from trials.units import SpecError, nearest


@dataclass(frozen=True, slots=True)
class Format:
    """`together`: one file of all trials, which is OUT; else `each`: a file called `name` a trial, in OUT."""

    together: Callable[[Sequence[Exported]], str] | None = None
    each: Callable[[Exported], str] | None = None
    name: str = ""


FORMATS: dict[str, Format] = {
    "vllm": Format(together=prometheus),
    "otel": Format(together=otel),
    "aiperf-json": Format(each=aiperf_json, name="profile_export_aiperf.json"),
    "aiperf-csv": Format(each=aiperf_csv, name="profile_export_aiperf.csv"),
}


def export(folder: Path, how: str, out: Path, numbers: Sequence[int] = ()) -> list[Path]:
    """Write a folder's results -> the files written, each whole. SpecError where format or trial is unknown."""
    if how not in FORMATS:
        raise SpecError(f"no format {how!r}; {nearest(how, FORMATS)}")
    chosen = FORMATS[how]
    if chosen.together is not None and out.is_dir():
        raise SpecError(f"{out}: a folder, but {how} is one file; name the file")
    if chosen.each is not None and out.is_file():
        raise SpecError(f"{out}: a file, but {how} is one file a trial; name a folder")
    exported = gather(folder, numbers)
    if chosen.together is not None:
        texts = {out: chosen.together(exported)}
    else:
        assert chosen.each is not None
        texts = {out / f"{e.number:04d}" / chosen.name: chosen.each(e) for e in exported}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return list(texts)
