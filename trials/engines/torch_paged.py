"""TorchExecution: the scheduler's plans carried out on real tensors, timed by a real clock.

The scheduler decides, this room obeys: what is read and written is what the block tables say. It keeps the token
ids of every request until it is forgotten (a preempted one is computed again from them) and turns each plan into
arrays in time that follows what changed: a block table row is extended by new entries, rewritten for chunks.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from trials.engine import DeviceBytes, EngineStart, PoolGeometry, Refused
from trials.engines.kernels.batch import CLOCKS, Attention, BadBlock, Batch, CannotRun, Ids, Span
from trials.engines.kernels.config import CPU_KERNELS, TorchConfig, why_refused
from trials.engines.kernels.rehearsal import rehearsals
from trials.engines.kernels.resident import release_freed_memory
from trials.engines.torch_device import Tensors, TorchDevice, occupied
from trials.engines.torch_model import LlamaModel, random_weights
from trials.plan import Chunk, Plan, Run

TokensOf = Callable[[int], Ids]  # row -> its prompt's token ids, below vocab_size
Inherits = Callable[[int], tuple[int, int]]  # row -> (parent, leading tokens that it repeats); -1: of nobody


def nobody(row: int) -> tuple[int, int]:
    """No row continues another."""
    return -1, 0


class PlanMismatch(RuntimeError):
    """The plan and the tokens delivered so far contradict each other: a fault of the scheduler."""


@dataclass(slots=True)
class _Row:
    """What is kept of a request: its tokens, and how much of its block table the device has."""

    prompt: Ids
    output: list[int] = field(default_factory=list)
    slot: int = -1
    entries: int = 0

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.output)


class TorchExecution:
    """An `Execution` (trials/plan.py) on tensors. Build with `open_execution`, then `warm_up()` once."""

    def __init__(self, config: TorchConfig, tokens_of: TokensOf, inherits: Inherits = nobody) -> None:
        self.config = config
        self._tokens_of = tokens_of
        self._inherits = inherits
        torch.set_num_threads(config.threads)
        torch.set_flush_denormal(True)  # a denormal key makes the kernel 25 times slower
        compile_s = _compiled(config)
        release_freed_memory()
        if config.device == "cuda":
            torch.cuda.empty_cache()
        baseline = occupied(config.device)
        begin = time.perf_counter()
        weights = random_weights(config.model, config.seed, config.tied, config.device)
        self.model = LlamaModel(config.model, weights, config.max_tokens, config.max_num_seqs)
        self.attention = _attention(config)
        tensors = Tensors(
            [self.attention.pool], self.attention.tables(), self.model.weight_tensors(),
            [*self.model.buffers(), *self.attention.buffers()],
        )  # fmt: skip
        self._device = TorchDevice(config.device, tensors, baseline)
        self.start_up = EngineStart(load_s=time.perf_counter() - begin, compile_s=compile_s)
        self._clock = CLOCKS[config.clock]
        self._rows: dict[int, _Row] = {}
        self._delivered: dict[int, list[int]] = {}
        self._free_slots: list[int] = []
        self.reset()

    def warm_up(self) -> EngineStart:
        """Run every kind of step once, the same way for every block size; seconds so far, told apart.

        Leaves rubbish in the pool, as any use does; nothing may read it.
        """
        begin = time.perf_counter()
        for plan, prompts in rehearsals(self.config):
            for row, prompt in prompts.items():
                self._rows[row] = _Row(prompt, [0] if row in plan.decoding else [])
            self.execute(plan)
            self.reset()
        self.start_up = replace(self.start_up, warmup_s=time.perf_counter() - begin)
        return self.start_up

    def execute(self, plan: Plan) -> tuple[int, int | None]:
        """One step. Its duration covers preparation, model and sampling; prompts are fetched before it."""
        for chunk in plan.chunks:
            if chunk.run.row not in self._rows:
                self._admit(chunk.run)
        begin = self._clock()
        if plan.copies:
            self.attention.copy_blocks(plan.copies)
        if plan.decoding or plan.chunks:
            batch, ids_T, chosen = self._prepare(plan)
            self.attention.begin(batch)
            hidden_TC = self.model.forward(ids_T, self.attention.attend)
            if chosen:
                logits_SV = self.model.logits(hidden_TC, torch.tensor(chosen).to(self.config.device))
                self._deliver(plan, logits_SV.argmax(-1).tolist())
        self.attention.finish()
        duration_ns, spent = self._clock() - begin, self.attention.spent
        return duration_ns, spent.decode_ns + spent.prefill_ns

    def forget(self, row: int) -> None:
        kept = self._rows.pop(row, None)
        if kept is not None and kept.slot >= 0:
            self._free_slots.append(kept.slot)

    def reset(self) -> None:
        self._rows.clear()
        self._delivered.clear()
        self._free_slots = list(range(self.config.max_num_seqs))[::-1]
        self._device.reset()

    def delivered(self, row: int) -> list[int]:
        """Output tokens of a row so far, also of one that ended, until `reset`."""
        return list(self._delivered[row])

    def device(self) -> DeviceBytes:
        """Storages of our tensors beside the peak; `allocator_reserve` begins with what was occupied before the
        first of our tensors was made: interpreter and libraries, or a CUDA context, compiled kernels included."""
        return self._device.bytes()

    def _prompt(self, row: int) -> Ids:
        """Token ids of a prompt; where it repeats an answer, that which was really given, as far as it was."""
        line, at = list[tuple[int, int, int]](), row
        while (up := self._inherits(at))[0] >= 0:
            line.append((at, *up))
            at = up[0]
        prompt = np.ascontiguousarray(self._tokens_of(at), np.int64)
        for child, parent, count in reversed(line):
            known = np.concatenate((prompt, np.asarray(self._delivered.get(parent, []), np.int64)))[:count]
            prompt = np.array(self._tokens_of(child), np.int64)
            prompt[: len(known)] = known
        return prompt

    def _first_token(self, run: Run) -> int:
        """Of a fork that began to decode on its parent's blocks: what the parent delivered at that place."""
        row = run.parent
        while row >= 0:
            if row in self._delivered:
                return self._delivered[row][run.inherited_tokens - len(self._tokens_of(row))]
            row, _ = self._inherits(row)  # a fork that ended with its first token, and was in no plan
        raise PlanMismatch(f"row {run.row} goes on from a first token that nobody delivered")

    def _admit(self, run: Run) -> None:
        prompt = self._prompt(run.row)
        vocab = self.config.model.vocab_size
        if len(prompt) != run.num_prompt_tokens or (prompt.size and not 0 <= prompt.min() <= prompt.max() < vocab):
            raise PlanMismatch(
                f"row {run.row}: {run.num_prompt_tokens} prompt ids below {vocab} expected, got {len(prompt)} "
                f"up to {prompt.max(initial=-1)}"
            )
        output = self._delivered.setdefault(run.row, [])
        if run.sampled and not output:
            output.append(self._first_token(run))
        self._rows[run.row] = _Row(prompt, output)

    def _prepare(self, plan: Plan) -> tuple[Batch, torch.Tensor, list[int]]:
        """The plan as arrays: batch, token ids, and the token rows whose logits are wanted."""
        size, num_decodes = self.config.geometry.block_size, len(plan.decoding)
        positions = [self._place_decode(plan, run) for run in plan.decoding.values()]
        kept = [self._rows[row] for row in plan.decoding]
        ids = [np.fromiter((state.output[-1] for state in kept), np.int64, num_decodes)]
        rows_S = np.fromiter((state.slot for state in kept), np.int64, num_decodes)
        places = [np.asarray(positions, np.int64)]
        blocks = [self.attention.table_RM[rows_S, places[0] // size]]
        chosen, spans, first = list(range(num_decodes)), [], num_decodes
        for chunk in plan.chunks:
            state = self._place_chunk(plan, chunk)
            place = np.arange(chunk.start, chunk.start + chunk.num_tokens)
            ids.append(_stretch(state, chunk))
            places.append(place)
            blocks.append(self.attention.table_RM[state.slot, place // size])
            spans.append(Span(first, chunk.num_tokens, chunk.start, state.slot))
            first += chunk.num_tokens
            if chunk.samples:
                chosen.append(first - 1)
        if first > self.config.max_tokens:
            raise PlanMismatch(
                f"step {plan.step} computes {first} tokens, at most {self.config.max_tokens} expected"
            )
        positions_T = np.concatenate(places)
        pool_slots_T = np.concatenate(blocks).astype(np.int64) * size + positions_T % size
        batch = Batch(positions_T, pool_slots_T, rows_S, places[0] + 1, spans)
        return batch, torch.from_numpy(np.concatenate(ids)).to(self.config.device), chosen

    def _place_decode(self, plan: Plan, run: Run) -> int:
        """Position of the token that a decoding run computes; brings its table row up to date."""
        if run.forked and run.row not in self._rows:
            self._admit(run)
        state = self._rows.get(run.row)
        position = run.computed_at(plan.step)
        if state is None or not state.output or position != state.known - 1:
            known = 0 if state is None else state.known
            raise PlanMismatch(
                f"step {plan.step}, row {run.row}: decodes position {position}, but {known} tokens are known"
            )
        tail = position // self.config.geometry.block_size
        if state.slot < 0:
            self._take_slot(state, plan)
        if tail >= state.entries:
            self._extend(state, run, state.entries)
        elif run.table[tail] != self.attention.table_RM[state.slot, tail]:
            self._extend(state, run, 0)  # its tail was copied to another block
        if tail >= state.entries:
            raise PlanMismatch(f"row {run.row}: {state.entries} blocks do not hold position {position}")
        return position

    def _place_chunk(self, plan: Plan, chunk: Chunk) -> _Row:
        """Rewrite the chunk's whole table row: after an admission or a preemption all of it may be new."""
        state, end = self._rows[chunk.run.row], chunk.start + chunk.num_tokens
        if end > state.known or chunk.samples != (end == state.known):
            raise PlanMismatch(
                f"step {plan.step}, row {chunk.run.row}: a chunk to position {end} "
                f"{'samples' if chunk.samples else 'does not sample'}, but {state.known} tokens are known"
            )
        if state.slot < 0:
            self._take_slot(state, plan)
        self._extend(state, chunk.run, 0)
        needed = -(-end // self.config.geometry.block_size)
        if state.entries < needed:
            raise PlanMismatch(f"row {chunk.run.row}: {state.entries} blocks do not hold {end} tokens")
        return state

    def _extend(self, state: _Row, run: Run, first: int) -> None:
        self.attention.write_entries(state.slot, run.row, run.table, first)
        state.entries = len(run.table)

    def _take_slot(self, state: _Row, plan: Plan) -> None:
        """A row of the device table; those of preempted requests are taken back when no other is left."""
        if not self._free_slots:
            busy = set(plan.decoding) | {chunk.run.row for chunk in plan.chunks}
            for row, other in self._rows.items():
                if row not in busy and other.slot >= 0:
                    self._free_slots.append(other.slot)
                    other.slot, other.entries = -1, 0
        if not self._free_slots:
            raise PlanMismatch(f"step {plan.step}: more than max_num_seqs {self.config.max_num_seqs} requests run")
        state.slot, state.entries = self._free_slots.pop(), 0

    def _deliver(self, plan: Plan, tokens: list[int]) -> None:
        sampled = list(plan.decoding) + [chunk.run.row for chunk in plan.chunks if chunk.samples]
        for row, token in zip(sampled, tokens, strict=True):
            self._rows[row].output.append(token)


def _compiled(config: TorchConfig) -> float:
    """Compile what is compiled ahead of its first call; seconds."""
    if config.kernel not in CPU_KERNELS:
        return 0.0
    from trials.engines.kernels.calls import compile_kernels

    return compile_kernels(config.model.kv_dtype, config.threads)


def _attention(config: TorchConfig) -> Attention:
    """Pool, tables and kernel; numba is imported only for the kernels that it compiles."""
    if config.kernel in CPU_KERNELS:
        from trials.engines.kernels.attention import PagedAttention

        return PagedAttention(config)
    from trials.engines.kernels.on_device import device_attention

    return device_attention(config)


def _stretch(state: _Row, chunk: Chunk) -> Ids:
    """Token ids of a chunk; one that recomputes runs from the prompt into the delivered output."""
    end, prompt = chunk.start + chunk.num_tokens, state.prompt
    if end <= len(prompt):
        return prompt[chunk.start : end]
    tail = np.asarray(state.output[max(0, chunk.start - len(prompt)) : end - len(prompt)], np.int64)
    return np.concatenate((prompt[chunk.start :], tail))


def open_execution(
    config: TorchConfig, tokens_of: TokensOf, inherits: Inherits = nobody
) -> TorchExecution | Refused:
    """Build the execution, warmed up and ready, or say why this engine does not run that configuration.

    What a GPU's kernel or memory refuses in the warm-up is refused in its own words, and no crash.
    """
    refusal = why_refused(config)
    if refusal is not None:
        return Refused(refusal)
    try:
        return _opened(config, tokens_of, inherits)
    except (CannotRun, ImportError) as error:
        return Refused(f"kernel {config.kernel}: {error}")
    except RuntimeError as error:
        if config.device == "cpu" or isinstance(error, PlanMismatch | BadBlock):
            raise
        words = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return Refused(f"kernel {config.kernel} at block size {config.geometry.block_size}: {words}")


def _opened(config: TorchConfig, tokens_of: TokensOf, inherits: Inherits) -> TorchExecution:
    """A small model runs first, so that pages of libraries and compiled code that the first use maps are in the
    process's baseline and not in the model's account."""
    begin = time.perf_counter()
    small = TorchExecution(_small(config), tokens_of)
    compile_s = small.start_up.compile_s
    small.warm_up()
    del small
    rehearsed_s = time.perf_counter() - begin - compile_s
    if config.kernel not in CPU_KERNELS:  # compiled, where anything is, at its first call: in this run
        compile_s, rehearsed_s = compile_s + rehearsed_s, 0.0
    execution = TorchExecution(config, tokens_of, inherits)
    start_up = execution.warm_up()
    execution.start_up = replace(start_up, compile_s=compile_s, warmup_s=start_up.warmup_s + rehearsed_s)
    return execution


def _small(config: TorchConfig) -> TorchConfig:
    """The same kinds of step at a fraction of the size."""
    model = config.model.model_copy(
        update={"num_layers": 1, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64}
    )
    old, length = config.geometry, min(config.max_model_len, 64)
    size = length if config.layout == "contiguous" else min(old.block_size, length)
    block_bytes = size * model.kv_bytes_per_token
    geometry = PoolGeometry(size, 4, 0, model.kv_bytes_per_token, 0, 4 * block_bytes, size, size)
    return replace(
        config, model=model, geometry=geometry, max_model_len=length, max_num_seqs=4, max_num_batched_tokens=32
    )
