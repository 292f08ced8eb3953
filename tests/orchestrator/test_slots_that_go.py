"""Slots come and go while a sweep runs: it waits without one, and never hands out more than there are."""

from fake_rooms import FakeExecutor, Fuse, FusedFolder, FusedTracker, FusedViewer, make_sweep

from orchestrator.executors import Lost
from orchestrator.sweep import Driver, Rooms


class Shrinking(FakeExecutor):
    """Two slots; with each of the first four ends one is lost with its trial, and comes back later."""

    def __init__(self, sweep):
        super().__init__(sweep, num_slots=2)
        self.waits, self.lost = 0, 0

    def wait(self, timeout_s):
        self.waits += 1
        if self.waits % 5 == 0:
            self.num_slots = 2
        if self.running and self.lost < 4:
            job = self.running.pop()
            self.lost += 1
            self.num_slots = max(0, self.num_slots - 1)
            return [Lost(job, "its node died", True, 1.0, f"fake-{self.lost}")]
        return super().wait(timeout_s)


def test_a_sweep_without_a_slot_waits_for_one_and_comes_to_its_budget(tmp_path):
    sweep = make_sweep(tmp_path, "controls=[]", "held_out=0", "survival=null")
    fuse = Fuse()
    (tmp_path / "out").mkdir()
    executor, viewer = Shrinking(sweep), FusedViewer(fuse)
    rooms = Rooms(FusedFolder(tmp_path / "out", fuse), executor, FusedTracker(fuse), viewer, "b1", lambda: 1.0)
    Driver(sweep, rooms).run()
    records = rooms.folder.load_trials()
    assert [r.state for r in records] == ["complete"] * sweep.budget
    assert sum(len(r.attempts) for r in records) == sweep.budget + 4
    assert any(picture.eta_s is None for picture in viewer.pictures[3:]), "no moment without a slot was seen"
