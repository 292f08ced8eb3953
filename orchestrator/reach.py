"""Whether anything answers at an address, in seconds: Ray's own client tries for minutes before it says so."""

import socket

from trials.units import SpecError

_PATIENCE_S = 5.0


def require_reachable(address: str) -> None:
    """SpecError unless something listens at `HOST:PORT` or `ray://HOST:PORT`; `auto` is Ray's own."""
    place = address.removeprefix("ray://")
    host, colon, port = place.rpartition(":")
    if not colon:
        if place in ("auto", "local"):
            return
        raise SpecError(f"address {address!r} has no port; write it like 10.0.0.5:6379 or ray://10.0.0.5:10001")
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise SpecError(f"address {address!r}: {port!r} is no port; a Ray head listens on 6379 by default")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S).close()
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        raise SpecError(
            f"no Ray cluster answers at {address}: {said}; start one with `ray start --head`, "
            "check host and port, or leave --address out to use this machine"
        ) from None
