"""Whether all slots have the same engine: a study over two engines would compare nodes, not candidates. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trials.fingerprint import changed_parts

_SHOWN = 4


@dataclass(slots=True)
class Agreement:
    """What nodes said of their engine. The first to be asked together settle it: what most of them say; whoever
    joins later is held against that."""

    said: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # node -> what `worker --describe` printed
    hash: str = ""

    def hear(self, node: str, description: Mapping[str, Any]) -> None:
        self.said[node] = description

    def settle(self) -> None:
        """Fix the engine of the study; of a tie, the one that was heard first."""
        if not self.hash and self.said:
            self.hash = Counter(str(d["engine_hash"]) for d in self.said.values()).most_common(1)[0][0]

    def differs(self, node: str) -> str:
        """Why a node takes no part, with what its engine is there and elsewhere; empty where it does."""
        said = self.said[node]
        if not self.hash or said["engine_hash"] == self.hash:
            return ""
        usual = next((d for d in self.said.values() if d["engine_hash"] == self.hash), None)
        if usual is None:
            return f"its engine is {said['engine_hash'][:12]}, not {self.hash[:12]}"
        parts = changed_parts(usual.get("identity", {}), said.get("identity", {}))
        more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
        return f"its engine differs (elsewhere -> there): {'; '.join(parts[:_SHOWN])}{more}"
