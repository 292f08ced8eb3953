"""The actors of an executor's slots: started where their place is, asked who they are, kept alive, replaced.

A slot is waiting for its place, joining (its actor was asked and has not answered), serving, or left out for good
because its node's engine is another one or its device did not come back. Whatever breaks is begun again.
"""

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.engine_agreement import Agreement
from orchestrator.ray_actor import SlotActor, Terms
from orchestrator.ray_content import Delivery, Dispatch
from orchestrator.ray_places import Places
from trials.spec import TrialSpec

_JOIN_S = 330.0  # a first description may import much
_PAUSE_S = 1.0  # before a slot that broke is begun again

Phase = Literal["waiting", "joining", "introduced", "serving", "left_out"]


@dataclass(slots=True)
class _Member:
    """One slot's actor."""

    slot: str
    phase: Phase = "waiting"
    actor: Any = None
    asked: Any = None  # what join() will answer
    since_s: float = field(default_factory=time.monotonic)
    why: str = "no node has room for it yet"


class Crew:
    """One member a slot. `look` moves all of them on; everything else is what came of it."""

    def __init__(self, places: Places, terms: Terms, describe: TrialSpec | None, dispatch: Dispatch) -> None:
        self._places, self._terms, self._describe, self._dispatch = places, terms, describe, dispatch
        self._members: dict[str, _Member] = {}
        self._agreement = Agreement()
        self.left_out: dict[str, str] = {}  # node -> why
        self._closed = threading.Event()
        threading.Thread(target=self._beat, name="beats", daemon=True).start()

    @property
    def engine_hash(self) -> str:
        """Of the engine that all slots have; empty where none was asked for."""
        return self._agreement.hash

    @property
    def hopeful(self) -> bool:
        """Whether some slot may yet come into service."""
        return any(m.phase not in ("serving", "left_out") for m in self._members.values())

    def serves(self, slot: str) -> bool:
        return self.has(slot) and self._members[slot].phase == "serving"

    def is_left_out(self, slot: str) -> bool:
        """Whether it takes no part any more."""
        return slot in self._members and self._members[slot].phase == "left_out"

    def has(self, slot: str) -> bool:
        """Whether the slot has an actor."""
        return slot in self._members and self._members[slot].actor is not None

    def actor(self, slot: str) -> Any:
        return self._members[slot].actor

    def look(self, now: bool = False) -> dict[str, str]:
        """Move every slot on; slots whose node is gone since the last look, and why."""
        gone = {}
        for slot in self._places.look(now):
            gone[slot] = "its node was declared dead"
            self.drop(slot)
        for slot, place in self._places.by_slot.items():
            member = self._members.setdefault(slot, _Member(slot))
            if member.phase == "waiting" and place.node is not None:
                self._start(member)
            elif member.phase == "joining":
                self._hear(member)
        self._introduce()
        return gone

    def _start(self, member: _Member) -> None:
        """Start the actor and ask it who it is; of several on one node, one describes its engine."""
        place = self._places.by_slot[member.slot]
        assert place.node is not None
        if time.monotonic() < member.since_s:
            return
        node = place.node.id
        spec = self._describe
        if spec is not None and node in self._agreement.said:
            spec = None
        elif spec is not None and self._being_asked(node):
            return
        delivery = self._dispatch.of(spec) if spec is not None else Delivery()
        member.actor = self._actor(place.group)
        member.asked = member.actor.join.remote(spec, delivery)
        member.phase, member.since_s = "joining", time.monotonic()

    def _being_asked(self, node: str) -> bool:
        places = self._places.by_slot
        joining = (places[m.slot].node for m in self._members.values() if m.phase == "joining")
        return any(other is not None and other.id == node for other in joining)

    def _actor(self, group: Any) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needs = self._places.needs
        options = ray.remote(SlotActor).options(
            num_cpus=needs.cpus,
            num_gpus=needs.gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=4,  # so that it is heard while a trial runs
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
        )
        return options.remote(self._terms)

    def _hear(self, member: _Member) -> None:
        import ray

        ready, _ = ray.wait([member.asked], timeout=0)
        if not ready:
            if time.monotonic() - member.since_s > _JOIN_S:
                self.drop(member.slot)
                member.why = f"its node has not answered for {_JOIN_S:g} s"
            return
        try:
            said = ray.get(member.asked)
        except ray.exceptions.RayError as error:
            self.drop(member.slot)
            member.why = f"its node does not answer: {type(error).__name__}: {str(error).splitlines()[0]}"
            return
        place = self._places.by_slot[member.slot]
        if "trouble" in said:
            self._leave_out(member, f"its engine cannot be described: {said['trouble']}")
        elif place.node is not None:
            if "engine" in said:
                self._agreement.hear(place.node.id, said["engine"])
            member.phase = "introduced"

    def _introduce(self) -> None:
        """Put those that have answered into service, once the first of them have settled which engine it is."""
        if any(m.phase == "joining" for m in self._members.values()) and not self._agreement.hash:
            return
        self._agreement.settle()
        for member in self._members.values():
            place = self._places.by_slot[member.slot]
            if member.phase != "introduced" or place.node is None:
                continue
            differs = self._agreement.differs(place.node.id) if self._describe is not None else ""
            if differs:
                self._leave_out(member, differs)
            else:
                member.phase, member.why = "serving", ""

    def _leave_out(self, member: _Member, why: str) -> None:
        """The slot takes no part any more."""
        node = self._places.by_slot[member.slot].node
        name = node.words if node is not None else member.slot
        self._end(member)
        member.phase, member.why = "left_out", f"{name}: {why}"
        self.left_out[name] = why

    def drop(self, slot: str, because: str = "") -> None:
        """Give a slot's actor up; it is begun again, unless there is a reason why it must not be."""
        member = self._members[slot]
        if member.phase == "left_out":
            return
        if because:
            self._leave_out(member, because)
            return
        self._end(member)
        member.phase, member.why = "waiting", "its node was lost, and no other has room for it"
        member.since_s = time.monotonic() + _PAUSE_S

    def _end(self, member: _Member) -> None:
        import ray

        if member.actor is not None:
            with contextlib.suppress(Exception):  # it may be gone, and its cluster with it
                ray.kill(member.actor)
        member.actor = member.asked = None

    def why_not(self, wanted: int) -> str:
        """Why not all slots serve, in words."""
        serving = sum(m.phase == "serving" for m in self._members.values())
        reasons = dict.fromkeys(m.why for m in self._members.values() if m.phase != "serving")
        return (
            f"{serving} of {wanted} slots of {self._places.needs.words()} are in service: {'; '.join(reasons)}; "
            "ask for fewer slots, free what others hold, or add nodes"
        )

    def _beat(self) -> None:
        """Tell every actor that its driver lives, for as long as it does."""
        while not self._closed.wait(self._terms.lease_s / 6):
            for member in list(self._members.values()):
                with contextlib.suppress(Exception):  # what is wrong with it shows elsewhere
                    if member.actor is not None:
                        member.actor.beat.remote()

    def close(self) -> None:
        """End every actor; may be called twice."""
        self._closed.set()
        for member in self._members.values():
            self._end(member)
            member.phase = "waiting"
