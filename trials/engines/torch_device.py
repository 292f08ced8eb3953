"""The device side of a real engine's ledger: bytes of its tensors beside what the device itself reports.

On a CPU that is the process's resident size, with interpreter and libraries as `allocator_reserve`; on CUDA what
the driver counts, with torch's own peaks of allocated and reserved bytes in between.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from trials.engine import DeviceBytes
from trials.engines.kernels.resident import PeakResident, resident_bytes

_DEPTH = 3  # attributes of attributes of the runner: far enough for its buffers


class Tensors(NamedTuple):
    """What an engine allocated when it was opened. `buffers`: inputs and outputs of its steps."""

    pool: list[torch.Tensor]
    block_tables: list[torch.Tensor]
    weights: list[torch.Tensor]
    buffers: list[torch.Tensor]


def storages(tensors: Iterable[torch.Tensor], device: str) -> dict[int, int]:
    """Bytes by address of the tensors' storages on that kind of device, each once."""
    found = (t.untyped_storage() for t in tensors if t.device.type == device)
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """Tensors in an object's attributes, lists and dicts, as far as `depth` goes. Modules are left out."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and not isinstance(value, torch.nn.Module):
        if isinstance(value, dict):
            inside: Iterable[Any] = value.values()
        elif isinstance(value, list | tuple):
            inside = value
        else:
            inside = getattr(value, "__dict__", {}).values()
        for one in inside:
            yield from tensors_in(one, depth - 1)


def occupied(device: str) -> int:
    """Bytes that the device says are taken: by this process on a CPU, by everybody on CUDA."""
    if device == "cpu":
        return resident_bytes()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


@dataclass
class TorchDevice:
    """`baseline`: occupied before the first of the engine's tensors was made. `transient`: what the largest steps
    of the warm-up had live beside these tensors, by torch's own record of its allocations."""

    device: str
    tensors: Tensors
    baseline: int
    transient: int = 0
    kept: int = 0  # what libraries kept of the warm-up: kernels built for the shapes of its steps
    packed: int = 0  # weights in a form that is no tensor
    _peak: PeakResident = field(default_factory=PeakResident)
    _sizes: tuple[int, int, int, int] = (0, 0, 0, 0)

    def __post_init__(self) -> None:
        seen: set[int] = set()
        sizes = []
        for part in self.tensors:  # a storage that two parts name counts for the first
            mine = {at: size for at, size in storages(part, self.device).items() if at not in seen}
            seen |= mine.keys()
            sizes.append(sum(mine.values()))
        self._sizes = (sizes[0], sizes[1], sizes[2] + self.packed, sizes[3])

    def reset(self) -> None:
        """A replay begins."""
        if self.device == "cpu":
            self._peak.reset()
        else:
            torch.cuda.reset_peak_memory_stats()

    def bytes(self) -> DeviceBytes:
        """Named bytes beside the largest size since `reset`."""
        pool, tables, weights, buffers = self._sizes
        if self.device == "cpu":
            resident = self._peak.look()
            return DeviceBytes(
                pool=pool, block_tables=tables, weights=weights, workspace=buffers + self.transient,
                allocator_reserve=self.baseline + self.kept, observed=self._peak.bytes, resident=resident,
            )  # fmt: skip
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return DeviceBytes(
            pool=pool, block_tables=tables, weights=weights, workspace=allocated - pool - tables - weights,
            allocator_reserve=self.baseline + self.kept + reserved - allocated, observed=occupied("cuda"),
            resident=int(torch.cuda.memory_allocated()),
        )  # fmt: skip
