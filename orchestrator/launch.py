"""One trial in a new process: a declared environment, two deadlines, no survivors, and how it ended.

The worker speaks files (spec.json in, result.json out) and lines: JSON objects on stdout. `{"starting": text}` and
`{"progress": text}` are passed on; the first `progress` ends the start phase and with it the start deadline.
Everything else that it prints goes to log.txt. How it was started is added to its attempt.json.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from orchestrator.devices import Reader, Watch
from orchestrator.forking import CannotFork, ForkServers
from orchestrator.process_group import Deadlines, EndedBy, Guarded, ProcessGroup, start_by_exec
from trials.result import load_result, save_result
from trials.secret_names import dereferenced
from trials.spec import TrialSpec
from trials.trace import write_whole

WORKER = ("-P", "-m", "trials.worker")
_INHERITED = (
    "PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME",
)  # fmt: skip
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_TAIL_BYTES = 4096
How = Literal["auto", "exec", "fork"]  # auto: fork where it can be, else exec


@dataclass(frozen=True, slots=True)
class Launch:
    """How workers are started. `package` holds trials/ and nothing else (`package.install`).

    `servers` None: always by exec. `cores`: the worker and all that it starts stay on these; empty = anywhere.
    `facts` are written into attempt.json beside how the worker was started. `reader`: devices that are looked at
    while it runs; a trial that measured on a device that was slowed down is void. `caches`: variables that say
    where engines keep what they compile, unless `engine.env` says so. `passing`: OUT is new, empty and
    deleted when its files were taken elsewhere, so what the launcher writes there need not be on the disk.
    `progress_s`: nothing is said of a trial that ends sooner, and of others not more often.
    """

    package: Path
    worker: tuple[str, ...] = WORKER  # arguments of the interpreter, before SPEC and OUT
    deadlines: Deadlines = field(default_factory=Deadlines)
    how: How = "auto"
    servers: ForkServers | None = None
    cores: tuple[int, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    reader: Reader | None = None
    caches: Mapping[str, str] = field(default_factory=dict)
    passing: bool = False
    progress_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the process ended; says nothing about what it wrote. `reason` is empty exactly when exit_code is 0."""

    exit_code: int | None  # negative: killed by that signal; None: ended by us, or never started
    ended_by: EndedBy
    reason: str
    wall_s: float
    log_tail: str
    files: tuple[str, ...]  # names in OUT


def launch(
    spec: TrialSpec,
    out: Path,
    how: Launch,
    on_progress: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Run one trial in `out` and return how it ended. Setting `stop` ends the whole process group."""
    for said in follow(spec, out, how, stop):
        if isinstance(said, Outcome):
            return said
        if on_progress is not None:
            on_progress(said)
    raise AssertionError("follow() ends with an Outcome")


def follow(spec: TrialSpec, out: Path, how: Launch, stop: threading.Event | None = None) -> Iterator[str | Outcome]:
    """As `launch`, step by step: progress texts, and last the Outcome.

    Closing the iterator early ends the process group as well.
    """
    began = time.monotonic()
    if how.passing:
        _write(out / "spec.json", spec.model_dump_json(), passing=True)
    else:
        ask(spec, out)
    code, ended_by = None, "never_started"
    with (out / "log.txt").open("ab", buffering=0) as log:
        try:
            guarded, facts = _start(spec, out, how, log)
        except (OSError, CannotFork) as error:
            yield _outcome(None, "never_started", f"the worker could not be started: {error}", began, out)
            return
        group = ProcessGroup(guarded, log)
        watch = None
        try:
            watch = Watch(how.reader, group.measuring) if how.reader is not None else None
            ended_by = yield from group.listen(how.deadlines, stop or threading.Event(), how.progress_s)
        finally:
            group.end(how.deadlines.grace_s)
            if watch is not None:
                watch.stop()
        code = group.exit_code
    facts["held_s"] = time.monotonic() - began
    seen = _seen(watch, out) if watch is not None else {}
    add_facts(out, {**how.facts, **facts, **seen}, passing=how.passing)
    yield _outcome(code, ended_by, _words(ended_by, code, how.deadlines), began, out)


def _seen(watch: Watch, out: Path) -> dict[str, Any]:
    """What the devices did, for attempt.json; what was measured on a slowed one is voided."""
    slowed = watch.throttled()
    if slowed:
        with contextlib.suppress(OSError, ValueError):  # it left no result that could be credited
            void(out / "result.json", f"a device was slowed down while it measured: {slowed}")
    return {"devices": watch.summary()} | ({"throttled": slowed} if slowed else {})


def void(path: Path, why: str) -> None:
    """Take every replay of a result out of the running. Raises OSError or ValueError where it is none."""
    result = load_result(path)
    replays = tuple(r.model_copy(update={"void_because": (*r.void_because, why)}) for r in result.replays)
    because = (*result.ineligible_because, f"void: {why}")
    voided = {"replays": replays, "eligible": False, "ineligible_because": because}
    save_result(result.model_copy(update=voided), path)


def _start(spec: TrialSpec, out: Path, how: Launch, log: IO[bytes]) -> tuple[Guarded, dict[str, Any]]:
    """Start a worker, and what to say of how. Raises OSError, and CannotFork where nothing but a fork will do."""
    python, env = interpreter(spec), {**how.caches, **environment(spec, how.package)}
    arguments = [str(out / "spec.json"), str(out)]
    facts: dict[str, Any] = {"launch": "exec", "cores": list(how.cores)}
    if how.servers is not None and how.how != "exec":
        try:
            server = how.servers.of(spec, python, env, how.worker)
            return server.start(arguments, out, log, how.cores), facts | {"launch": "fork"}
        except CannotFork as error:
            if how.how == "fork":
                raise
            facts["launch_because"] = str(error)
    return start_by_exec([python, *how.worker, *arguments], env, out, log, how.cores), facts


def add_facts(out: Path, facts: Mapping[str, Any], *, passing: bool = False) -> None:
    """Add to attempt.json what the worker cannot know; where it left none, one with these alone."""
    path = out / "attempt.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        known = {}
    known = known if isinstance(known, dict) else {}
    text = json.dumps(known | dict(facts), indent=1, sort_keys=True) + "\n"
    _write(path, text, passing)


def ask(spec: TrialSpec, out: Path) -> None:
    """Write what the trial is asked into its folder, and take away what an earlier attempt there answered."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").unlink(missing_ok=True)  # an earlier attempt's answer is not this one's
    path = out / "spec.json"
    with contextlib.suppress(OSError, ValueError):
        if json.loads(path.read_text(encoding="utf-8")) == spec.model_dump(mode="json"):
            return
    _write(path, spec.model_dump_json(indent=1) + "\n")


def _write(path: Path, text: str, passing: bool = False) -> None:
    """`passing`: as `Launch` has it."""
    if passing:
        path.write_text(text, encoding="utf-8")
    else:
        write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def environment(spec: TrialSpec, package: Path) -> dict[str, str]:
    """All that a worker sees of the environment: what is listed here, then `engine.env`, which may override.

    `env:NAME` there is what NAME is here. Raises OSError where it is not set.
    """
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    env.setdefault("LANG", "C.UTF-8")
    env.update({name: str(spec.engine.threads) for name in _THREADS})
    env["PYTHONPATH"] = str(package)
    env.update(dereferenced(spec.engine.env, os.environ))
    return env


def interpreter(spec: TrialSpec) -> str:
    """The Python that the engine runs under, as its spec says. Raises FileNotFoundError with a remedy."""
    path = Path(spec.engine.python or sys.executable).expanduser()
    if not path.is_absolute():
        raise FileNotFoundError(f"engine.python must be an absolute path here, got {spec.engine.python!r}")
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise FileNotFoundError(f"engine.python {path} is not an executable file on this machine")
    return str(path)


def _words(ended_by: EndedBy, code: int | None, deadlines: Deadlines) -> str:
    if ended_by == "start_deadline":
        return f"the engine did not start within {deadlines.start_s:g} s; its process group was killed"
    if ended_by == "run_deadline":
        return f"the trial did not end within {deadlines.run_s:g} s; its process group was killed"
    if ended_by == "stop":
        return "cancelled"
    if code is not None and code < 0:
        return f"the worker was killed by signal {-code} ({_signal_name(-code)})"
    return f"the worker ended with exit code {code}" if code else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _outcome(code: int | None, ended_by: EndedBy, reason: str, began: float, out: Path) -> Outcome:
    with os.scandir(out) as entries:
        files = tuple(sorted(entry.name for entry in entries if entry.is_file()))
    return Outcome(code, ended_by, reason, time.monotonic() - began, tail(out / "log.txt"), files)


def tail(path: Path) -> str:
    """The last words of a log, at most 4 KiB; empty where there is none."""
    try:
        with path.open("rb") as handle:
            handle.seek(max(0, os.path.getsize(path) - _TAIL_BYTES))
            return handle.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""
