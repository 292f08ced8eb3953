"""`engine.args` through vLLM's own parser, and what became of each in the running engine."""

import argparse
import contextlib
import dataclasses
import functools
import io
import json
import os
from collections.abc import Mapping
from typing import Any

from vllm import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from trials.units import SpecError, nearest

_PLAIN = (bool, int, float, str, type(None))


@functools.cache
def _actions() -> tuple[Any, dict[str, argparse.Action]]:
    """vLLM's parser of engine arguments, and its options by the name of the field that they set."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(exit_on_error=False))
    return parser, {action.dest: action for action in parser._actions if action.dest != "help"}


def parsed_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Each argument as `vllm serve` would take it, mappings as its JSON.

    SpecError in vLLM's words, or with what a name may have meant.
    """
    known = {field.name for field in dataclasses.fields(EngineArgs) if not field.name.startswith("_")}
    for name in args:
        if name not in known:
            raise SpecError(f"engine.args: vLLM has no argument {name!r}; {nearest(name, known)}")
    parser, actions = _actions()
    spoken = [name for name, value in args.items() if name in actions and value is not None]
    words = [word for name in spoken for word in _words(actions[name], args[name])]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            found = parser.parse_args(words)
    except argparse.ArgumentError as error:
        raise SpecError(f"engine.args: {_one_line(str(error))}") from None
    except SystemExit:
        last = (said.getvalue().strip() or "vLLM's parser refuses them").splitlines()[-1]
        raise SpecError(f"engine.args: {_one_line(last)}") from None
    return {**args, **{name: getattr(found, name) for name in spoken}}


def _words(action: argparse.Action, value: Any) -> list[str]:
    """One argument as it is written on a command line."""
    flag = next(text for text in action.option_strings if text.startswith("--"))
    if action.nargs == 0:  # a switch
        if not isinstance(value, bool):
            raise SpecError(f"engine.args: {action.dest}: true or false is needed; found {value!r}")
        no = [text for text in action.option_strings if text.startswith("--no-")]
        return [flag] if value else no[:1]
    if isinstance(value, list | tuple):
        return [flag, *(_text(one) for one in value)]
    return [f"{flag}={_text(value)}"]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:600]


def read_back(config: Any, args: Mapping[str, Any]) -> dict[str, str]:
    """`args.NAME` -> what the resolved VllmConfig has of it, wherever it keeps it. Paths and mappings: `set`."""
    return {f"args.{name}": _shown(_found(config, name)) for name in sorted(args)}


_ABSENT = "not to be read back"


def _found(config: Any, name: str) -> Any:
    for section in (*vars(config).values(), config):
        if hasattr(section, name):
            return getattr(section, name)
    return _ABSENT


def _shown(value: Any) -> str:
    parts = value if isinstance(value, list | tuple) else [value]
    text = str(value)
    return text if all(isinstance(part, _PLAIN) for part in parts) and os.sep not in text else "set"
