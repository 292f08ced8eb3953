"""The simulator with mechanisms of paging switched off, one or several: what each of them costs at most.

Not an engine that could be built, but one that is never worse off: where a mechanism is off, what it takes is given
back and everything else stays as it was.

    tail_slack      memory is handed out by the token; prefix hits and kernel still see blocks
    reuse_quantum   a common beginning is reused to the token, not to the block
    block_tables    the pool is not charged for device block tables
    block_term      the kernel pays for tokens, not for blocks
    watermark       nothing is kept back at admission
    preemption      who runs is never short of a block; admission sees the same memory as before
"""

from collections.abc import Collection
from dataclasses import replace

from trials.block_pool import BlockPool, PoolRules
from trials.content import Content
from trials.engine import DeviceBytes, EngineFacts, PoolGeometry, Refused, StepShape, StepTime, Work
from trials.engines.own import PagedEngine, applied, effective_knobs
from trials.engines.simulator import Modelled
from trials.geometry import block_table_bytes, pool_geometry
from trials.prefix_index import PrefixIndex
from trials.roofline import step_time
from trials.spec import PoolPolicy, TrialSpec
from trials.trace import Trace
from trials.units import SpecError, nearest

MECHANISMS = ("tail_slack", "reuse_quantum", "block_tables", "block_term", "watermark", "preemption")
BLOCK_SIZE = ("tail_slack", "reuse_quantum", "block_tables", "block_term")  # what another block size could change
_OVERDRAFT = 3  # pools that running requests may draw on beside their own
_LONG_TOKENS = 1024  # requests this long are handed memory by more than a token, for speed: below 0.1 % of slack


class _Quantised(PrefixIndex):
    """Finds prefixes in multiples of `quantum` blocks only."""

    def __init__(self, quantum: int) -> None:
        super().__init__()
        self._quantum = quantum

    def match(self, keys: list[int], limit: int) -> list[int]:
        found = super().match(keys, limit)
        return found[: len(found) // self._quantum * self._quantum]


class _Overdrawn(BlockPool):
    """More blocks than there are; what is cached is held to those that there would be."""

    def __init__(self, geometry: PoolGeometry, real_blocks: int, policy: PoolPolicy, rules: PoolRules) -> None:
        super().__init__(
            geometry.num_blocks, geometry.block_size, geometry.reserve_blocks, policy.prefix_caching, rules
        )
        self.real_blocks = real_blocks - geometry.reserve_blocks

    def take(self, count: int) -> list[int]:
        taken = super().take(count)
        self._forget_beyond()
        return taken

    def release(self, table: list[int], tokens: int, num_counted: int, ahead: int = 0) -> None:
        super().release(table, tokens, num_counted, ahead)
        self._forget_beyond()

    def _forget_beyond(self) -> None:
        live = self.num_blocks - self.reserve_blocks - self.available
        excess = self.accounts.cached_blocks - max(0, self.real_blocks - live)
        if excess > 0:
            self._blank += self._evict(excess)
            self.accounts.forget(excess)


class _RelaxedEngine(PagedEngine):
    """A simulator over a pool that is given to it."""

    def __init__(
        self, facts: EngineFacts, policy: PoolPolicy, content: Content, execution: Modelled, pool: _Overdrawn
    ) -> None:  # fmt: skip
        super().__init__(facts, policy, content, execution)
        self._pool: BlockPool = pool
        self._most_tokens = pool.real_blocks * pool.block_size
        self.start(cold=True)

    def add(self, work: Work) -> str | None:
        held = work.num_prompt_tokens + work.num_output_tokens - 1
        if held > self._most_tokens:
            return f"holds {held} tokens at its end, more than the {self._most_tokens} of the pool"
        return super().add(work)


def granule(trace: Trace) -> int:
    """Tokens that memory is handed out by where tail slack is off: 1, or near enough where requests are long."""
    mean = float((trace.num_prompt_tokens + trace.num_output_tokens).mean())
    return 1 << max(0, int(mean // _LONG_TOKENS).bit_length() - 1) if mean >= _LONG_TOKENS else 1


def relaxed_engine(spec: TrialSpec, trace: Trace, content: Content, off: Collection[str]) -> PagedEngine | Refused:
    """A simulator of the spec with the mechanisms in `off` switched off. SpecError where one is unknown."""
    for name in off:
        if name not in MECHANISMS:
            raise SpecError(f"mechanism {name!r} does not exist; {nearest(name, MECHANISMS)}")
    given = pool_geometry(spec)
    if isinstance(given, str):
        return Refused(given)
    policy = applied(_relaxed_policy(spec.policy, off))
    geometry = _resized(given, spec, trace, off)
    real = geometry.num_blocks
    if "preemption" in off:
        margin = int(policy.watermark * real)
        geometry = _with_blocks(geometry, (1 + _OVERDRAFT) * real)
        # Admission keeps back all that was added, and what it kept back before.
        policy = policy.model_copy(
            update={"watermark": (_OVERDRAFT * real + margin + 0.5) / geometry.num_blocks}
        )  # fmt: skip
    policy = policy.model_copy(update={"block_size": geometry.block_size})
    rules = PoolRules(policy.eviction, policy.free_order, policy.prefix_match == "partial")
    pool = _Overdrawn(geometry, real, policy, rules)
    if "tail_slack" in off and "reuse_quantum" not in off:
        pool.index = _Quantised(max(1, given.block_size // geometry.block_size))
    facts = EngineFacts(
        name="simulator", engine_hash="", evidence="modelled", clock="virtual", groups=(geometry,), ranks=1,
        effective=effective_knobs(policy, geometry), max_model_len=policy.max_model_len,
    )  # fmt: skip
    execution = Modelled(_time(spec, policy, given, geometry, off), DeviceBytes(pool=geometry.pool_bytes))
    return _RelaxedEngine(facts, policy, content, execution, pool)


def _relaxed_policy(policy: PoolPolicy, off: Collection[str]) -> PoolPolicy:
    fields: dict[str, object] = {"watermark": 0.0} if "watermark" in off else {}
    if "reuse_quantum" in off and "tail_slack" not in off and policy.prefix_caching and policy.layout == "paged":
        fields["prefix_match"] = "partial"
    return policy.model_copy(update=fields)


def _resized(given: PoolGeometry, spec: TrialSpec, trace: Trace, off: Collection[str]) -> PoolGeometry:
    """The pool of the spec, by the token where tail slack is off, with its tables' bytes where they are off."""
    grown = given.pool_bytes + (block_table_bytes(spec) if "block_tables" in off and pays_for_tables(spec) else 0)
    size, padding = given.block_size, given.padding_bytes_per_block
    if "tail_slack" in off and granule(trace) < size:
        size, padding = granule(trace), 0
    blocks = grown // (size * given.bytes_per_token + padding)
    reserve = -(-given.reserve_blocks * given.block_size // size)
    return replace(
        given, block_size=size, num_blocks=blocks, reserve_blocks=reserve, padding_bytes_per_block=padding,
        pool_bytes=grown, kernel_block_size=size, reuse_quantum_tokens=size,
    )  # fmt: skip


def pays_for_tables(spec: TrialSpec) -> bool:
    """Whether block tables are paid from the same bytes as the pool."""
    return spec.pool.tables_inside or spec.pool.device_budget is not None


def _with_blocks(geometry: PoolGeometry, num_blocks: int) -> PoolGeometry:
    return replace(geometry, num_blocks=num_blocks, pool_bytes=num_blocks * geometry.block_bytes)


def _time(
    spec: TrialSpec, policy: PoolPolicy, given: PoolGeometry, geometry: PoolGeometry, off: Collection[str]
) -> StepTime:  # fmt: skip
    """The spec's step times; where memory is handed out by the token, with the blocks that a kernel would see."""
    if spec.engine.step_time is None:
        raise SpecError("engine.step_time is needed: how long a step takes, for example roofline:h100-sxm")
    size = given.block_size
    plain = step_time(
        spec.engine.step_time, spec.model, size, policy.max_num_batched_tokens, block_term="block_term" not in off
    )
    if geometry.block_size == size:
        return plain

    def seen(shape: StepShape) -> tuple[int, int]:
        decodes, context = shape.num_decodes, shape.decode_context
        blocks = max(decodes, -(-(2 * context + decodes * (size - 1)) // (2 * size)))  # tails half full on average
        return plain(shape._replace(decode_blocks=blocks))

    return seen
