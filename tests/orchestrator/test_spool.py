"""The spool keeps every entry until it is marked, whatever happens to the driver."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.spool import Spool


def test_what_is_not_marked_is_unsent_when_opened_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    offsets = [spool.append(f'{{"n": {i}}}') for i in range(5)]
    spool.mark(offsets[1])
    spool.mark(offsets[3])
    spool.close()
    again = Spool(tmp_path)
    assert again.unsent == [offsets[0], offsets[2], offsets[4]]
    assert [again.text(o) for o in again.unsent] == ['{"n": 0}\n', '{"n": 2}\n', '{"n": 4}\n']
    again.close()


def test_files_begin_anew_once_everything_is_sent(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.mark(spool.append("first"))
    spool.close()
    again = Spool(tmp_path)
    assert again.unsent == []
    assert (tmp_path / "entries.jsonl").stat().st_size == 0
    again.append("second")
    again.close()
    third = Spool(tmp_path)
    assert [third.text(o) for o in third.unsent] == ["second\n"]
    third.close()


def test_an_unfinished_line_is_cut_and_what_follows_is_whole(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append("whole")
    spool.close()
    with (tmp_path / "entries.jsonl").open("ab") as handle:
        handle.write(b"half an ent")
    again = Spool(tmp_path)
    again.append("next")
    again.close()
    third = Spool(tmp_path)
    assert [third.text(o) for o in third.unsent] == ["whole\n", "next\n"]
    third.close()


def test_a_torn_mark_marks_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append("x" * 8)
    spool.append("the entry at offset 9")
    spool.close()
    with (tmp_path / "sent.log").open("ab") as handle:
        handle.write(b"0\n9")  # perhaps the beginning of 95
    again = Spool(tmp_path)
    assert again.unsent == [9]
    again.close()


def test_an_entry_of_several_lines_is_refused(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(ValueError, match="one line"):
        spool.append("a\nb")
    spool.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from orchestrator.spool import Spool
spool = Spool(Path(sys.argv[1]))
for i in range(100):
    spool.append(f"entry {i}")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_driver_loses_nothing(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": str(root)}
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=env, check=False)
    assert ended.returncode == -signal.SIGKILL
    spool = Spool(tmp_path)
    assert [spool.text(o).strip() for o in spool.unsent] == [f"entry {i}" for i in range(100)]
    spool.close()


def test_one_wait_for_the_disk_is_for_all_that_came_since_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    spool = Spool(tmp_path)
    monkeypatch.setattr("orchestrator.spool.os.fsync", waits.append)
    for n in range(3):
        spool.append(f"entry {n}")
    spool.sync()
    spool.sync()
    assert len(waits) == 1
    spool.append("entry 3")
    spool.sync()
    assert len(waits) == 2
    spool.close()
