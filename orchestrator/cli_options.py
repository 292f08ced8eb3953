"""What the verbs share: options, and how an answer is said."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Annotated, Any, NoReturn, Protocol

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a key; read as YAML.")]
Goodput = Annotated[
    str | None, typer.Option(help="Replaces the SLO: per-request limits in ms, as 'ttft:500 tpot:50'.")
]
Out = Annotated[Path | None, typer.Option("-o", "--output-dir", help="Folder to write; a new one by default.")]
Address = Annotated[str | None, typer.Option(help="Ray cluster to use; none starts a local one.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only errors on stderr; the answer as always.")]
GpuHours = Annotated[
    float | None, typer.Option(help="End in order when so many are used; slot-hours where slots have no GPU.")
]
Until = Annotated[
    str | None, typer.Option(metavar="T", help="End in order at 07:30, 2026-12-01T07:30, or 8h from now.")
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A sweep's folder.")]


class Found(Protocol):
    """What a verb found out: lines for people, a model for scripts, and how the process ends."""

    @property
    def lines(self) -> Sequence[str]: ...

    @property
    def exit_code(self) -> int: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


def answer(found: Found, as_json: bool) -> NoReturn:
    """Say what was found, one way or the other, and exit with its code."""
    if as_json:
        say_json(found.model_dump(mode="json"))
    else:
        for line in found.lines:
            typer.echo(line)
    raise typer.Exit(found.exit_code)


def say_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=1, sort_keys=True, allow_nan=False))


@contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """Without what a verb says of itself while it works; errors are said outside."""
    if not quiet:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
        yield
