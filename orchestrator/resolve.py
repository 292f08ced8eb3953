"""Everything looked up once: trace, hash, step table, space, windows, controls, budget."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from orchestrator.config import SWEEP_ONLY, Sweep, SweepConfig, TrackingSpec
from orchestrator.domains import ask, cut
from orchestrator.launch import interpreter
from orchestrator.overrides import apply_goodput, apply_sets
from orchestrator.screen_spec import ScreenSpec
from orchestrator.tracking_uri import settled
from orchestrator.windows import planned_windows, rows_in
from search_spaces.controls import control_spec
from search_spaces.objective import DIRECTIONS
from search_spaces.space import Space, SpaceSpec, build_space, load_space_spec, require_grid
from trials.bracket import rungs
from trials.capacity import load_of, parts_of
from trials.documents import read_yaml, validated
from trials.fingerprint import table_digest_of, trace_hash
from trials.geometry import block_bytes, effective_block_size
from trials.load import offer
from trials.roofline import step_time
from trials.secret_names import dereferenced
from trials.spec import MODELLED, EngineSpec, TrialSpec, resolve_paths
from trials.superpose import superposed
from trials.table_checks import require_stands_for
from trials.trace import Trace, load_trace
from trials.units import SpecError, folder_words

_LISTED = 4096  # candidates; of a larger space the base alone is held against the trace
_ASKED_FIRST = 512  # candidates; more are not run without being asked for
_MOST_OF_GP = 200
_MOST_SCREENED = 20_000
_FEW_WINDOWS = 3  # fewer tell nothing of how far a capacity moves from one to the next


def load_sweep(path: Path, sets: Sequence[str] = (), goodput: str | None = None) -> Sweep:
    """Read and resolve a sweep's YAML; relative paths in it are relative to its own folder. SpecError."""
    data = read_yaml(path)
    if isinstance(data.get("executor"), str):
        data["executor"] = {"kind": data["executor"]}  # so that --set executor.slots=2 has where to go
    data = apply_goodput(apply_sets(data, sets, SweepConfig), goodput)
    return resolve(validated(SweepConfig, data, str(path)), path.resolve().parent)


def load_trial(path: Path, sets: Sequence[str] = (), goodput: str | None = None) -> TrialSpec:
    """Read and resolve a trial's YAML; the keys of a sweep are refused with a word on where they belong."""
    data = read_yaml(path)
    foreign = [key for key in data if key in SWEEP_ONLY]
    if foreign:
        raise SpecError(f"{path}: {', '.join(foreign)}: key of a sweep, not of a trial; use `kvknee run {path}`")
    data = apply_goodput(apply_sets(data, sets, TrialSpec), goodput)
    spec = resolve_paths(validated(TrialSpec, data, str(path)), path.resolve().parent)
    trace = load_trace(Path(spec.trace.path))
    rows = rows_in(trace, spec.trace.window)
    if not len(rows):
        raise SpecError(f"{path}: no request of the trace arrives inside trace.window")
    short = holds_none(spec, trace)
    if short:
        raise SpecError(f"{path}: {short}")
    _startable(spec)
    _offered(spec, trace)
    return spec


def _startable(spec: TrialSpec) -> None:
    """SpecError for what this machine cannot start, before anything is written."""
    try:
        interpreter(spec)
        dereferenced(spec.engine.env, os.environ)
    except FileNotFoundError as error:
        raise SpecError(str(error)) from None
    _table_digest(spec)
    _timed(spec)


def _timed(spec: TrialSpec) -> None:
    """SpecError where the step times of a modelled engine cannot be read, or are another model's or engine's."""
    if spec.engine.name in MODELLED:
        step_time(spec.engine.step_time or "", spec.model, effective_block_size(spec) or 1, 1)
    if spec.engine.name == "simulator":  # another engine's arguments are its own
        require_stands_for(spec.engine)


def _offered(spec: TrialSpec, trace: Trace) -> None:
    """TraceError where a window of the trial would offer nothing, or for ever."""
    load, ladder = spec.measure.load, spec.measure.ladder
    if load is None and ladder is not None:
        load = load_of(ladder.over, rungs(ladder)[0])
    assert load is not None
    laid = superposed(trace, spec.trace.superpose)
    for window in parts_of(laid, spec):
        for phase in spec.phases:
            offer(laid, window, load, phase)


def resolve(config: SweepConfig, folder: Path) -> Sweep:
    """Look everything up once: trace, hash, step table, space, windows, controls, budget."""
    base = resolve_paths(config.trial_spec(), folder)
    trace = load_trace(Path(base.trace.path))
    digest = _checked_hash(config, trace, base)
    spec = config.space if isinstance(config.space, SpaceSpec) else load_space_spec(config.space, folder)
    says = config.engine_says or ask(base)
    space = cut(build_space(spec, base), says)
    windows = planned_windows(trace, config.trace.window, config.repeats, config.held_out)
    controls = tuple((n, s) for n in config.controls if (s := control_spec(space, n)) is not None)
    sampler, budget = _budget(config, space)
    notes = [*space.notes, *_pool_notes(space, controls, trace), *_window_notes(config), *windows.notes]
    resolved = config.model_copy(
        update={
            "trace": base.trace,
            "engine": base.engine,
            "space": spec,
            "trials": budget,
            "sampler": sampler,
            "trace_hash": digest,
            "engine_says": says,
            "tracking": _settled(config.tracking, folder),
            "screen": _screen(config, space, folder),
        }
    )
    table = _table_digest(base)
    _timed(base)
    seen, held_out = windows.repeats, windows.held_out
    return Sweep(resolved, space, seen, held_out, digest, table, controls, budget, tuple(notes))


def _screen(config: SweepConfig, space: Space, folder: Path) -> ScreenSpec | None:
    """The screen with an absolute table. SpecError where there is no such table, or no list of candidates."""
    if config.screen is None:
        return None
    if not space.enumerable or space.num_candidates > _MOST_SCREENED:
        have = f"{space.num_candidates} candidates" if space.enumerable else "a continuous range"
        raise SpecError(f"screen: at most {_MOST_SCREENED} candidates can be seen one by one, the space has {have}")
    stands = EngineSpec(name="simulator", step_time=config.screen.step_time)
    base = space.base.model_copy(update={"engine": stands})
    found = resolve_paths(base, folder)
    _table_digest(found, "screen.step_time")
    text = found.engine.step_time or ""
    step_time(text, base.model, effective_block_size(base) or 1, base.policy.max_num_batched_tokens)
    return config.screen.model_copy(update={"step_time": text})


def _settled(tracking: TrackingSpec | None, folder: Path) -> TrackingSpec | None:
    """Where runs are remembered, absolute."""
    if tracking is None or tracking.uri is None:
        return tracking
    return tracking.model_copy(update={"uri": settled(tracking.uri, folder)})


def _checked_hash(config: SweepConfig, trace: Trace, base: TrialSpec) -> str:
    digest = trace_hash(trace)
    if config.trace_hash not in (None, digest):
        raise SpecError(
            f"trace {base.trace.path} hashes to {digest[:12]}, the sweep expects {str(config.trace_hash)[:12]}: "
            "restore the file, or drop trace_hash to start another sweep"
        )
    return digest


def _table_digest(base: TrialSpec, key: str = "engine.step_time") -> str | None:
    table = base.engine.table
    if table is not None and table.is_dir():
        raise SpecError(f"{key}: {folder_words(table, 'a table (JSON)', '.json')}")
    if table is not None and not table.is_file():
        raise SpecError(f"{key}: {table}: no such table; make one with `kvknee calibrate`")
    return table_digest_of(base)


def _budget(config: SweepConfig, space: Space) -> tuple[str, int]:
    """(who proposes candidates, how many trials there will be). SpecError where the two do not go together."""
    every = space.num_candidates * config.repeats
    whole = space.enumerable and (config.trials is None or config.trials >= space.num_candidates)
    sampler = config.sampler
    if sampler == "auto":
        sampler = "exhaustive" if whole else _proposer(config, space)
    if sampler == "exhaustive":
        _require_whole(config, space, every)
        return sampler, config.trials or every
    if config.trials is None and not every:
        raise SpecError("trials: a continuous space needs a budget, for example trials: 60")
    budget = config.trials or every
    if sampler == "gp":
        _require_gp(-(-budget // config.repeats), space)
    return sampler, budget


def _proposer(config: SweepConfig, space: Space) -> Literal["tpe", "gp", "nsga2"]:
    """Who proposes where nobody is named: a process over all that the space lists, for as long as it can follow."""
    if config.objective in DIRECTIONS:
        return "nsga2"
    few = config.trials is not None and -(-config.trials // config.repeats) <= _MOST_OF_GP
    return "gp" if few and space.listable else "tpe"


def _require_whole(config: SweepConfig, space: Space, every: int) -> None:
    if not space.enumerable:
        raise SpecError(f"space {space.name} is continuous: use sampler: tpe, or give the range a step")
    require_grid(space)
    if config.trials is not None and config.trials > every:
        raise SpecError(
            f"trials: {config.trials} asked, but the space has {space.num_candidates} candidates x "
            f"{config.repeats} repeats = {every}; lower trials or raise repeats"
        )
    if config.trials is None and config.sampler == "auto" and space.num_candidates > _ASKED_FIRST:
        raise SpecError(
            f"space {space.name} has {space.num_candidates} candidates x {config.repeats} repeats = {every}: say "
            "how many trials may run, for example trials: 60, or sampler: exhaustive for all of them"
        )


def _require_gp(candidates: int, space: Space) -> None:
    """A Gaussian process costs with the cube of what it has seen; Optuna's own, where no list can be made, needs
    torch beside it."""
    if candidates > _MOST_OF_GP:
        raise SpecError(
            f"sampler: gp is for at most {_MOST_OF_GP} candidates, {candidates} are asked: beyond that an ask "
            "costs more than a trial; use sampler: tpe, or fewer trials"
        )
    if not space.listable and find_spec("torch") is None:
        raise SpecError("sampler: gp over a space that cannot be listed needs torch here; use sampler: tpe")


def holds_none(spec: TrialSpec, trace: Trace) -> str | None:
    """Why the pool, or max_model_len, holds not one request of the trace; None where it holds some."""
    tokens = trace.num_prompt_tokens + trace.num_output_tokens
    fits = tokens <= spec.policy.max_model_len
    if not fits.any():
        return (
            f"no request of the trace fits policy.max_model_len {spec.policy.max_model_len}: "
            f"the shortest has {int(tokens.min())} tokens"
        )
    size = effective_block_size(spec)
    blocks = spec.pool.blocks
    if size and spec.pool.bytes is not None:
        blocks = spec.pool.bytes // block_bytes(spec)
    if blocks is None or not size:
        return None  # a device budget: what it leaves for the pool is the engine's word
    usable = max(blocks - spec.pool.reserve_blocks, 0)
    # The last sampled token never has KV, so a request holds one token less than it has.
    need = -(-(int(tokens[fits].min()) - 1) // size)
    if need <= usable:
        return None
    return (
        f"the pool holds no request of the trace: block_size {size} leaves {usable} usable blocks, "
        f"the shortest request needs {need}; enlarge pool or use smaller blocks"
    )


def _pool_notes(space: Space, controls: Sequence[tuple[str, TrialSpec]], trace: Trace) -> list[str]:
    """What cannot hold a request is noted and will be refused; where nothing can, the sweep is refused."""
    listed = space.enumerable and space.num_candidates <= _LISTED
    kinds: dict[str, TrialSpec] = {}  # candidates that could differ in what they hold
    for candidate in (space.suggest(p) for p in space.candidates()) if listed else (space.base,):
        policy = candidate.policy
        key = (candidate.pool, policy.block_size, policy.layout, policy.page_bytes, policy.max_model_len)
        kinds.setdefault(repr(key), candidate)
    short = [why for c in kinds.values() if (why := holds_none(c, trace))]
    if len(short) == len(kinds):
        raise SpecError(short[0])
    words = [f"control {name}: {why}" for name, c in controls if (why := holds_none(c, trace))]
    return [*(f"candidate: {why}" for why in short), *words]


def _window_notes(config: SweepConfig) -> list[str]:
    ladder = config.measure.ladder
    count = config.repeats * ladder.windows if ladder else _FEW_WINDOWS
    if count >= _FEW_WINDOWS:
        return []
    return [f"capacity on {count} windows: its range is not known; use repeats: {_FEW_WINDOWS}"]
