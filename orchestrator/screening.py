"""Runs a screen: the simulator sees every candidate of a sweep, on all cores, before the engine sees any.

Times come from the screen's own table. The window is shortened until the screen's budget is enough; what is not
enough even then sees a part of the space, drawn by the seed. A screen that is interrupted is taken anew.
"""

import os
import random
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestrator.config import Sweep
from orchestrator.executors import Done, Job, Lost
from orchestrator.folder import SweepFolder, write_text
from orchestrator.process_slots import ProcessExecutor
from orchestrator.screened import ScreenReport, best_of, followed, question_of, rows_of, save_screen, with_screen
from search_spaces.neighbours import key_of
from search_spaces.objective import Score, score
from search_spaces.screen import Screened, shortlist
from search_spaces.space import Value
from trials.fingerprint import canonical_json, file_digest, spec_hash
from trials.load import counted, window_of
from trials.slo import parse_slo
from trials.spec import EngineSpec, TrialSpec, Window
from trials.step_tables import load_table
from trials.superpose import superposed
from trials.table_checks import require_engine
from trials.trace import Trace, load_trace

LEAST_REQUESTS = 50  # of a shortened window: fewer say nothing of a percentile
_OVERRUN = 2.0  # times the budget, after which what is not yet seen stays unseen
_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """Replays that were made: by hash of the simulated spec, how each was judged."""

    scores: dict[str, Score]
    seconds: float


def screen_first(folder: SweepFolder, sweep: Sweep) -> Sweep:
    """The sweep with what its screen lists: taken once a folder, said on stderr. SpecError for a foreign table."""
    if sweep.config.screen is None:
        return sweep
    standing = with_screen(folder, sweep)
    if standing.screen is not None:
        return standing
    _require_ours(sweep)
    began = time.monotonic()
    report = _Screening(folder, sweep).run()
    report = report.model_copy(update={"seconds": time.monotonic() - began})
    save_screen(folder, report)
    print(f"screen: {report.words}", file=sys.stderr)
    return followed(sweep, report)


def _require_ours(sweep: Sweep) -> None:
    """A table measured on another engine orders another engine's candidates."""
    table = _table_of(sweep)
    if table is None or sweep.config.engine.name == "simulator":
        return
    from orchestrator.check import describe_engine

    require_engine(load_table(table), str(describe_engine(sweep.space.base)["engine_hash"]))


def _table_of(sweep: Sweep) -> Path | None:
    assert sweep.config.screen is not None
    return EngineSpec(name="simulator", step_time=sweep.config.screen.step_time).table


class _Screening:
    """One screen of one sweep. Files of its replays stand in the folder only while they are made."""

    def __init__(self, folder: SweepFolder, sweep: Sweep) -> None:
        assert sweep.config.screen is not None
        self._sweep, self._screen = sweep, sweep.config.screen
        self._slo = parse_slo(sweep.config.slo)
        self._path = folder.path / "screen"
        asked = sweep.space.base.trace
        self._trace = superposed(load_trace(Path(asked.path)), asked.superpose)
        table = _table_of(sweep)
        self._table_digest = file_digest(table) if table is not None else None
        self._cores = os.cpu_count() or 1
        self._began = time.monotonic()

    def run(self) -> ScreenReport:
        """Time one replay, say how long all would take, shorten, and make them."""
        candidates = list(self._sweep.space.candidates())
        window = self._sweep.windows[0]
        shutil.rmtree(self._path, ignore_errors=True)
        executor = ProcessExecutor(self._cores, how="auto")
        try:
            one = self._replays(executor, [self._spec(candidates[0], window)])
            window, kept = self._within_budget(candidates, window, one.seconds)
            specs = {key_of(params): self._spec(params, window) for params in kept}
            distinct = {self._hash(spec): spec for spec in specs.values()}
            seen = self._replays(executor, list(distinct.values()))
        finally:
            executor.close()
            shutil.rmtree(self._path, ignore_errors=True)
        scores = {
            key: seen.scores[self._hash(spec)] for key, spec in specs.items() if self._hash(spec) in seen.scores
        }
        return self._report(candidates, scores, window, len(seen.scores))

    def _spec(self, params: dict[str, Value], window: Window | None) -> TrialSpec:
        """The candidate on the simulator. What is the engine's own argument changes nothing there."""
        spec = self._sweep.space.suggest(params)
        engine = EngineSpec(
            name="simulator", step_time=self._screen.step_time,
            tensor_parallel_size=spec.engine.tensor_parallel_size,
        )  # fmt: skip
        trace = spec.trace.model_copy(update={"window": window})
        phases = ("steady",) if "steady" in spec.phases else ("cold",)
        return spec.model_copy(update={"engine": engine, "trace": trace, "phases": phases})

    def _hash(self, spec: TrialSpec) -> str:
        return spec_hash(spec, self._sweep.trace_digest, self._table_digest)

    def _within_budget(
        self, candidates: list[dict[str, Value]], window: Window | None, one_s: float
    ) -> tuple[Window | None, list[dict[str, Value]]]:
        """The window, shortened, and the candidates, drawn, that the budget is enough for; said."""
        budget_s = self._screen.budget / 1e9
        asked = {self._hash(self._spec(params, window)) for params in candidates}
        estimate = one_s * len(asked) / self._cores
        words = f"{len(asked)} replays of about {one_s:.2g} s on {self._cores} processes: about {estimate:.0f} s"
        share = budget_s / max(estimate, 1e-9)
        if share >= 1:
            print(f"screen: {words}", file=sys.stderr)
            return window, candidates
        shorter, requests, got = shortened(self._trace, self._sweep.space.base, window, share)
        count = min(len(candidates), max(1, int(len(candidates) * share / got)))
        part = f", and {count} of {len(candidates)} candidates are seen" if count < len(candidates) else ""
        print(
            f"screen: {words}; the budget is {budget_s:.0f} s, so the window is {requests} requests{part}",
            file=sys.stderr,
        )
        drawn = random.Random(self._sweep.config.seed).sample(range(len(candidates)), count)
        return shorter, [candidates[i] for i in sorted(drawn)]

    def _replays(self, executor: ProcessExecutor, specs: Sequence[TrialSpec]) -> _Seen:
        """All of them; those that fail, or come too late, are not in the answer."""
        began, waiting, running = time.monotonic(), list(enumerate(specs))[::-1], 0
        scores: dict[str, Score] = {}
        while waiting or running:
            late = time.monotonic() - self._began > _OVERRUN * self._screen.budget / 1e9
            if late and waiting:
                print(f"screen: {len(waiting)} replays left out, twice the budget is spent", file=sys.stderr)
                waiting = []
            while waiting and running < executor.slots:
                number, spec = waiting.pop()
                executor.submit(self._job(number, spec))
                running += 1
            for event in executor.wait(_WAIT_S):
                if isinstance(event, Done | Lost):
                    running -= 1
                    shutil.rmtree(event.job.folder, ignore_errors=True)
                if isinstance(event, Done):
                    found = score(event.result, self._slo, self._sweep.config.objective)
                    scores[self._hash(event.job.spec)] = found
        return _Seen(scores, time.monotonic() - began)

    def _job(self, number: int, spec: TrialSpec) -> Job:
        path = self._path / str(number)
        path.mkdir(parents=True)
        write_text(path / "spec.json", canonical_json(spec.model_dump(mode="json")) + "\n")
        return Job(number, 1, spec, path)

    def _report(
        self, candidates: Sequence[dict[str, Value]], scores: dict[tuple[tuple[str, Value], ...], Score],
        window: Window | None, simulated: int,
    ) -> ScreenReport:  # fmt: skip
        config, space = self._sweep.config, self._sweep.space
        said = [_said(params, scores[key_of(params)]) for params in candidates if key_of(params) in scores]
        listed = shortlist(space, said, self._screen.keep, self._screen.checks, config.seed) if said else []
        rows = rows_of(space, said, listed)
        requests, span = counted(self._trace, space.base.trace.model_copy(update={"window": window}))
        words = (
            f"{len(said)} of {len(candidates)} candidates simulated ({simulated} replays of {requests} requests, "
            f"{self._screen.step_time}); {len(listed)} are measured, the best of them {best_of(rows)}"
        )
        if not said:
            words = "no replay of the simulator came to an end: nothing is screened, the space is searched as it is"
        return ScreenReport(
            asks=question_of(self._sweep), words=words, step_time=self._screen.step_time,
            candidates=len(candidates), simulated=simulated, requests=requests, window_s=span, seconds=0.0,
            keep=self._screen.keep, rows=rows, dropped="" if said else words,
        )  # fmt: skip


def _said(params: dict[str, Value], found: Score) -> Screened:
    """Grounds beside the clauses (refused, no tokens) miss without bound."""
    over = max([0.0, *(bound for _, bound in found.constraints)])
    return Screened(params, found.value, float("inf") if found.value is None else over)


def shortened(
    trace: Trace, spec: TrialSpec, window: Window | None, share: float
) -> tuple[Window, int, float]:  # fmt: skip
    """The window's beginning with about this share of its requests, at least LEAST_REQUESTS where it has as many:
    (window, requests, the share that they are)."""
    _, start, end = window_of(trace, spec.trace.model_copy(update={"window": window}))
    at = trace.arrival_ns - int(trace.arrival_ns[0])
    inside = np.sort(at[(at >= start) & (at < end)])
    count = min(len(inside), max(LEAST_REQUESTS, int(len(inside) * share)))
    stop = end if count == len(inside) else max(int(inside[count]), start + 1)
    return Window.model_construct(start=start, duration=stop - start), count, count / max(len(inside), 1)
