"""Slots over several nodes: where they are, whose engine they have, what is missing, and what becomes of them."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from emulated import Emulated, until
from test_ray_slots import end, first_progress, gone, job

from orchestrator.devices import Reading
from orchestrator.executors import Done, Job, Lost, Progress
from orchestrator.ray_slots import NotEnough, RayExecutor, RayTerms
from orchestrator.slot_needs import SlotNeeds

pytestmark = pytest.mark.ray

WORKER = """
import json, os, sys, time
if sys.argv[1] == "--describe":
    tongue = os.environ["LANG"]
    print(json.dumps({"engine_hash": tongue * 8, "identity": {"device": {"name": tongue}}}))
    sys.exit()
spec = json.load(open(sys.argv[1]))
said = f"{os.getpid()} {spec['trace']['path']} {sorted(os.sched_getaffinity(0))}"
print(json.dumps({"progress": said}), flush=True)
time.sleep(spec["engine"]["args"].get("sleep_s", 0))
result = {"status": "complete", "evidence": "modelled", "requested": {},
          "hashes": {"spec": "s", "trace": "t", "engine": "e"}}
json.dump(result, open(sys.argv[2] + "/result.json", "w"))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Emulated]:
    """Three nodes: two of one engine, in two pools, and one of another. What was connected before is so again."""
    import ray

    from orchestrator.ray_session import start_ray

    before = ray.is_initialized()
    ray.shutdown()
    with Emulated(0) as made:
        for name, tongue, pool in (("n0", "C", "fast"), ("n1", "C", "slow"), ("n2", "D", "slow")):
            made.add(name, env_vars={"LANG": tongue}, labels={"pool": pool}, resources={"accelerator_type:H200": 1})
        yield made
        ray.shutdown()
    if before:
        start_ray(None, cpus=4, gpus=2)


@pytest.fixture
def terms(tmp_path: Path) -> RayTerms:
    (tmp_path / "worker.py").write_text(WORKER)
    return RayTerms(needs=SlotNeeds(cpus=1, gpus=1), worker=("-I", "-S", str(tmp_path / "worker.py")))


def nodes_of(executor: RayExecutor, tmp_path: Path, trials: int) -> set[str]:
    """Where so many trials at once ran, as their attempts say."""
    for number in range(trials):
        executor.submit(job(tmp_path, number, sleep_s=0.3))
    ended = 0
    while ended < trials:
        for event in executor.wait(10):
            assert not isinstance(event, Lost), event
            ended += isinstance(event, Done)
    import json

    said = [json.loads((tmp_path / str(n) / "attempt.json").read_text()) for n in range(trials)]
    return {s["slot_node"] for s in said}


def test_a_node_with_another_engine_is_left_out_and_named(
    cluster: Emulated, terms: RayTerms, tmp_path: Path
) -> None:
    spec = job(tmp_path).spec
    executor = RayExecutor(3, address=cluster.address, terms=replace(terms, describe=spec))
    try:
        assert executor.slots == 2
        ((node, why),) = executor.left_out.items()
        assert "device.name: C -> D" in why
        assert node not in nodes_of(executor, tmp_path, 2)
    finally:
        executor.close()


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (SlotNeeds(gpus=2), "2 GPU on one node, of 1"),
        (SlotNeeds(accelerator_type="B200"), "accelerator_type:B200, of which there is none"),
        (SlotNeeds(labels={"pool": "gold"}), "label pool=gold"),
    ],
)
def test_what_no_node_has_is_named_within_seconds(
    cluster: Emulated, terms: RayTerms, needs: SlotNeeds, words: str
) -> None:
    began = time.monotonic()
    with pytest.raises(NotEnough, match=words):
        RayExecutor(1, address=cluster.address, terms=replace(terms, needs=needs))
    assert time.monotonic() - began < 20


def test_labels_and_whole_nodes_are_honoured_and_cores_are_its_own(
    cluster: Emulated, terms: RayTerms, tmp_path: Path
) -> None:
    needs = SlotNeeds(gpus=1, labels={"pool": "slow"}, accelerator_type="H200", exclusive_node=True)
    executor = RayExecutor(2, address=cluster.address, terms=replace(terms, needs=needs, pin=True))
    try:
        executor.submit(job(tmp_path, 1, sleep_s=1))
        assert first_progress(executor).text.endswith("[0]")
        assert isinstance(end(executor), Done)
        assert len(nodes_of(executor, tmp_path, 2)) == 2
        attempt = (tmp_path / "0" / "attempt.json").read_text()
        assert '"exclusive_node": true' in attempt
        assert '"CPU": 1.0' in attempt
        with pytest.raises(NotEnough, match="of which there is none"):
            RayExecutor(1, address=cluster.address, terms=replace(terms, needs=SlotNeeds(labels={"pool": "?"})))
    finally:
        executor.close()


def test_bundles_of_one_slot_may_be_spread_over_nodes(cluster: Emulated, terms: RayTerms, tmp_path: Path) -> None:
    needs = SlotNeeds(gpus=1, bundles=2, strategy="STRICT_SPREAD")
    executor = RayExecutor(1, address=cluster.address, terms=replace(terms, needs=needs))
    try:
        nodes_of(executor, tmp_path, 1)
        import json

        said = json.loads((tmp_path / "0" / "attempt.json").read_text())
        assert len(set(said["slot_nodes"])) == 2
        assert said["slot_strategy"] == "STRICT_SPREAD"
    finally:
        executor.close()


def test_content_reaches_a_node_that_has_not_got_it(cluster: Emulated, terms: RayTerms, tmp_path: Path) -> None:
    """The driver's own path is made to lead nowhere on nodes: it is moved away once its content is on its way."""
    from orchestrator.ray_content import Dispatch

    trace = tmp_path / "t.parquet"
    trace.write_bytes(b"rows" * 1000)
    asked = job(tmp_path, 1, sleep_s=1)  # of a trial that is over at once nothing is said while it runs
    spec = asked.spec.model_copy(update={"trace": asked.spec.trace.model_copy(update={"path": str(trace)})})
    executor = RayExecutor(1, address=cluster.address, terms=terms)
    try:
        delivery = executor._dispatch.of(spec)
        away = tuple(replace(item, origin=str(tmp_path / "nowhere.parquet")) for item in delivery.items)
        executor._dispatch = Fixed(replace(delivery, items=away))  # type: ignore[assignment]
        executor.submit(Job(1, 1, spec, tmp_path / "1"))
        path = Path(first_progress(executor).text.split()[1])
        assert path.name == f"{delivery.items[0].digest}.parquet"
        assert path.read_bytes() == trace.read_bytes()
        assert isinstance(end(executor), Done)
        shared = Dispatch(f"file://{tmp_path}/shared").of(spec)
        assert not shared.refs
        executor._dispatch = Fixed(replace(shared, items=away))  # type: ignore[assignment]
        shutil.rmtree(path.parent)
        executor.submit(Job(2, 1, spec, tmp_path / "2"))
        assert Path(first_progress(executor).text.split()[1]) == path
        assert isinstance(end(executor), Done)
    finally:
        executor.close()


class Fixed:
    """Delivers the same whatever is asked for."""

    def __init__(self, delivery: object) -> None:
        self.delivery = delivery

    def of(self, spec: object) -> object:
        return self.delivery


def test_a_slot_that_hears_nothing_of_its_driver_ends_what_it_runs(
    cluster: Emulated, terms: RayTerms, tmp_path: Path
) -> None:
    executor = RayExecutor(1, address=cluster.address, terms=replace(terms, lease_s=2.0))
    try:
        executor.submit(job(tmp_path, 1, sleep_s=300))
        pid = int(first_progress(executor).text.split()[0])
        executor._crew._closed.set()  # no further beat
        assert until(lambda: gone(pid), 30)
    finally:
        executor.close()


class StuckMemory:
    """A device on which the first trial leaves 3 GiB behind."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> list[Reading]:
        self.reads += 1
        return [Reading("GPU-0", 0 if self.reads == 1 else 3 << 30)]


def test_a_slot_whose_device_memory_does_not_come_back_is_not_used_again(
    cluster: Emulated, terms: RayTerms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from ray import cloudpickle

    from orchestrator import ray_actor

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(ray_actor, "SETTLE_S", 0.5)
    executor = RayExecutor(2, address=cluster.address, terms=replace(terms, readers=StuckMemory))
    try:
        executor.submit(job(tmp_path, 1))
        done = end(executor)
        assert isinstance(done, Done), done  # what it measured stands
        assert executor.slots == 1
        assert done.slot not in executor.slot_names
        (why,) = executor.left_out.values()
        assert "3072 MiB" in why
        executor.submit(Job(2, 1, job(tmp_path).spec, tmp_path / "2"))
        other = end(executor)
        assert isinstance(other, Done)
        assert other.slot != done.slot
    finally:
        executor.close()
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_growing_cluster_is_given_time_and_late_nodes_join(
    cluster: Emulated, terms: RayTerms, tmp_path: Path
) -> None:
    needs = SlotNeeds(gpus=1, labels={"pool": "new"})
    cluster.add("n3", labels={"pool": "new"})
    executor = RayExecutor(2, address=cluster.address, terms=replace(terms, needs=needs, wait_for_nodes_s=4))
    try:
        assert executor.slots == 1
        cluster.add("n4", labels={"pool": "new"})
        assert until(lambda: executor.wait(0.1) == [] and executor.slots == 2, 60)
        executor.submit(job(tmp_path, 1, sleep_s=300))
        first = first_progress(executor)
        (name,) = [n for n in ("n3", "n4") if first.slot in _slots_on(executor, cluster, n)]
        cluster.kill(name)
        lost = end(executor)
        assert isinstance(lost, Lost)
        assert lost.infrastructure
        assert executor.slots == 1
        again = replace(job(tmp_path, 1), attempt=2, avoid=(lost.slot,))
        executor.submit(again)
        other = end(executor)
        assert isinstance(other, Done), other
        assert other.slot != lost.slot
    finally:
        executor.close()


def _slots_on(executor: RayExecutor, cluster: Emulated, name: str) -> list[str]:
    node = cluster.nodes[name].node_id
    return [s for s, p in executor._places.by_slot.items() if p.node is not None and p.node.id == node]


def wait_long(executor: RayExecutor) -> None:
    for _ in range(50):
        assert not [e for e in executor.wait(0.1) if not isinstance(e, Progress)]


def test_a_sweep_without_a_slot_waits_and_then_says_what_is_missing(
    cluster: Emulated, terms: RayTerms, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator import ray_slots

    executor = RayExecutor(1, address=cluster.address, terms=terms)
    try:
        monkeypatch.setattr(ray_slots, "_BUSY_S", 0.2)
        executor._crew.drop("ray-0", because="made up")
        with pytest.raises(NotEnough, match=r"0 of 1 slots .* made up"):
            wait_long(executor)
    finally:
        executor.close()
