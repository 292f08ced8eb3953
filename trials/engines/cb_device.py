"""The device side of transformers' ledger: bytes of its tensors beside what the process occupies."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from trials.engine import DeviceBytes
from trials.engines.kernels.resident import PeakResident


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the tensors' storages, each once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Tensors among an object's attributes, lists and dicts included."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors_in(v)]
    if isinstance(value, list | tuple):
        return [t for v in value for t in tensors_in(v)]
    return []


@dataclass
class CbDevice:
    """`baseline`: what interpreter and libraries held before the first of the engine's tensors was made.
    `transient`: live at the peak of the largest steps of the warm-up, by torch's own record."""

    model: Any
    processor: Any
    baseline: int
    transient: int = 0
    peak: PeakResident = field(default_factory=PeakResident)

    def reset(self) -> None:
        """A replay begins."""
        self.peak.reset()

    def bytes(self) -> DeviceBytes:
        """Named bytes, and the largest resident size since `reset`."""
        outputs = self.processor.inputs_and_outputs
        resident = self.peak.look()
        tables = storage_bytes([outputs.block_table])
        return DeviceBytes(
            pool=storage_bytes([self.processor.cache.cache_tensor]),
            block_tables=tables,
            weights=storage_bytes([*self.model.parameters(), *self.model.buffers()]),
            workspace=storage_bytes(tensors_in(vars(outputs))) - tables + self.transient,
            allocator_reserve=self.baseline,
            observed=self.peak.bytes,
            resident=resident,
        )
