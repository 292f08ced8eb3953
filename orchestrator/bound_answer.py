"""What a bound says: gains by mechanism, which of them limits, and the answer in words."""

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from trials.relaxed import MECHANISMS
from trials.spec import TrialSpec

WITHIN = 0.005  # ratio between rungs: the smallest gain that is seen
WORTH = 0.02  # a gain below this is not worth a search


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BoundRow(_Model):
    """One mechanism switched off. `gain`: share of the default's capacity; None where the default holds no load."""

    mechanism: str
    noun: str  # how it is called in a sentence
    capacity: float | None  # rate_scale; None: no load holds
    gain: float | None
    replays: int


class Bound(_Model):
    """What there is to gain. Gains below `within` are not told from none."""

    words: str
    within: float
    requests: int
    window_s: tuple[float, float]
    slo: str
    default: float | None  # rate_scale that holds
    binding: str  # what breaks beyond it
    ideal: float | None  # with all mechanisms of MECHANISMS off
    block_size_gain: float | None  # most that any of BLOCK_SIZE, or all of them, gain
    limited_by: str  # mechanism or resource; "speed" where none gains
    rows: tuple[BoundRow, ...]
    not_applicable: tuple[str, ...]
    token_granularity: int
    needs_requests: int = 0
    replays: int
    seconds: float

    @property
    def lines(self) -> Iterator[str]:
        """For a terminal."""
        yield self.words
        yield (
            f"{self.requests} requests from {self.window_s[0]:.1f} s to {self.window_s[1]:.1f} s under {self.slo}; "
            f"modelled; {self.replays} replays in {self.seconds:.1f} s"
        )
        held = "no load holds" if self.default is None else f"holds at {self.default:.4g} x the trace's rate"
        yield f"  {'as it is':<28}{held}; {self.binding} binds"
        for row in self.rows:
            holds = "no load holds" if row.capacity is None else f"{row.capacity:.4g} x"
            name = f"without {row.mechanism}" if row.mechanism in MECHANISMS else row.noun
            yield f"  {name:<28}{holds:<14}{gain_words(row.gain)}"
        if self.not_applicable:
            yield f"  not there to switch off: {', '.join(self.not_applicable)}"


def nouns_of(spec: TrialSpec) -> dict[str, str]:
    policy = spec.policy
    return {
        "tail_slack": f"the tail slack of {policy.block_size}-token blocks",
        "reuse_quantum": f"reuse in steps of {policy.block_size} tokens",
        "block_tables": "the bytes of block tables",
        "block_term": "what the kernel pays for a block",
        "watermark": f"the watermark of {policy.watermark:.0%}",
        "preemption": "preemption",
        "token_budget": f"the {policy.max_num_batched_tokens:,}-token chunk",
        "slots": f"max_num_seqs {policy.max_num_seqs}",
        "pool": "the pool's bytes",
        "speed": "the engine's speed",
    }


def limit_of(rows: tuple[BoundRow, ...], some_load: bool) -> str:
    """The mechanism whose absence gains most; resources only where no mechanism gains; else the engine's speed."""

    def worth(row: BoundRow) -> float:
        if not some_load:
            return 0.0 if row.capacity is None else row.capacity
        return row.gain or 0.0

    own = [r for r in rows if r.mechanism in MECHANISMS or r.mechanism.startswith("token_budget")]
    for group in (own, [r for r in rows if r.mechanism in ("slots", "pool")]):
        most = max(group, key=worth)
        if worth(most) >= (WORTH if some_load else 1e-12):
            return most.mechanism.partition(" ")[0]
    return "speed"


def words_of(found: Bound, block: list[BoundRow], nouns: dict[str, str]) -> str:
    limit = f"what limits you is {nouns[found.limited_by]}{_by_how_much(found)}"
    if found.needs_requests:
        limit += f" (by {found.requests} requests; a window to judge by needs at least {found.needs_requests})"
    if found.default is None:
        able = [row.mechanism for row in block if row.capacity is not None]
        cure = "another block size could" if able else "no block size can change that"
        return f"no load holds here ({found.binding}); {cure}; {limit}"
    gain = found.block_size_gain or 0.0
    if gain < WORTH:
        first = f"no block size can gain more than {max(gain, found.within):.1%} here"
    else:
        most = max(block, key=lambda row: row.gain or 0.0)
        parts = [r for r in block if r.mechanism != "block_size" and (r.gain or 0) >= WORTH]
        named = f" ({', '.join(f'{nouns[r.mechanism]} {r.gain:.1%}' for r in parts)})" if parts else ""
        first = f"another block size can gain at most {most.gain:.1%} here{named}"
    return f"{first}; {limit}"


def _by_how_much(found: Bound) -> str:
    """What the limit's absence gains, and memory, where that is not the limit itself."""
    of_limit = [r for r in found.rows if r.mechanism.partition(" ")[0] == found.limited_by and r.gain]
    most = max(of_limit, key=lambda r: r.gain or 0.0, default=None)
    own = ""
    if most is not None:
        way = f"{most.noun}: " if most.mechanism not in MECHANISMS else ""
        own = f" ({way}{gain_words(most.gain)})"
    memory = next((r.gain for r in found.rows if r.mechanism == "pool"), None) or 0.0
    more = f"; memory without end would gain {memory:.1%}" if memory >= WORTH and found.limited_by != "pool" else ""
    return own + more


def gain_words(gain: float | None) -> str:
    if gain is None:
        return "-"
    return f"+{gain:.1%}" if gain > 0 else f"< +{WITHIN:.1%}"
