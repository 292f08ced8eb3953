"""What a slot reserves, and whether a cluster can ever give it. Pure: nodes come in as facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trials.units import SpecError

_SLIVER = 0.001  # how Ray asks for a kind of accelerator: a trace of a resource that only such nodes have


class NotEnough(SpecError):
    """The cluster has not what the slots ask for; waiting would not help."""


@dataclass(frozen=True, slots=True)
class Node:
    """A living node: what it has in all, not what is free of it."""

    id: str
    host: str
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Its name, and what tells it from another on the same host."""
        return f"{self.host} (node {self.id[:8]})"


@dataclass(frozen=True, slots=True)
class SlotNeeds:
    """What one slot reserves: `bundles` equal bundles. Timing trials never share a device: no fractions."""

    cpus: int = 1
    gpus: int = 0
    bundles: int = 1
    strategy: str = "STRICT_PACK"
    accelerator_type: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    exclusive_node: bool = False

    def bundle(self) -> dict[str, float]:
        """One bundle as Ray writes it."""
        asked = {"CPU": float(self.cpus)}
        if self.gpus:
            asked["GPU"] = float(self.gpus)
        if self.accelerator_type is not None:
            asked[f"accelerator_type:{self.accelerator_type}"] = _SLIVER
        return asked

    def bundles_on(self, node: Node) -> int:
        """How many bundles the node could hold if it were empty."""
        if any(node.labels.get(name) != value for name, value in self.labels.items()):
            return 0
        fits = min(int(node.resources.get(kind, 0) // number) for kind, number in self.bundle().items() if number)
        return min(fits, 1) if self.exclusive_node else fits

    def words(self) -> str:
        """`1 CPU, 2 GPU, accelerator_type:H200, label pool=b`."""
        parts = [f"{n:g} {kind}" if n >= 1 else kind for kind, n in self.bundle().items()]
        return ", ".join([*parts, *(f"label {name}={value}" for name, value in sorted(self.labels.items()))])


def slots_possible(needs: SlotNeeds, nodes: Sequence[Node]) -> int:
    """How many slots these nodes could hold if they were empty."""
    rooms = [needs.bundles_on(node) for node in nodes]
    if needs.strategy == "STRICT_PACK":
        return sum(room // needs.bundles for room in rooms)
    if needs.strategy == "STRICT_SPREAD":
        slots = 0
        while sum(min(room, slots + 1) for room in rooms) >= (slots + 1) * needs.bundles:
            slots += 1
        return slots
    return sum(rooms) // needs.bundles


def what_is_missing(needs: SlotNeeds, slots: int, nodes: Sequence[Node]) -> str:
    """Why the cluster can never hold that many slots, naming what is short; empty where it can."""
    if slots_possible(needs, nodes) >= slots:
        return ""
    lacks = [words for words in (_lacking(needs, nodes), _short_in_all(needs, slots, nodes)) if words]
    most = slots_possible(needs, nodes)
    if not lacks:
        spread = f" ({needs.strategy} over nodes)" if needs.bundles > 1 else ""
        lacks.append(f"its nodes hold {most} slots of {needs.bundles} x ({needs.words()}){spread}")
    return f"{slots} slots need {'; '.join(lacks)}: ask for fewer slots or add nodes"


def _lacking(needs: SlotNeeds, nodes: Sequence[Node]) -> str:
    """The first thing that no single node has."""
    for name, value in needs.labels.items():
        if not any(node.labels.get(name) == value for node in nodes):
            known = sorted({node.labels[name] for node in nodes if name in node.labels})
            return f"a node with label {name}={value}, of which there is none ({_known(known)})"
    for kind, number in needs.bundle().items():
        largest = max((node.resources.get(kind, 0) for node in nodes), default=0)
        if largest >= number:
            continue
        if kind.startswith("accelerator_type:"):
            known = sorted({k for node in nodes for k in node.resources if k.startswith("accelerator_type:")})
            return f"a node with {kind}, of which there is none ({_known(known)})"
        return f"{number:g} {kind} on one node, of {largest:g} on the largest"
    return ""


def _short_in_all(needs: SlotNeeds, slots: int, nodes: Sequence[Node]) -> str:
    """What all nodes together have too little of."""
    short = []
    for kind, number in needs.bundle().items():
        wanted = number * needs.bundles * slots
        have = sum(node.resources.get(kind, 0) for node in nodes)
        if number >= 1 and have < wanted:
            short.append(f"{wanted:g} {kind}, of {have:g}")
    return "; ".join(short)


def _known(values: Sequence[str]) -> str:
    return f"known: {', '.join(values)}" if values else "none is known"
