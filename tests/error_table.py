"""docs/errors.md, made by provoking every error path of the command line: `python -m tests.error_table`.

Each case is typed as a user would, in an empty folder that holds a good trace and good YAML files; what comes back
is the table. The test beside it provokes them again and compares.
"""

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner

PAGE = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
HEAD = """# What kvknee answers when it cannot do what was asked

Made by `python -m tests.error_table`, which provokes each case; a test compares this page with what it prints.
Exit codes: 0 done, 1 our fault (with the path of a traceback), 2 bad input, 3 no feasible candidate, or refused,
4 did not reproduce, builds differ, or the recipe is stale, 5 a ledger does not balance, 130 interrupted, resumable.
With `--json` the same words come as `{"error": ..., "exit_code": ...}` on stdout. Nothing is left half written.

"""
TRIAL = """engine: {name: simulator, step_time: roofline:h100-sxm}
model: llama-3.1-8b
pool: {bytes: 1GiB}
policy: {max_model_len: 2048}
trace: {path: t.parquet}
slo: "ttft:p99<500ms;itl:p99<50ms"
"""
SWEEP = TRIAL + "space: block_size\nrepeats: 1\ncontrols: []\nexecutor: {kind: process, slots: 1}\ntracking: null\n"


@dataclass(frozen=True)
class Case:
    """What is typed; `says` must be in the answer; `disk`: what the disk answers when a file is written."""

    kind: str
    typed: str
    says: str
    exit_code: int = 2
    disk: int = 0


CASES = (
    Case("bad verb", "trail t.yaml", "Did you mean 'trial'"),
    Case("bad flag", "run --bogus s.yaml", "No such option: --bogus"),
    Case("missing argument", "trial", "Missing argument"),
    Case("bad file", "run absent.yaml", "no such file"),
    Case("bad file", "trial t.parquet", "not"),
    Case("bad file", "trial list.yaml", "a mapping of keys is needed"),
    Case("bad file", "trial broken.yaml", "broken.yaml"),
    Case("bad file", "trace import azure absent.csv -o new.parquet", "no such file"),
    Case("bad file", "trace describe t.yaml", "not a whole trace file"),
    Case("bad file", "reproduce absent.yaml", "no such file"),
    Case("bad file", "reproduce t.yaml", "not a recipe"),
    Case("bad file", "check t.yaml --trace t.parquet", "not a recipe"),
    Case("bad file", "diff absent.yaml t.yaml --trace t.parquet", "no such file"),
    Case("bad file", "trial t.yaml --set engine.step_time=table:absent.json", "absent.json"),
    Case("a folder for a file", "trial full", "this is a folder (it holds s.yaml, t.yaml)"),
    Case("a folder for a file", "reproduce empty", "a YAML file is needed"),
    Case("a folder for a file", "trace describe full", "a trace (parquet) is needed"),
    Case("a folder for a file", "trace import azure full -o new.parquet", "a trace file of another tool is needed"),
    Case("a folder for a file", "diff t.yaml t.yaml --trace full", "a trace (parquet) is needed"),
    Case("a folder for a file", "trial t.yaml --set engine.step_time=table:full", "a table (JSON) is needed"),
    Case("a folder for a file", "trace generate chat -o full", "as full/NAME"),
    Case("bad folder", "resume empty", "not the folder of a sweep"),
    Case("bad folder", "status empty", "not the folder of a sweep"),
    Case("bad folder", "report absent", "not the folder of a sweep"),
    Case("bad unit", "trial t.yaml --set pool.bytes=16G", "ambiguous unit"),
    Case("bad unit", "trial t.yaml --set pool.bytes=lots", "not a number with a unit"),
    Case("bad unit", "trial t.yaml --set trace.warmup=60", "has no unit"),
    Case("bad unit", "trace import azure a.csv -o new.parquet --spread 3", "has no unit"),
    Case("bad key", "trial t.yaml --set polcy.block_size=8", "did you mean 'policy'"),
    Case("bad key", "trial s.yaml", "key of a sweep"),
    Case("bad name", "trial t.yaml --set engine.name=simulater", "did you mean 'simulator'"),
    Case("bad name", "trial t.yaml --set model=llama-3.1-8", "did you mean 'llama-3.1-8b'"),
    Case("bad name", "trial t.yaml --set policy.eviction=lrru", "lru"),
    Case("bad name", "bound t.parquet --engine roofline:h100", "did you mean 'h100-sxm'"),
    Case("bad name", "trace import azur a.csv -o new.parquet", "did you mean 'azure'"),
    Case("bad name", "trace generate chatt -o new.parquet", "did you mean 'chat'"),
    Case("bad SLO", "trial t.yaml --set slo=ttft:p99", "ttft:p99"),
    Case("bad SLO", "trial t.yaml --goodput ttft=500", "ttft=500"),
    Case("bad value", "trial t.yaml --set policy.block_size=0", "block_size"),
    Case("bad value", "trial t.yaml --set pool.blocks=10", "exactly one of"),
    Case("bad value", "trial t.yaml --set engine.args.stands_for=abc", "or leave stands_for out"),
    Case("bad value", "trial t.yaml --set policy.max_model_len=4", "max_model_len 4"),
    Case("bad space", "run s.yaml --set space=blok_size", "did you mean 'block_size'"),
    Case("bad space", "run s.yaml --set space=t.yaml", "t.yaml"),
    Case("bad control", "run s.yaml --set controls=[contigous]", "did you mean 'contiguous'"),
    Case("bad budget", "run s.yaml -n 1000", "lower trials or raise repeats"),
    Case("bad address", "run s.yaml --set executor.kind=ray --address 127.0.0.1:9 -o out1", "127.0.0.1:9"),
    Case("bad tracking URI", "run s.yaml --set tracking=http://127.0.0.1:9 -o out2", "127.0.0.1:9"),
    Case("bad tracking URI", "run s.yaml --set tracking=htp://127.0.0.1:9 -o out3", "htp"),
    Case("full disk", "trace generate chat -o new.parquet", "no space left", disk=errno.ENOSPC),
    Case("full disk", "trial t.yaml -o out4", "no space left", disk=errno.ENOSPC),
    Case("full disk", "run s.yaml -o out5", "no space left", disk=errno.ENOSPC),
    Case("read-only folder", "trace generate chat -o new.parquet", "read-only", disk=errno.EROFS),
    Case("read-only folder", "trial t.yaml -o out6", "read-only", disk=errno.EROFS),
    Case("read-only folder", "run s.yaml -o out7", "read-only", disk=errno.EROFS),
    Case("a file in the way", "trace generate chat -o t.yaml", "is no kvknee trace"),
    Case("a file in the way", "trace generate chat -o t.yaml/new", "t.yaml"),
    Case("our fault", "doctor", "internal error: RuntimeError: provoked", exit_code=1),
)


class _Disk:
    """The os module as `trials.trace` sees it, with a disk that answers every write with an error."""

    def __init__(self, code: int) -> None:
        self._code = code

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        raise OSError(self._code, os.strerror(self._code))


def prepare(folder: Path) -> None:
    """The files that the cases name."""
    from trials.generate import generate, load_preset
    from trials.trace import save_trace

    save_trace(generate(load_preset("chat"), 1), folder / "t.parquet")
    (folder / "t.yaml").write_text(TRIAL)
    (folder / "s.yaml").write_text(SWEEP)
    (folder / "list.yaml").write_text("- a\n- b\n")
    (folder / "broken.yaml").write_text("engine: {name: [simulator\n")
    (folder / "a.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,10,5\n")
    (folder / "empty").mkdir()
    (folder / "full").mkdir()
    for name in ("s.yaml", "t.yaml", "t.parquet"):
        (folder / "full" / name).write_bytes((folder / name).read_bytes())


@contextmanager
def _provoked(case: Case) -> Iterator[None]:
    def broken(address: object) -> None:
        raise RuntimeError("provoked")

    if case.disk:
        with patch("trials.trace.os", _Disk(case.disk)):
            yield
    elif case.exit_code == 1:
        with patch("orchestrator.doctor.examine", broken):
            yield
    else:
        yield


def answer(case: Case, folder: Path) -> tuple[int, str]:
    """-> (exit code, message), typed in `folder`; paths as the user would see them from there."""
    from orchestrator.cli import app

    before = Path.cwd()
    os.chdir(folder)
    try:
        with _provoked(case):
            done = CliRunner().invoke(app, case.typed.split())
    finally:
        os.chdir(before)
    return done.exit_code, _said(done.stderr, folder)


def _said(text: str, folder: Path) -> str:
    """The error itself, in one line, without what differs from run to run."""
    text = re.sub(r"traceback: \S+", "traceback: FILE", text.replace(f"{folder}/", "").replace(str(folder), "."))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    begin = next((k for k, line in enumerate(lines) if re.match(r"(error|Error|internal error):", line)), 0)
    return re.sub(r"\s+", " ", " ".join(lines[begin:]))


def page(folder: Path) -> str:
    """The whole document, from provoking every case."""
    rows = ["| what is wrong | typed | exit | answer |", "| --- | --- | --- | --- |"]
    for case in CASES:
        code, said = answer(case, folder)
        shown = said.replace("|", "\\|")
        rows.append(f"| {case.kind} | `kvknee {case.typed}` | {code} | {shown} |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        prepare(Path(made).resolve())
        PAGE.write_text(page(Path(made).resolve()), encoding="utf-8")
