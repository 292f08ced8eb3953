"""What a cluster can never give is named: which resource, how much was asked, how much there is."""

import pytest

from orchestrator.executor_spec import ExecutorSpec, SlotSpec
from orchestrator.slot_needs import Node, SlotNeeds, slots_possible, what_is_missing


def node(name: str, cpus: int = 8, gpus: int = 0, kind: str | None = None, **labels: str) -> Node:
    resources = {"CPU": float(cpus), "GPU": float(gpus)} | ({f"accelerator_type:{kind}": 1.0} if kind else {})
    return Node(name, name, resources, labels)


H200 = [node("a", gpus=4, kind="H200", pool="fast"), node("b", gpus=4, kind="H200", pool="slow")]


@pytest.mark.parametrize(
    ("needs", "possible"),
    [
        (SlotNeeds(cpus=1, gpus=1), 8),
        (SlotNeeds(cpus=4, gpus=1), 4),
        (SlotNeeds(gpus=3), 2),
        (SlotNeeds(gpus=8), 0),
        (SlotNeeds(gpus=2, bundles=2), 2),
        (SlotNeeds(gpus=4, bundles=2), 0),  # STRICT_PACK: both bundles on one node
        (SlotNeeds(gpus=4, bundles=2, strategy="SPREAD"), 1),
        (SlotNeeds(gpus=1, bundles=2, strategy="STRICT_SPREAD"), 4),
        (SlotNeeds(gpus=1, bundles=3, strategy="STRICT_SPREAD"), 0),
        (SlotNeeds(gpus=1, labels={"pool": "fast"}), 4),
        (SlotNeeds(gpus=1, accelerator_type="H200", exclusive_node=True), 2),
    ],
)
def test_as_many_slots_fit_as_whole_bundles_do(needs: SlotNeeds, possible: int) -> None:
    assert slots_possible(needs, H200) == possible
    assert what_is_missing(needs, possible, H200) == ""
    assert what_is_missing(needs, possible + 1, H200) != ""


@pytest.mark.parametrize(
    ("needs", "slots", "words"),
    [
        (SlotNeeds(gpus=1), 9, "9 GPU, of 8"),
        (SlotNeeds(gpus=8), 1, "8 GPU on one node, of 4 on the largest"),
        (SlotNeeds(cpus=16), 1, "16 CPU on one node, of 8"),
        (SlotNeeds(accelerator_type="B200"), 1, "accelerator_type:B200, of which there is none .*H200"),
        (SlotNeeds(labels={"pool": "gold"}), 1, "label pool=gold, of which there is none .known: fast, slow"),
        (SlotNeeds(labels={"zone": "x"}), 1, "label zone=x, of which there is none .none is known"),
        (SlotNeeds(gpus=1, bundles=3, strategy="STRICT_SPREAD"), 1, "STRICT_SPREAD over nodes"),
        (SlotNeeds(gpus=1, exclusive_node=True), 3, "hold 2 slots"),
    ],
)
def test_what_is_missing_is_named(needs: SlotNeeds, slots: int, words: str) -> None:
    import re

    said = what_is_missing(needs, slots, H200)
    assert re.search(words, said), said
    assert said.endswith("ask for fewer slots or add nodes")


def test_a_cluster_without_nodes_is_said_too() -> None:
    assert "1 CPU on one node, of 0 on the largest" in what_is_missing(SlotNeeds(), 1, [])


def test_a_bundle_is_written_as_ray_wants_it() -> None:
    asked = SlotNeeds(cpus=2, gpus=4, accelerator_type="H200", labels={"pool": "fast"})
    assert asked.bundle() == {"CPU": 2.0, "GPU": 4.0, "accelerator_type:H200": 0.001}
    assert asked.words() == "2 CPU, 4 GPU, accelerator_type:H200, label pool=fast"


@pytest.mark.parametrize(
    "slot", [{"strategy": "SPREAD"}, {"exclusive_node": True, "bundles": 2}, {"gpus": -1}, {"gpu": 1}]
)
def test_a_slot_that_contradicts_itself_is_refused(slot: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"slot|gpu"):
        ExecutorSpec.model_validate({"slot": slot})


def test_fractions_of_a_device_are_refused() -> None:
    with pytest.raises(ValueError, match="gpus"):
        SlotSpec.model_validate({"gpus": 0.5})
