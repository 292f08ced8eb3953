"""How transformers' continuous batching is brought up: libraries mapped, thread started, pool and steps warmed."""

import contextlib
from typing import Any

from trials.engine import EngineDied, EngineFacts, EngineStart, PoolGeometry
from trials.engines.builds import Builds
from trials.engines.cb_config import allocator_of, blocks_a_sector, open_batching
from trials.engines.cb_engine import ContinuousBatching
from trials.engines.cb_loop import ServingThread
from trials.engines.cb_rehearsal import rehearse
from trials.engines.cb_watch import CachePoolWatch
from trials.engines.filling import prompt_lengths
from trials.engines.kernels.resident import release_freed_memory
from trials.engines.outputs import Outputs
from trials.engines.torch_device import Tensors, TorchDevice, occupied, tensors_in
from trials.engines.torch_peak import peak_bytes
from trials.geometry import pool_geometry
from trials.spec import PoolSpec, TrialSpec

_MAPPED: list[bool] = []  # a process maps its libraries once


class Opening:
    """One engine being opened; `give_up` ends what was started."""

    def __init__(self, spec: TrialSpec) -> None:
        self._spec = spec
        self._baseline = 0
        self._thread: ServingThread | None = None

    def map_libraries(self) -> None:
        """Serve with a small model, once a process: what libraries map on first use is then in its baseline."""
        if not _MAPPED:
            self._serve_small()
            _MAPPED.append(True)
        release_freed_memory()
        self._baseline = occupied(self._spec.engine.device)

    def _serve_small(self) -> None:
        peak_bytes(lambda: None)  # torch's profiler insists on the main thread for its first time
        spec = _small(self._spec)
        geometry = pool_geometry(spec)
        assert isinstance(geometry, PoolGeometry)
        thread = self.serving_thread(open_batching(spec, geometry))
        rehearse(thread, [24, 24], spec.model.vocab_size)
        thread.stop()
        self._thread = None

    def serving_thread(self, manager: Any) -> ServingThread:
        """Its thread, standing before the first turn. Raises EngineDied."""
        self._thread = ServingThread(manager)
        self._thread.start()
        return self._thread

    def warmed(self, thread: ServingThread, geometry: PoolGeometry) -> TorchDevice:
        """Every kind of step was run once, and nothing is left of it."""
        manager, processor = thread.manager, thread.manager.batch_processor
        model, outputs = manager.model, processor.inputs_and_outputs
        tensors = Tensors(
            pool=[processor.cache.cache_tensor], block_tables=[outputs.block_table],
            weights=[*model.parameters(), *model.buffers()], buffers=list(tensors_in(vars(outputs), 2)),
        )  # fmt: skip
        device = TorchDevice(self._spec.engine.device, tensors, self._baseline)
        release_freed_memory()
        before, policy = occupied(device.device), self._spec.policy
        prompts = prompt_lengths(geometry, policy.max_model_len, policy.max_num_seqs, policy.max_num_batched_tokens)
        device.transient = rehearse(thread, prompts, int(model.config.vocab_size))
        processor.reset()
        processor.cache.reset()
        release_freed_memory()
        device.kept = max(0, occupied(device.device) - before)
        return device

    def engine(
        self, thread: ServingThread, facts: EngineFacts, outputs: Outputs, device: TorchDevice,
        start_up: EngineStart, builds: Builds,
    ) -> ContinuousBatching:  # fmt: skip
        """The engine, watched from now on."""
        processor = thread.manager.batch_processor
        watch = CachePoolWatch(processor, allocator_of(processor))
        return ContinuousBatching(thread, watch, facts, outputs, device, start_up, builds)

    def give_up(self) -> None:
        """End the thread, if there is one; its error has been taken."""
        if self._thread is not None:
            with contextlib.suppress(RuntimeError, EngineDied):
                self._thread.stop()


def _small(spec: TrialSpec) -> TrialSpec:
    """The same kinds of step at a fraction of the size, with nothing of `engine.args` that could be refused."""
    model = spec.model.model_copy(
        update={"path": None, "num_layers": 1, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64}
    )
    policy = spec.policy.model_copy(
        update={
            "block_size": 8,
            "layout": "paged",
            "max_model_len": 64,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 32,
        }
    )
    blocks = 16 * blocks_a_sector(8 * model.kv_bytes_per_token)
    engine = spec.engine.model_copy(update={"args": {}})
    return spec.model_copy(
        update={"model": model, "policy": policy, "pool": PoolSpec(blocks=blocks), "engine": engine}
    )
