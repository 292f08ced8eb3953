"""Which names and texts look like secrets. A spec holds none: its values are hashed, shown, logged and copied.

What an engine needs of that kind is named in the spec and taken from the environment of the machine that starts it:
`engine: {env: {HF_TOKEN: env:HF_TOKEN}}`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
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
    r"(?P<before>(?<![\w+.\-])[a-zA-Z][\w+.\-]{0,40}://[^\s/:@'\"]{0,200}):(?P<password>[^\s/'\"]+)@"
)  # up to the last @: a password that holds one is no valid URI, and written all the same
URI_USER = re.compile(
    r"(?P<before>(?<![\w+.\-])[a-zA-Z][\w+.\-]{0,40}://)(?P<user>[^\s/:@'\"]{1,400})(?P<after>(?::[^\s/'\"]*)?@)"
)
# Code hosts take a token in the user's place. It is told from a user by its form alone: how those who give tokens
# begin them (GitHub, GitLab, Hugging Face, Slack, OpenAI), or so long, and letters and digits so mixed, that nobody
# chose it. Names that people choose have no more than a digit or two at the end of a word: they stay readable.
_TOKEN = re.compile(r"(?i)(gh[a-z]_|github_pat_|glpat-|hf_|xox[a-z]-|sk-)\S+")
_LONG = re.compile(r"[\w\-]{20,}")
_MIXED = re.compile(r"[A-Za-z](?=\d)|\d(?=[A-Za-z])")
_MOST_MIXED = 3
BEARER = re.compile(r"(?i)(\bbearer\s+)[\w.~+/=\-]{8,4000}")
ASSIGNED = re.compile(
    r"(?P<name>(?<![\w\-])-{0,2}[A-Za-z][\w\-]{0,80})(?P<sign>=|:\s*|['\"]:\s*)(?P<quote>['\"]?)(?P<value>[^\s'\"&,;}]+)"
)
_NO_SECRET = re.compile(r"[\d.]+|true|false|null|None|True|False|\*+|~/\S*")


class NotSet(SpecError, OSError):
    """A secret that a spec names is not in the environment; a worker cannot be started."""


@lru_cache(maxsize=4096)  # the same few hundred names, in every text that is looked through
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


def assigns_secret(found: re.Match[str]) -> bool:
    """Whether what ASSIGNED found, `api_key=...`, gives a secret away."""
    value = found["value"]
    return looks_secret(found["name"]) and not (value.startswith(REFERENCE) or _NO_SECRET.fullmatch(value))


def looks_token(user: str) -> bool:
    """Whether what stands in the user's place of a URI, `https://USER@host`, is a token and no name."""
    return bool(_TOKEN.match(user)) or (bool(_LONG.fullmatch(user)) and len(_MIXED.findall(user)) > _MOST_MIXED)


def secrets_in(values: Mapping[str, Any] | Sequence[Any], prefix: str = "", named: str = "") -> Iterator[str]:
    """Keys, `a.b`, of texts that look like secrets and are no reference; and of texts that hold one: a URI's
    password or token, `Bearer ...`, `--api-key=...`, `{"token": ...}`. Of a list, the list's key: what stands in
    it as `--api-key` names what comes next."""
    if isinstance(values, Mapping):
        items = [(f"{prefix}{key}", str(key), value) for key, value in values.items()]
    else:
        items = [(prefix.removesuffix("."), named, value) for value in values]
    option = ""
    for name, key, value in items:
        if isinstance(value, Mapping | list | tuple):
            yield from secrets_in(value, f"{name}.", key)
        elif isinstance(value, str) and value and not value.startswith(REFERENCE):
            known = looks_secret(key) and not value.startswith("-")
            if known or (option and not value.startswith("-")) or _gives_away(value):
                yield name
        option = value if isinstance(value, str) and value.startswith("-") and looks_secret(value) else ""


def _gives_away(text: str) -> bool:
    held = URI_PASSWORD.search(text) or BEARER.search(text)
    users = any(looks_token(found["user"]) for found in URI_USER.finditer(text))
    return bool(held) or users or any(assigns_secret(found) for found in ASSIGNED.finditer(text))


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
