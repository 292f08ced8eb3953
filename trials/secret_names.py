"""Which names and texts look like secrets. A spec holds none: its values are hashed, shown, logged and copied.

What an engine needs of that kind is named in the spec and taken from the environment of the machine that starts it:
`engine: {env: {HF_TOKEN: env:HF_TOKEN}}`.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from trials.units import SpecError

REFERENCE = "env:"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET = {
    "secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential", "credentials", "apikey", "dsn",
    "bearer",
}  # fmt: skip
_SECRET_KEYS = {("api", "key"), ("private", "key"), ("access", "key"), ("auth", "key"), ("secret", "key")}
_VOCABULARY = {
    "eos",
    "bos",
    "pad",
    "unk",
    "mask",
    "sep",
    "cls",
    "image",
    "stop",
    "special",
    "per",
    "a",
    "max",
    "min",
}
_LOCATORS = {"path", "file", "dir", "folder", "mode", "name", "id", "ids", "type"}
URI_PASSWORD = re.compile(
    r"(?P<before>(?<![\w+.\-])[a-zA-Z][\w+.\-]{0,40}://[^\s/:@'\"]{0,200}):(?P<password>[^\s/@'\"]+)@"
)


class NotSet(SpecError, OSError):
    """A secret that a spec names is not in the environment; a worker cannot be started."""


def looks_secret(name: str) -> bool:
    """Whether a variable or option of this name usually holds a secret: HF_TOKEN, dbPassword, api-key."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _LOCATORS or name == "PWD":  # the shell's folder
        return False
    if words[-1] == "token":
        return len(words) == 1 or words[-2] not in _VOCABULARY
    if words[-1] == "pat" or words[-1].endswith(("password", "passwd")):
        return True
    return bool(_SECRET & set(words)) or any(pair in _SECRET_KEYS for pair in pairwise(words))


def secrets_in(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Keys, `a.b`, of texts that look like secrets and are no reference; and of URIs that hold a password."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from secrets_in(value, f"{name}.")
        elif not isinstance(value, str) or not value or value.startswith(REFERENCE):
            continue
        elif looks_secret(str(key)) or URI_PASSWORD.search(value):
            yield name


def dereferenced(env: Mapping[str, str], around: Mapping[str, str]) -> dict[str, str]:
    """`env` with every `env:NAME` replaced by `around[NAME]`. NotSet names what is missing there."""
    found = {}
    for name, value in env.items():
        if value.startswith(REFERENCE):
            source = value.removeprefix(REFERENCE)
            if source not in around:
                raise NotSet(f"engine.env.{name}: {source} is not set in the environment of this machine")
            value = around[source]
        found[name] = value
    return found
