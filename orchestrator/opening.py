"""Opens what a sweep needs: its folder (one driver at a time), its executor, its tracker."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from orchestrator.config import Sweep
from orchestrator.executors import Executor
from orchestrator.folder import SweepFolder, write_text
from orchestrator.slot_needs import SlotNeeds
from orchestrator.sweep_file import continues, differences, sweep_yaml
from orchestrator.targets import target_folder
from orchestrator.tracking import Tracker
from orchestrator.tracking_uri import revealed
from trials.documents import read_yaml
from trials.fingerprint import canonical_json, digest, distribution_versions
from trials.spec import MODELLED
from trials.units import SpecError

_SHOWN_DIFFERENCES = 12


def new_folder(name: str) -> Path:
    """runs/NAME, or the first of runs/NAME-2, -3 ... that does not exist."""
    base = Path("runs") / name
    number, path = 1, base
    while path.exists():
        number += 1
        path = base.with_name(f"{name}-{number}")
    return path


def prepare_folder(path: Path, sweep: Sweep) -> SweepFolder:
    """Write sweep.yaml into a new folder, or check that the folder's own is this sweep, or one that this one only
    asks more than: then sweep.yaml is this one's. SpecError otherwise."""
    folder = SweepFolder(path)
    if not folder.sweep_yaml.exists():
        target_folder(path)
        if folder.journal.exists() or folder.trials.exists():
            raise SpecError(f"{path}: holds trials but no sweep.yaml; name another folder with -o")
        write_text(folder.sweep_yaml, sweep_yaml(sweep))
        return folder
    found = continues(folder.sweep_yaml, sweep)
    if found:
        more = f"\n  and {len(found) - _SHOWN_DIFFERENCES} more" if len(found) > _SHOWN_DIFFERENCES else ""
        lines = "\n  ".join(found[:_SHOWN_DIFFERENCES])
        raise SpecError(
            f"{path}: holds another sweep; name another folder with -o. It differs in (stored -> asked):\n"
            f"  {lines}{more}"
        )
    stored, asked = read_yaml(folder.sweep_yaml), yaml.safe_load(sweep_yaml(sweep))
    moved = stored.get("tracking") != asked.get("tracking")  # no other sweep, but where resume and ui look
    if moved or differences(stored, asked):
        if being_driven(folder):
            raise SpecError(f"{path}: another kvknee runs this sweep; ask for more of it when it has ended")
        write_text(folder.sweep_yaml, sweep_yaml(sweep))
    return folder


@contextmanager
def sole_driver(folder: SweepFolder) -> Iterator[None]:
    """Holds the folder; SpecError where another driver does. The lock ends with the process, however it ends."""
    folder.path.mkdir(parents=True, exist_ok=True)
    with (folder.path / ".lock").open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SpecError(f"{folder.path}: another kvknee runs this sweep; wait for it, or end it") from None
        yield


def being_driven(folder: SweepFolder) -> bool:
    """Whether a driver holds the folder now."""
    try:
        with (folder.path / ".lock").open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def num_slots(sweep: Sweep) -> int:
    """How many trials run at once: as asked; else one for measured CPU trials, else one a CPU."""
    if sweep.measured:
        return 1
    asked = sweep.config.executor.slots
    return asked or max(1, min(os.cpu_count() or 1, sweep.budget))


def open_executor(sweep: Sweep) -> Executor:
    """The executor that the sweep names. Imports Ray only where it is asked for."""
    return _EXECUTORS[sweep.config.executor.kind](sweep)


def _process(sweep: Sweep) -> Executor:
    from orchestrator.process_slots import ProcessExecutor

    return ProcessExecutor(num_slots(sweep), how=sweep.config.executor.launch)


def _ray(sweep: Sweep) -> Executor:
    from orchestrator.ray_slots import RayExecutor, RayTerms

    where = sweep.config.executor
    terms = RayTerms(
        needs=slot_needs(sweep), how=where.launch, describe=sweep.space.base, lease_s=where.lease_s,
        wait_for_nodes_s=where.wait_for_nodes_s, content=where.content,
        pin=sweep.config.engine.name not in MODELLED if where.slot.pin_cores is None else where.slot.pin_cores,
    )  # fmt: skip
    executor = RayExecutor(num_slots(sweep), address=where.address, terms=terms)
    for node, why in executor.left_out.items():
        print(f"note: {node} takes no part: {why}", file=sys.stderr)
    return executor


def slot_needs(sweep: Sweep) -> SlotNeeds:
    """What one slot reserves: as the sweep says, else what its engine needs, in whole devices a bundle."""
    engine, slot = sweep.config.engine, sweep.config.executor.slot
    devices = engine.tensor_parallel_size * engine.pipeline_parallel_size if engine.device == "cuda" else 0
    gpus = -(-devices // slot.bundles) if slot.gpus is None else slot.gpus
    if gpus * slot.bundles < devices:
        raise SpecError(
            f"executor.slot: {slot.bundles} bundles of {gpus} GPUs are fewer than the {devices} of the engine"
        )
    return SlotNeeds(
        cpus=slot.cpus or engine.threads, gpus=gpus, bundles=slot.bundles,
        strategy=slot.strategy or "STRICT_PACK", accelerator_type=slot.accelerator_type, labels=slot.labels,
        exclusive_node=slot.exclusive_node,
    )  # fmt: skip


_EXECUTORS = {"process": _process, "ray": _ray}


def build_digest() -> str:
    """What trials are sent with: the code of trials/ and the distributions that engines rest on."""
    from orchestrator.package import pack

    versions = distribution_versions(["numpy", "numba", "torch"])
    return digest(canonical_json({"code": pack().digest, **versions}).encode())


class Forgetful:
    """A tracker for `tracking: null`: remembers nothing."""

    def record(self, entry: object) -> None:
        pass

    def close(self, timeout_s: float) -> int:
        return 0


def open_tracker(folder: SweepFolder, sweep: Sweep) -> Tracker:
    """MLflow at the URI asked for, or in the sweep's folder."""
    if sweep.config.tracking is None:
        return Forgetful()
    from orchestrator.tracking import open_mlflow

    uri = sweep.config.tracking.uri
    return open_mlflow(folder.path, sweep.config.name, None if uri is None else revealed(uri))


def check_tracking(folder: SweepFolder, sweep: Sweep) -> None:
    """Whether runs can be remembered where the sweep says. SpecError before its first trial; later on a warning.

    A sweep that has begun goes on without its server: what cannot be sent waits in the folder.
    """
    if sweep.config.tracking is None:
        return
    from orchestrator.tracking_check import NotReachable, check_store

    asked = sweep.config.tracking.uri
    uri = f"sqlite:///{folder.mlflow_db.resolve()}" if asked is None else revealed(asked)
    try:
        check_store(uri, sweep.config.name)
    except NotReachable as error:
        if not folder.trials.exists():
            raise
        print(f"note: {error}\nnote: runs are kept in {folder.path}/spool until it answers", file=sys.stderr)
