"""Laws that a generated trace is drawn from: when requests arrive, and how long they are.

A law is a small frozen model with one method, `draw`; randomness comes in as a numpy Generator. A law that needs
more than the number of rows (sessions, forks, cancels) belongs to an overlay, not here.
"""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trials.spec import Ns, Number
from trials.trace import Ints
from trials.units import SpecError

_TICK_NS = 1_000  # drawn times stand on whole microseconds, so that the last bit of a float cannot show
_LONGEST_NS = 70 * 365 * 86_400 * 10**9
_MOST_TOKENS = 1 << 30
Tokens = Annotated[int, Field(ge=1, le=_MOST_TOKENS, strict=True)]
Rate = Annotated[Number, Field(ge=1e-6, le=1e6)]  # requests a second


class Law(BaseModel):
    """Frozen and strict: an unknown key is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _from_gaps(gaps_s: NDArray[np.float64]) -> Ints:
    """Gaps in seconds, one behind each row -> arrivals in ns; the first row arrives at 0."""
    after = np.cumsum(gaps_s[:-1])
    if len(after):
        _bounded(after[-1] * 1e9)
    return np.concatenate([np.zeros(1, np.int64), np.rint(after * (1e9 / _TICK_NS)).astype(np.int64) * _TICK_NS])


def _bounded(end_ns: float) -> int:
    if end_ns > _LONGEST_NS:
        raise SpecError("the trace would last over 70 years; raise the rate or draw fewer rows")
    return int(end_ns)


class Constant(Law):
    """One request every 1 / rps seconds."""

    kind: Literal["constant"]
    rps: Rate

    def draw(self, rows: int, rng: np.random.Generator) -> Ints:
        return _from_gaps(np.full(rows, 1 / self.rps))


class Poisson(Law):
    """Independent exponential gaps of mean 1 / rps seconds."""

    kind: Literal["poisson"]
    rps: Rate

    def draw(self, rows: int, rng: np.random.Generator) -> Ints:
        return _from_gaps(rng.exponential(1 / self.rps, rows))


class Gamma(Law):
    """Gamma gaps of mean 1 / rps seconds and the given coefficient of variation: 1 is Poisson, above is bursty."""

    kind: Literal["gamma"]
    rps: Rate
    cv: Annotated[Number, Field(ge=1e-3, le=100)]

    def draw(self, rows: int, rng: np.random.Generator) -> Ints:
        shape = 1 / self.cv**2
        return _from_gaps(rng.gamma(shape, 1 / (self.rps * shape), rows))


class Bursts(Law):
    """A train of bursts: `sizes` in turn, each uniform over `width`. From one start to the next it takes `gap`,
    or `gap_per_request` times the size of the burst in between (a constant mean rate for graded sizes).
    """

    kind: Literal["bursts"]
    sizes: tuple[Annotated[int, Field(ge=1, strict=True)], ...] = Field(min_length=1)
    width: Ns
    gap: Ns | None = None
    gap_per_request: Ns | None = None

    @model_validator(mode="after")
    def _apart(self) -> "Bursts":
        if (self.gap is None) == (self.gap_per_request is None):
            raise ValueError("bursts need exactly one of gap, gap_per_request")
        if min(self._gap_ns(size) for size in self.sizes) < self.width:
            raise ValueError("bursts would overlap: the gap between starts must be at least the width")
        return self

    def _gap_ns(self, size: int) -> int:
        return self.gap if self.gap is not None else (self.gap_per_request or 0) * size

    def draw(self, rows: int, rng: np.random.Generator) -> Ints:
        start, drawn = 0, 0
        parts: list[Ints] = []
        while drawn < rows:
            size = self.sizes[len(parts) % len(self.sizes)]
            inside = rng.integers(0, self.width // _TICK_NS, size, endpoint=True) * _TICK_NS
            parts.append(start + np.sort(inside))
            start, drawn = _bounded(start + self._gap_ns(size)), drawn + size
        arrival: Ints = np.concatenate(parts)[:rows] - parts[0][0]
        return arrival


class Fixed(Law):
    """All lengths the same."""

    kind: Literal["fixed"]
    tokens: Tokens

    def draw(self, rows: int, rng: np.random.Generator) -> Ints:
        return np.full(rows, self.tokens, np.int64)


class Uniform(Law):
    """Every length from min to max, both included, equally often."""

    kind: Literal["uniform"]
    min: Tokens
    max: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> "Uniform":
        _ordered(self.min, self.max)
        return self

    def draw(self, rows: int, rng: np.random.Generator) -> Ints:
        drawn: Ints = rng.integers(self.min, self.max, rows, endpoint=True)
        return drawn


class Lognormal(Law):
    """Lognormal of the given mean (of the unbounded law, in tokens) and sigma (of the logarithm).

    What falls outside min..max is set to the bound, as serving caps do: the bounds keep that mass.
    """

    kind: Literal["lognormal"]
    mean: Annotated[Number, Field(gt=0, le=_MOST_TOKENS)]
    sigma: Annotated[Number, Field(ge=0, le=10)]
    min: Tokens = 1
    max: Tokens = _MOST_TOKENS

    @model_validator(mode="after")
    def _ordered(self) -> "Lognormal":
        _ordered(self.min, self.max)
        return self

    def draw(self, rows: int, rng: np.random.Generator) -> Ints:
        drawn = rng.lognormal(np.log(self.mean) - self.sigma**2 / 2, self.sigma, rows)
        return np.rint(np.clip(drawn, self.min, self.max)).astype(np.int64)


class Tabulated(Law):
    """Lengths with weights, `{128: 3, 512: 1}`; weights need not add up to 1."""

    kind: Literal["tabulated"]
    weights: dict[Annotated[int, Field(ge=1, le=_MOST_TOKENS)], Annotated[Number, Field(ge=0)]]

    @model_validator(mode="after")
    def _some(self) -> "Tabulated":
        if not sum(self.weights.values()) > 0:
            raise ValueError("at least one length needs a weight above 0")
        return self

    def draw(self, rows: int, rng: np.random.Generator) -> Ints:
        lengths = np.array(sorted(self.weights), np.int64)
        weights = np.array([self.weights[int(n)] for n in lengths], np.float64)
        drawn: Ints = rng.choice(lengths, rows, p=weights / weights.sum())
        return drawn


def _ordered(low: int, high: int) -> None:
    if high < low:
        raise ValueError(f"max {high} is below min {low}")


Arrivals = Annotated[Constant | Poisson | Gamma | Bursts, Field(discriminator="kind")]
Lengths = Annotated[Fixed | Uniform | Lognormal | Tabulated, Field(discriminator="kind")]
