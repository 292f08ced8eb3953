"""SLO text: `ttft:p99<500ms;itl:p99<50ms`. A clause bounds the population; qualification is per request.

Per request (absent `qualify:` clauses): TTFT within the ttft limit of the highest percentile, and the own mean
gap within the itl or tpot limit of the highest percentile, as vLLM's --goodput does. A limit is met at equality,
so `<` and `<=` mean the same, as do `>` and `>=` after `attainment`.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from trials.units import SpecError, nearest, parse_ns

METRICS = ("ttft", "itl", "tpot", "e2el")
_DEFAULT_ATTAINMENT = Fraction(99, 100)  # where only qualify clauses are given
_EXAMPLE = "write clauses like ttft:p99<500ms;itl:p99<50ms"


@dataclass(frozen=True, slots=True)
class Clause:
    """One bound on the population."""

    metric: str
    percentile: float  # above 0, up to 100
    limit_ns: int

    @property
    def text(self) -> str:
        return f"{self.metric}:p{self.percentile:.12g}<{self.limit_ns / 1e6:.15g}ms"


@dataclass(frozen=True, slots=True)
class Slo:
    """The parsed text: clauses on the population, limits a request, and the share that must meet them."""

    clauses: tuple[Clause, ...]
    ttft_ns: int | None  # per-request limits; None = not asked
    mean_gap_ns: int | None
    e2el_ns: int | None
    attainment: float  # share of offered requests that must qualify, above 0, up to 1
    text: str

    @property
    def bounds_waiting(self) -> bool:
        """Whether a growing queue would break it."""
        return any(c.metric in ("ttft", "e2el") for c in self.clauses)


class _Reader:
    """A text read from left to right; a complaint points at the first character that is wrong."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def accept(self, pattern: str) -> str | None:
        """What matches here, blanks in front skipped; None, and nothing is read, where nothing does."""
        match = re.compile(rf"\s*({pattern})", re.IGNORECASE).match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match[1]

    def need(self, pattern: str, what: str) -> str:
        found = self.accept(pattern)
        if found is None:
            raise self.complaint(f"{what} is expected here", self.here)
        return found

    @property
    def here(self) -> int:
        """Position of the next character that is not blank."""
        return len(self.text) - len(self.text[self.at :].lstrip())

    def complaint(self, why: str, at: int) -> SpecError:
        line = re.sub(r"\s", " ", self.text)
        return SpecError(f"slo: {why}\n  {line}\n  {' ' * at}^\n  {_EXAMPLE}")


def _percent(reader: _Reader) -> Fraction:
    at = reader.here
    share = Fraction(reader.need(r"[0-9]+(?:\.[0-9]+)?", "a percentile, like p99,"))
    if not 0 < share <= 100:
        raise reader.complaint("a percentile lies above 0 and up to 100", at)
    return share


def _limit(reader: _Reader) -> int:
    at = reader.here
    text = reader.need(r"[0-9.]+\s*[a-zµ]*", "a limit with a unit")
    try:
        limit_ns = parse_ns(text, "limit")
    except SpecError as error:
        raise reader.complaint(str(error), at) from None
    if limit_ns <= 0:
        raise reader.complaint("a limit must be above zero", at)
    return limit_ns


def _attainment(reader: _Reader) -> Fraction:
    reader.need(">=?", "`>=`")
    at = reader.here
    share = Fraction(reader.need(r"[0-9]+(?:\.[0-9]+)?", "a share, like 0.99 or 99%,"))
    if reader.accept("%"):
        share /= 100
    if not 0 < share <= 1:
        raise reader.complaint("attainment is a share above 0 and up to 1, or a percentage like 99%", at)
    return share


def _clause(reader: _Reader, metric: str, own: bool) -> tuple[Fraction, Clause]:
    """The rest of a clause after its metric; a limit of a single request has no percentile."""
    share = Fraction(100)
    if not own:
        reader.need(":", "a percentile, like :p99,")
        reader.need("p", "a percentile, like p99,")
        share = _percent(reader)
    reader.need("<=?", "`<` with a limit")
    return share, Clause(metric, float(share), _limit(reader))


def _highest(clauses: list[Clause], metrics: tuple[str, ...]) -> int | None:
    best = [c for c in clauses if c.metric in metrics]
    return max(best, key=lambda c: (c.percentile, -c.limit_ns)).limit_ns if best else None


def parse_slo(text: str) -> Slo:
    """Parse; SpecError with a caret under the first character that is wrong."""
    reader = _Reader(text)
    clauses: list[Clause] = []
    own: list[Clause] = []
    shares: list[Fraction] = []
    attainment: Fraction | None = None
    while reader.here < len(text):
        if reader.accept(";"):
            continue
        qualify = reader.accept(r"qualify\s*:") is not None
        at = reader.here
        metric = reader.need("[a-z0-9_]+", "a metric").lower()
        if metric == "attainment" and not qualify:
            if attainment is not None:
                raise reader.complaint("attainment stands twice; keep one", at)
            attainment = _attainment(reader)
        elif metric not in METRICS:
            raise reader.complaint(f"unknown metric {metric!r}; {nearest(metric, (*METRICS, 'attainment'))}", at)
        else:
            share, clause = _clause(reader, metric, qualify)
            group = own if qualify else clauses
            if any((c.metric, c.percentile) == (metric, clause.percentile) for c in group):
                raise reader.complaint("this clause stands twice; keep one", at)
            group.append(clause)
            shares += [] if qualify else [share]
        if reader.here < len(text) and text[reader.here] != ";":
            raise reader.complaint("`;` or the end is expected here", reader.here)
    if not clauses and not own:
        raise reader.complaint("at least one clause is needed", 0)
    return _slo(clauses, own, attainment or (max(shares) / 100 if shares else _DEFAULT_ATTAINMENT), text)


def _slo(clauses: list[Clause], own: list[Clause], attainment: Fraction, text: str) -> Slo:
    rules = own or clauses
    return Slo(
        tuple(clauses), ttft_ns=_highest(rules, ("ttft",)), mean_gap_ns=_highest(rules, ("itl", "tpot")),
        # The nearest float of the share as written: 999 of 1,000 attain 99.9 %, which 99.9 / 100 would deny.
        e2el_ns=_highest(rules, ("e2el",)), attainment=float(attainment), text=text,
    )  # fmt: skip


def slo_from_goodput(text: str) -> str:
    """vLLM's `--goodput ttft:500 tpot:50` (ms) as SLO text: those limits a request and on p99, attainment 0.99."""
    parts: dict[str, str] = {}
    for item in text.replace(",", " ").split():
        name, _, value = item.partition(":")
        if name not in METRICS or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", value) or float(value) <= 0:
            raise SpecError(f"goodput: {item!r} cannot be read; write it like ttft:500 tpot:50, in ms")
        if name in parts:
            raise SpecError(f"goodput: {name} stands twice in {text!r}; keep one")
        parts[name] = f"{name}:p99<{value}ms"
    if not parts:
        raise SpecError("goodput: no limit given; write it like ttft:500 tpot:50, in ms")
    return ";".join(parts.values())
