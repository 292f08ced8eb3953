"""SLO text: `ttft:p99<500ms;itl:p99<50ms`. A clause bounds the population; qualification is per request.

Per request (absent `qualify:` clauses): TTFT within the ttft limit of the highest percentile, and the own mean
gap within the itl or tpot limit of the highest percentile, as vLLM's --goodput does.
"""

import math
import re
from dataclasses import dataclass

from trials.units import SpecError, parse_ns

METRICS = ("ttft", "itl", "tpot", "e2el")
_CLAUSE = re.compile(r"(qualify:)?([a-z0-9_]+)(?::p(\d+(?:\.\d+)?))?<=?([0-9.]+[a-zµ]*)", re.IGNORECASE)
_ATTAIN = re.compile(r"attainment>=?([0-9.]+)(%?)")


@dataclass(frozen=True, slots=True)
class Clause:
    metric: str
    percentile: float  # 0..100; unused in qualify clauses
    limit_ns: int

    @property
    def text(self) -> str:
        return f"{self.metric}:p{self.percentile:g}<{self.limit_ns / 1e6:g}ms"


@dataclass(frozen=True, slots=True)
class Slo:
    clauses: tuple[Clause, ...]
    ttft_ns: int | None  # per-request limits; None = not asked
    mean_gap_ns: int | None
    e2el_ns: int | None
    attainment: float  # share of offered requests that must qualify, 0..1
    text: str

    @property
    def bounds_waiting(self) -> bool:
        """Whether a growing queue would break it."""
        return any(c.metric in ("ttft", "e2el") for c in self.clauses)


def _complain(text: str, at: int, why: str) -> SpecError:
    return SpecError(f"slo: {why}\n  {text}\n  {' ' * at}^\n  write clauses like ttft:p99<500ms;itl:p99<50ms")


def _parts(text: str) -> list[tuple[int, str]]:
    """(position, clause) of every non-empty part between semicolons, blanks stripped."""
    out, at = [], 0
    for part in text.split(";"):
        stripped = part.strip()
        if stripped:
            out.append((at + part.index(stripped), stripped))
        at += len(part) + 1
    return out


def _mistake(text: str, at: int, part: str) -> SpecError:
    """Point at the first character of a clause that cannot be read."""
    end = 0
    for pattern, why in (
        (r"(?:qualify:)?[a-z0-9_]+", "a metric name is expected here"),
        (r"(?:qualify:)?[a-z0-9_]+(?::p\d+(?:\.\d+)?)?", "`:pNN` with a number is expected here"),
        (r"(?:qualify:)?[a-z0-9_]+(?::p\d+(?:\.\d+)?)?<=?", "`<` and a limit are expected here"),
    ):
        match = re.match(pattern, part)
        if match is None:
            return _complain(text, at, why)
        end = match.end()
        rest = part[end:]
        if not rest or (rest[0] not in ":<" and not rest[0].isdigit()):
            return _complain(text, at + end, "this cannot be read")
    return _complain(text, at + end, "a limit with a unit is expected here")


def _limit(text: str, at: int, limit: str) -> int:
    try:
        limit_ns = parse_ns(limit, "limit")
    except SpecError as error:
        raise _complain(text, at, str(error)) from None
    if limit_ns <= 0:
        raise _complain(text, at, "a limit must be above zero")
    return limit_ns


def _highest(clauses: list[Clause], metrics: tuple[str, ...]) -> int | None:
    best = [c for c in clauses if c.metric in metrics]
    return max(best, key=lambda c: (c.percentile, -c.limit_ns)).limit_ns if best else None


def parse_slo(text: str) -> Slo:
    """Parse; SpecError with a caret under the first character that is wrong."""
    clauses: list[Clause] = []
    own: list[Clause] = []
    attainment: float | None = None
    for at, part in _parts(text):
        if share := _ATTAIN.fullmatch(part):
            attainment = float(share[1]) / (100 if share[2] or float(share[1]) > 1 else 1)
            if not 0 < attainment <= 1:
                raise _complain(text, at, "attainment is a share between 0 and 1")
            continue
        match = _CLAUSE.fullmatch(part)
        if not match:
            raise _mistake(text, at, part)
        qualify, metric, percentile, limit = match.groups()
        if metric not in METRICS:
            raise _complain(text, at + match.start(2), f"unknown metric {metric!r}; known: {', '.join(METRICS)}")
        if percentile is None and not qualify:
            raise _complain(text, at + match.end(2), "a percentile is expected here, like :p99")
        share_of = float(percentile) if percentile is not None else 100.0
        if not 0 < share_of <= 100 or not math.isfinite(share_of):
            raise _complain(text, at + match.start(3), "a percentile lies above 0 and up to 100")
        clause = Clause(metric, share_of, _limit(text, at + match.start(4), limit))
        (own if qualify else clauses).append(clause)
    if not clauses and not own:
        raise _complain(text, 0, "at least one clause is needed")
    rules = own or clauses
    top = max((c.percentile for c in clauses), default=99.0)
    return Slo(
        tuple(clauses),
        ttft_ns=_highest(rules, ("ttft",)),
        mean_gap_ns=_highest(rules, ("itl", "tpot")),
        e2el_ns=_highest(rules, ("e2el",)),
        attainment=attainment if attainment is not None else top / 100,
        text=text,
    )


def slo_from_goodput(text: str) -> str:
    """vLLM's `--goodput ttft:500 tpot:50` (ms) as SLO text: per-request limits, attainment 0.99."""
    parts = []
    for item in text.replace(",", " ").split():
        name, _, value = item.partition(":")
        if name not in METRICS or not re.fullmatch(r"\d+(\.\d+)?", value):
            raise SpecError(f"goodput: {item!r} cannot be read; write it like ttft:500 tpot:50, in ms")
        parts.append(f"{name}:p99<{value}ms")
    if not parts:
        raise SpecError("goodput: no limit given; write it like ttft:500 tpot:50, in ms")
    return ";".join(parts)
