"""Secrets taken out of what is shown, logged or sent: passwords in URIs, tokens, values of secret variables."""

import os
import re
from collections.abc import Mapping
from functools import lru_cache

from trials.secret_names import (
    ASSIGNED,
    BEARER,
    URI_PASSWORD,
    URI_USER,
    assigns_secret,
    looks_secret,
    looks_token,
)

HIDDEN = "***"
_SHORTEST = 6  # a shorter value would be found in half of all words
_QUERY = re.compile(r"(?P<before>[?&](?P<name>[A-Za-z][\w\-]{0,80})=)(?P<value>[^\s'\"&#]+)")


def without_password(uri: str) -> str:
    """A URI as it may be shown: `postgresql://user:***@host/db`, `https://***@host`; also `?password=`."""
    return redacted(uri, {})


def redacted(text: str, env: Mapping[str, str] | None = None, named: bool = True) -> str:
    """The text without secrets. `env`: whose secret-looking variables are looked for; None: this process's.

    `named` False leaves what only a name before it makes a secret (`token: abc`): for words that are our own.
    """
    text = URI_PASSWORD.sub(rf"\g<before>:{HIDDEN}@", text)
    text = URI_USER.sub(_hide_user, text)
    text = BEARER.sub(rf"\1{HIDDEN}", text)
    text = _QUERY.sub(_hide_asked, text)
    if named:
        text = ASSIGNED.sub(_hide_assigned, text)
    for value in secret_values(os.environ if env is None else env):
        text = text.replace(value, HIDDEN)
    return text


def _hide_user(found: re.Match[str]) -> str:
    """A token in the place of a URI's user."""
    return f"{found['before']}{HIDDEN}{found['after']}" if looks_token(found["user"]) else found[0]


def _hide_asked(found: re.Match[str]) -> str:
    """`?token=...` of a URI."""
    return f"{found['before']}{HIDDEN}" if looks_secret(found["name"]) else found[0]


def _hide_assigned(found: re.Match[str]) -> str:
    if not assigns_secret(found):
        return found[0]
    return f"{found['name']}{found['sign']}{found['quote']}{HIDDEN}"


def secret_values(env: Mapping[str, str]) -> list[str]:
    """Values of variables whose names look secret, longest first; and passwords and tokens of URIs in
    any variable."""
    return list(_secret_values(frozenset(env.items())))


@lru_cache(maxsize=4)  # asked for every text, of an environment that does not change
def _secret_values(env: frozenset[tuple[str, str]]) -> tuple[str, ...]:
    found = {value for name, value in env if looks_secret(name)}
    found |= {match["password"] for _, value in env for match in URI_PASSWORD.finditer(value)}
    users = (match["user"] for _, value in env for match in URI_USER.finditer(value))
    found |= {user for user in users if looks_token(user)}
    kept = (v for v in found if len(v) >= _SHORTEST and v != HIDDEN and not v.startswith("/"))
    return tuple(sorted(kept, key=len, reverse=True))
