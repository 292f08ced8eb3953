"""Laws of a sweep's folder and slots: nothing is overwritten, one driver at a time, measured trials one by one."""

import pytest
from fake_rooms import make_sweep

from orchestrator.folder import SweepFolder
from orchestrator.opening import being_driven, build_digest, new_folder, num_slots, prepare_folder, sole_driver
from trials.units import SpecError


def test_a_new_folder_never_exists_yet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = []
    for _ in range(3):
        folder = new_folder("conv")
        folder.mkdir(parents=True)
        names.append(folder.as_posix())
    assert names == ["runs/conv", "runs/conv-2", "runs/conv-3"]


def test_the_same_sweep_may_come_back_and_another_may_not(tmp_path):
    prepare_folder(tmp_path / "out", make_sweep(tmp_path))
    prepare_folder(tmp_path / "out", make_sweep(tmp_path, "executor.slots=2"))
    with pytest.raises(SpecError, match="min_gain"):
        prepare_folder(tmp_path / "out", make_sweep(tmp_path, "min_gain=0.1"))


def test_trials_without_their_sweep_yaml_are_not_taken_over(tmp_path):
    (tmp_path / "out" / "trials").mkdir(parents=True)
    with pytest.raises(SpecError, match=r"no sweep\.yaml"):
        prepare_folder(tmp_path / "out", make_sweep(tmp_path))


def test_a_file_in_the_folder_s_place_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(SpecError, match="a file stands there"):
        prepare_folder(tmp_path / "out", make_sweep(tmp_path))
    assert (tmp_path / "out").read_text() == "mine"


def test_one_driver_at_a_time(tmp_path):
    folder = SweepFolder(tmp_path)
    assert not being_driven(folder)
    with sole_driver(folder):
        assert being_driven(folder)
        with pytest.raises(SpecError, match="another kvknee"), sole_driver(folder):
            pass
    assert not being_driven(folder)


def test_measured_cpu_trials_get_one_slot_whatever_is_asked(tmp_path):
    assert num_slots(make_sweep(tmp_path, "executor.slots=5")) == 5
    assert num_slots(make_sweep(tmp_path, "executor.slots=5", "engine={name: torch_paged}")) == 1


def test_the_build_is_named_by_content(tmp_path):
    assert build_digest() == build_digest()
