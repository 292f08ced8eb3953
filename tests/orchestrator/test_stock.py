"""Content goes by its digest: a path is never trusted by its name, a cache is whole or not there."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.stock import Digests, Item, NotDelivered, Part, Stock, item_of, items_of, relocated
from trials.spec import TrialSpec, trial_spec


def spec_of(trace: Path, **more: object) -> TrialSpec:
    return trial_spec(
        {
            "engine": {"name": "simulator", "step_time": "roofline:h100-sxm"},
            "model": "llama-3.1-8b",
            "pool": {"blocks": 100},
            "trace": {"path": str(trace)},
            "slo": "ttft:p99<500ms",
            **more,
        }
    )


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "driver" / "t.parquet"
    path.parent.mkdir()
    path.write_bytes(b"rows" * 1000)
    return path


class Wire:
    """Brings what lies in `folder`, by name of a part, in pieces; counts what it was asked for."""

    def __init__(self, path: Path) -> None:
        self.path, self.asked = path, 0

    def __call__(self, item: Item, part: Part) -> Iterator[bytes]:
        self.asked += 1
        content = (self.path / part.name if part.name else self.path).read_bytes()
        for start in range(0, len(content), 100):
            yield content[start : start + 100]


def elsewhere(item: Item, tmp_path: Path) -> Item:
    """As a node sees it on which the driver's path leads nowhere."""
    return Item(item.field, item.digest, str(tmp_path / "nowhere" / Path(item.origin).name), item.parts)


def test_a_node_that_sees_the_same_content_at_the_same_path_uses_it_in_place(trace: Path, tmp_path: Path) -> None:
    (item,) = items_of(spec_of(trace), Digests())
    wire = Wire(trace)
    assert Stock(tmp_path / "node").bring(item, wire) == trace
    assert wire.asked == 0


def test_other_content_under_the_same_path_is_not_taken_for_it(trace: Path, tmp_path: Path) -> None:
    (item,) = items_of(spec_of(trace), Digests())
    kept = tmp_path / "kept"
    shutil.copy(trace, kept)
    trace.write_bytes(b"other rows")
    found = Stock(tmp_path / "node").bring(item, Wire(kept))
    assert found != trace
    assert found.read_bytes() == kept.read_bytes()
    assert found.suffix == ".parquet"


def test_content_is_fetched_once_a_node_and_a_damaged_copy_is_made_again(trace: Path, tmp_path: Path) -> None:
    (item,) = items_of(spec_of(trace), Digests())
    item, wire = elsewhere(item, tmp_path), Wire(trace)
    found = Stock(tmp_path / "node").bring(item, wire)
    assert Stock(tmp_path / "node").bring(item, wire) == found
    assert wire.asked == 1
    found.write_bytes(b"rotten")
    assert Stock(tmp_path / "node").bring(item, wire).read_bytes() == trace.read_bytes()
    assert wire.asked == 2


def test_what_arrives_with_another_digest_is_refused_and_leaves_nothing(trace: Path, tmp_path: Path) -> None:
    (item,) = items_of(spec_of(trace), Digests())
    other = tmp_path / "other"
    other.write_bytes(b"other rows")
    with pytest.raises(NotDelivered, match="another digest"):
        Stock(tmp_path / "node").bring(elsewhere(item, tmp_path), Wire(other))
    assert not [p for p in (tmp_path / "node").iterdir() if p.name != "digests"]


def test_a_folder_goes_as_a_whole_and_paths_cannot_leave_it(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "sub" / "weights").write_bytes(b"w" * 333)
    item = item_of("model", model, Digests())
    assert item is not None
    found = Stock(tmp_path / "node").bring(elsewhere(item, tmp_path), Wire(model))
    assert (found / "sub" / "weights").read_bytes() == b"w" * 333
    assert (found / "config.json").read_text() == "{}"
    climbing = Item("model", "d", str(tmp_path / "nowhere"), (Part("../up", "0" * 64, 1),))
    with pytest.raises(NotDelivered, match="not a path inside"):
        Stock(tmp_path / "node").bring(climbing, Wire(model))


def test_locators_lead_to_the_node_and_the_rest_of_the_spec_stays(trace: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    table.write_text("{}")
    spec = spec_of(trace, engine={"name": "simulator", "step_time": f"table:{table}"})
    items = items_of(spec, Digests())
    assert [item.field for item in items] == ["trace", "table"]
    moved = relocated(spec, {"trace": Path("/n/t"), "table": Path("/n/x.json")})
    assert (moved.trace.path, moved.engine.step_time) == ("/n/t", "table:/n/x.json")
    back = relocated(moved, {"trace": trace, "table": table})
    assert back == spec


def test_what_is_not_there_is_left_for_the_worker_to_refuse(tmp_path: Path) -> None:
    assert items_of(spec_of(tmp_path / "absent.parquet"), Digests()) == ()


def test_a_digest_follows_the_file_s_content(trace: Path) -> None:
    digests = Digests()
    first = digests.of(trace)
    trace.write_bytes(b"changed")
    assert digests.of(trace) != first
