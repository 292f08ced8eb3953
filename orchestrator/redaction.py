"""Secrets taken out of what is shown, logged or sent: passwords in URIs, tokens, values of secret variables."""

import os
import re
from collections.abc import Mapping
from functools import lru_cache

from trials.secret_names import URI_PASSWORD, looks_secret

HIDDEN = "***"
_SHORTEST = 6  # a shorter value would be found in half of all words
_BEARER = re.compile(r"(?i)(\bbearer\s+)[\w.~+/=\-]{8,4000}")
_ASSIGNED = re.compile(
    r"(?P<name>(?<![\w\-])[A-Za-z][\w\-]{0,80})(?P<sign>=|:\s*|['\"]:\s*)(?P<quote>['\"]?)(?P<value>[^\s'\"&,;}]+)"
)

_NO_SECRET = re.compile(r"[\d.]+|true|false|null|None|True|False|\*+|~/\S*")


def without_password(uri: str) -> str:
    """A URI as it may be shown: `postgresql://user:***@host/db`; also `?password=`."""
    return redacted(uri, {})


def redacted(text: str, env: Mapping[str, str] | None = None, named: bool = True) -> str:
    """The text without secrets. `env`: whose secret-looking variables are looked for; None: this process's.

    `named` False leaves what only a name before it makes a secret (`token: abc`): for words that are our own.
    """
    text = URI_PASSWORD.sub(rf"\g<before>:{HIDDEN}@", text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    if named:
        text = _ASSIGNED.sub(_hide_assigned, text)
    for value in secret_values(os.environ if env is None else env):
        text = text.replace(value, HIDDEN)
    return text


def _hide_assigned(found: re.Match[str]) -> str:
    plain = found["value"].startswith("env:") or _NO_SECRET.fullmatch(found["value"])
    if plain or not looks_secret(found["name"]):
        return found[0]
    return f"{found['name']}{found['sign']}{found['quote']}{HIDDEN}"


def secret_values(env: Mapping[str, str]) -> list[str]:
    """Values of variables whose names look secret, longest first; and passwords of URIs in any variable."""
    return list(_secret_values(frozenset(env.items())))


@lru_cache(maxsize=4)  # asked for every text, of an environment that does not change
def _secret_values(env: frozenset[tuple[str, str]]) -> tuple[str, ...]:
    found = {value for name, value in env if looks_secret(name)}
    found |= {match["password"] for _, value in env for match in URI_PASSWORD.finditer(value)}
    kept = (v for v in found if len(v) >= _SHORTEST and v != HIDDEN and not v.startswith("/"))
    return tuple(sorted(kept, key=len, reverse=True))
