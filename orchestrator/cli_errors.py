"""How verbs end: a user's mistake in words with exit 2, ours with the path of its traceback and exit 1."""

import json
import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from trials.trace import TraceError
from trials.units import SpecError


class Interrupted(Exception):
    """The user stopped a verb; the words say how to go on."""


@contextmanager
def verb(as_json: bool) -> Iterator[None]:
    """Every verb's body runs inside. With --json an error is the document: {"error": ..., "exit_code": ...}."""
    try:
        yield
    except typer.Exit:
        raise
    except (SpecError, TraceError) as error:
        raise _end(2, f"error: {error}", as_json) from None
    except Interrupted as stop:
        raise _end(130, str(stop), as_json) from None
    except KeyboardInterrupt:
        raise _end(130, "interrupted", as_json) from None
    except Exception as error:
        if type(error).__name__ == "NotEnough":  # ray_slots' word; importing it here would load Ray's room
            raise _end(2, f"error: {error}", as_json) from None
        raise _end(1, f"internal error: {type(error).__name__}: {error}\ntraceback: {_keep()}", as_json) from None


def _end(code: int, words: str, as_json: bool) -> typer.Exit:
    if as_json:
        typer.echo(json.dumps({"error": words.removeprefix("error: "), "exit_code": code}))
    typer.echo(words, err=True)
    return typer.Exit(code)


def _keep() -> str:
    handle, path = tempfile.mkstemp(prefix="kvknee-traceback-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(traceback.format_exc())
    return path
