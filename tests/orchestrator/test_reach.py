"""An address at which nothing answers is said so in seconds."""

import socket

import pytest

from orchestrator.reach import require_reachable
from trials.units import SpecError


def test_what_listens_is_reachable_and_what_closed_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_reachable(f"127.0.0.1:{port}")
        require_reachable(f"ray://127.0.0.1:{port}")
    with pytest.raises(SpecError, match=f"no Ray cluster answers at 127.0.0.1:{port}: connection refused"):
        require_reachable(f"127.0.0.1:{port}")


@pytest.mark.parametrize(("address", "says"), [
    ("10.0.0.5", "has no port"), ("10.0.0.5:http", "'http' is no port"), ("10.0.0.5:0", "is no port"),
])  # fmt: skip
def test_an_address_that_cannot_be_one_is_refused_before_it_is_tried(address: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        require_reachable(address)


def test_rays_own_names_are_left_to_it() -> None:
    require_reachable("auto")
    require_reachable("local")
