"""The path that a first-time user types is the page's."""

import pytest

from benchmarks import first_use


def test_every_command_of_the_path_is_typed_as_the_page_has_it() -> None:
    typed = first_use.commands()
    assert len(typed) == len(first_use.PATH)
    assert all(command.startswith(begins) for command, (begins, _) in zip(typed, first_use.PATH, strict=True))


def test_a_command_that_the_page_lost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_use, "PATH", (("kvknee levitate", ()),))
    with pytest.raises(ValueError, match="kvknee levitate"):
        first_use.commands()


def test_a_command_that_fails_or_says_less_is_not_held(tmp_path) -> None:
    env = {"PATH": "/usr/bin:/bin"}
    assert first_use.type_in("echo reproduced", ("reproduced",), tmp_path, env).held
    assert first_use.type_in("echo other", ("reproduced",), tmp_path, env).lacks == ("reproduced",)
    assert not first_use.type_in("exit 3", (), tmp_path, env).held
