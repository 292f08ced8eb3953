"""How verbs end: a user's mistake in words with exit 2, ours with the path of its traceback and exit 1."""

import errno
import json
import os
import select
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from orchestrator.redaction import redacted
from trials.units import SpecError

_REMEDIES = {
    errno.ENOSPC: "free some space there, or choose another folder",
    errno.EDQUOT: "free some space there, or choose another folder",
    errno.EROFS: "choose a folder that can be written to",
    errno.EACCES: "choose a path that you may use, or change its permissions",
    errno.EPERM: "choose a path that you may use, or change its permissions",
    errno.ENOENT: "check the path",
    errno.EEXIST: "a file stands where a folder is needed: choose another path",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.EISDIR: "a folder stands where a file is needed: name the file itself, or move the folder away",
    errno.ENAMETOOLONG: "choose a shorter name",
}  # what the machine refuses and the user can mend; any other OSError is our fault until shown otherwise


_Mistyped: Any = typer.BadParameter.__base__  # what is wrong with options and arguments; typer has no name for it
_SIGPIPE = 141  # as shells show a command whose reader has gone


class Interrupted(Exception):
    """The user stopped a verb; the words say how to go on."""


@contextmanager
def verb(as_json: bool) -> Iterator[None]:
    """Every verb's body runs inside. With --json an error is the document: {"error": ..., "exit_code": ...}."""
    try:
        yield
        sys.stdout.flush()  # here, where a reader that is gone can be told from a fault
    except typer.Exit:
        raise
    except SpecError as error:
        raise _end(2, f"error: {error}", as_json) from None
    except Interrupted as stop:
        raise _end(130, str(stop), as_json) from None
    except KeyboardInterrupt:
        raise _end(130, "interrupted", as_json) from None
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":  # as Python keeps the bytes of a name that are no UTF-8
            raise _our_fault(error, as_json) from None
        words = f"error: {error.object!a}: holds bytes that are no UTF-8, and cannot be written down; rename it"
        raise _end(2, words, as_json) from None
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            raise typer.Exit(_SIGPIPE) from None
        if error.errno not in _REMEDIES:
            raise _our_fault(error, as_json) from None
        raise _end(2, f"error: {_refused(error)}", as_json) from None
    except Exception as error:
        raise _our_fault(error, as_json) from None


def run_app(app: typer.Typer, arguments: list[str]) -> NoReturn:
    """The console script; with --json, what was typed wrong is said in the document too."""
    if "--json" not in arguments:
        app(arguments)
    try:
        code = app(arguments, standalone_mode=False)
    except _Mistyped as error:
        error.show()
        said = {"error": redacted(error.format_message(), named=False), "exit_code": error.exit_code}
        typer.echo(json.dumps(said))
        code = error.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def _nobody_reads() -> bool:
    """Whether stdout's reader is gone (`kvknee status DIR | head -1`); then what is left is written to nobody."""
    watch, out = select.poll(), sys.stdout.fileno()
    watch.register(out, 0)
    gone = any(event & select.POLLERR for _, event in watch.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out)
    return gone


def _refused(error: OSError) -> str:
    """What the machine said, of which path, and what to do."""
    said = (error.strerror or str(error)).lower()
    return f"{error.filename or 'the output'}: {said}; {_REMEDIES[error.errno or 0]}"


def _our_fault(error: Exception, as_json: bool) -> typer.Exit:
    return _end(1, f"internal error: {type(error).__name__}: {error}\ntraceback: {_keep()}", as_json)


def _end(code: int, words: str, as_json: bool) -> typer.Exit:
    words = redacted(words, named=False)
    if as_json:
        typer.echo(json.dumps({"error": words.removeprefix("error: "), "exit_code": code}))
    typer.echo(words, err=True)
    return typer.Exit(code)


def _keep() -> str:
    handle, path = tempfile.mkstemp(prefix="kvknee-traceback-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(redacted(traceback.format_exc(), named=False))
    return path
