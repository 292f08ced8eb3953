"""A space smaller than its budget costs what the space costs: nothing that is known is run again."""

import pytest
from fake_rooms import Fuse, FusedFolder, drive, make_sweep

from orchestrator.opening import open_executor
from orchestrator.progress import Silent
from orchestrator.sweep import Driver, Rooms
from orchestrator.tracking import MemoryTracker

SIX = [
    "space={vary: {policy.block_size: {powers_of_two: [8, 256]}}}", "trials=24", "repeats=1", "controls=[]",
    "held_out=0", "survival=null",
]  # fmt: skip


def check(records, runs):
    assert len(records) == 24
    assert {r.state for r in records} == {"complete"}
    ran = [r for r in records if r.card.reused_from is None]
    assert sum(len(r.attempts) for r in records) == runs <= 6
    assert len({r.card.spec_hash for r in ran}) == len(ran)
    for record in records:
        if record.card.reused_from is not None:
            assert not record.attempts
            assert record.card.spec_hash in {r.card.spec_hash for r in ran}


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2"])
def test_six_points_with_a_budget_of_24_on_four_slots_take_six_runs(tmp_path, sampler):
    sweep = make_sweep(tmp_path, *SIX, f"sampler={sampler}")
    ran = drive(tmp_path / "out", sweep, num_slots=4)
    check(ran.records, len(ran.executor.ran))


def test_real_processes_run_six_times_too(tmp_path):
    sweep = make_sweep(tmp_path, *SIX, "sampler=tpe", "executor={kind: process, slots: 4}")
    folder = FusedFolder(tmp_path / "out", Fuse())
    folder.path.mkdir()
    executor = open_executor(sweep)
    assert executor.slots == 4
    try:
        Driver(sweep, Rooms(folder, executor, MemoryTracker(), Silent(), "b")).run()
    finally:
        executor.close()
    records = folder.load_trials()
    check(records, sum(len(r.attempts) for r in records))
