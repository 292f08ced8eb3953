"""Forks on engines without copy-on-write: queued exactly when their parent has come so far."""

from trials.engine import Work
from trials.engines.branches import Branches


def fork(row: int, parent: int, inherited: int) -> Work:
    return Work(row, inherited + 4, 2, parent=parent, inherited_tokens=inherited)


def test_a_fork_is_due_when_its_parent_holds_enough_and_only_once() -> None:
    branches = Branches()
    for work in (fork(1, 0, 10), fork(2, 0, 12), fork(3, 9, 5)):
        branches.hold(work)
    assert branches.due({0: 9, 9: 4}.get) == []
    assert [w.row for w in branches.due({0: 11, 9: 4}.get)] == [1]
    assert [w.row for w in branches.due({0: 12, 9: 5}.get)] == [2, 3]
    assert branches.due({0: 99, 9: 99}.get) == []
    assert branches.pending == {}


def test_a_fork_whose_parent_is_over_starts_without_it() -> None:
    branches = Branches()
    branches.hold(fork(1, 0, 1000))
    assert [w.row for w in branches.due(lambda _: None)] == [1]


def test_a_cancelled_fork_never_starts() -> None:
    branches = Branches()
    branches.hold(fork(1, 0, 3))
    branches.hold(fork(2, 0, 3))
    assert branches.forget(1) is True
    assert branches.forget(1) is False
    assert [w.row for w in branches.due(lambda _: 3)] == [2]
