"""Where slots are: one placement group each, the node that it came to lie on, and whether that node still lives."""

import os
import time
from dataclasses import dataclass, field
from typing import Any

from orchestrator.slot_needs import Node, NotEnough, SlotNeeds, what_is_missing

_LOOK_S = 0.5


def survey() -> list[Node]:
    """Every living node of the cluster."""
    import ray

    return [
        Node(n["NodeID"], n["NodeManagerHostname"], n.get("Resources") or {}, n.get("Labels") or {})
        for n in ray.nodes()
        if n["Alive"]
    ]


@dataclass(slots=True)
class Place:
    """A slot's reservation. `node` None while Ray looks for one; `index`: which of our slots it is on that node.

    `whole`: the node that it was asked for as a whole; `group` None while there is none to ask for.
    """

    slot: str
    group: Any = None
    whole: str | None = None
    node: Node | None = None
    nodes: tuple[str, ...] = ()  # hosts of all bundles, in their order
    index: int = 0


@dataclass(slots=True)
class Places:
    """All reservations of an executor."""

    needs: SlotNeeds
    by_slot: dict[str, Place] = field(default_factory=dict)
    alive: dict[str, Node] = field(default_factory=dict)
    _looked_s: float = -1e9

    def reserve(self, slots: tuple[str, ...], grows: bool) -> None:
        """Ask for all. Raises NotEnough at once for what no node here can ever give, unless the cluster grows."""
        self.look(now=True)
        missing = what_is_missing(self.needs, len(slots), list(self.alive.values()))
        if missing and not grows:
            raise NotEnough(missing)
        for slot in slots:
            self.by_slot[slot] = Place(slot)
            self._ask(self.by_slot[slot])

    def _ask(self, place: Place) -> None:
        """Ask Ray for the slot's bundles; it answers when it can."""
        from ray.util.placement_group import placement_group

        needs = self.needs
        bundle, labels = needs.bundle(), dict(needs.labels)
        if needs.exclusive_node:
            node = self._whole_node()
            if node is None:
                return  # until another joins, or lets go
            place.whole = labels["ray.io/node-id"] = node.id
            bundle |= {kind: float(node.resources[kind]) for kind in ("CPU", "GPU") if node.resources.get(kind)}
        selectors = {"bundle_label_selector": [labels] * needs.bundles} if labels else {}
        place.group = placement_group([bundle] * needs.bundles, strategy=needs.strategy, **selectors)

    def _whole_node(self) -> Node | None:
        """A node that no slot of ours has asked for."""
        taken = {place.whole for place in self.by_slot.values()}
        fitting = (n for n in self.alive.values() if n.id not in taken and self.needs.bundles_on(n))
        return next(fitting, None)

    def _give_back(self, place: Place) -> None:
        from ray.util.placement_group import remove_placement_group

        if place.group is not None:
            remove_placement_group(place.group)
        place.group = place.whole = None

    def look(self, now: bool = False) -> set[str]:
        """See which nodes live and where groups lie; slots whose node is gone. At most twice a second."""
        if not now and time.monotonic() - self._looked_s < _LOOK_S:
            return set()
        self._looked_s = time.monotonic()
        self.alive = {node.id: node for node in survey()}
        gone = set()
        for place in self.by_slot.values():
            if place.node is not None and place.node.id not in self.alive:
                gone.add(place.slot)
                place.node = None
                if place.whole is not None:
                    self._give_back(place)
            if place.group is None:
                self._ask(place)
            elif place.node is None:
                self._find(place)
        return gone

    def _find(self, place: Place) -> None:
        """Where the group lies, once all of it lies on nodes that live."""
        from ray.util.placement_group import placement_group_table

        table = placement_group_table(place.group)
        where = table.get("bundles_to_node_id") or {}
        ids = [where[k] for k in sorted(where, key=int)]
        if table.get("state") != "CREATED" or len(ids) != self.needs.bundles or not set(ids) <= self.alive.keys():
            return
        taken = {p.index for p in self.by_slot.values() if p.node is not None and p.node.id == ids[0]}
        place.node = self.alive[ids[0]]
        place.nodes = tuple(self.alive[node].words for node in ids)
        place.index = next(i for i in range(len(self.by_slot) + 1) if i not in taken)

    def neighbours(self, a: str, b: str) -> bool:
        """Whether two slots are on one node."""
        one, other = self.by_slot[a].node, self.by_slot[b].node
        return a == b or (one is not None and other is not None and one.id == other.id)

    def facts(self, slot: str) -> dict[str, Any]:
        """What attempt.json says of the reservation: how it was asked for, and who else of ours is on the node."""
        place, needs = self.by_slot[slot], self.needs
        ours = sum(self.neighbours(slot, other) for other in self.by_slot)
        return {
            "slot": slot, "slot_node": place.node.words if place.node else None, "slot_nodes": list(place.nodes),
            "slot_strategy": needs.strategy, "slot_bundle": needs.bundle(), "slots_on_node": ours,
            "exclusive_node": needs.exclusive_node, "driver_pid": os.getpid(),
        }  # fmt: skip

    def release(self) -> None:
        """Give every reservation back."""
        for place in self.by_slot.values():
            self._give_back(place)
        self.by_slot.clear()
