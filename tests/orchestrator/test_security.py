"""Nothing that is read from a disk or a server is run, leaves its folder, or unpacks without a limit."""

import ast
import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_rooms import make_sweep

from orchestrator import package
from orchestrator.launch import Outcome
from orchestrator.package import Package, install
from orchestrator.parcel import File, Parcel, ParcelDamaged, collect, deliver
from orchestrator.recipe import read_table
from orchestrator.stock import Item, NotDelivered, Part, Stock
from trials.documents import parse_yaml
from trials.parquet_footer import FooterError, bounded
from trials.units import SpecError

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("trials", "search_spaces", "orchestrator")
RUNS_WHAT_IT_READS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {
    ("yaml", "load"), ("yaml", "load_all"), ("yaml", "unsafe_load"), ("yaml", "full_load"), ("torch", "load"),
    ("pd", "read_pickle"), ("pd", "eval"), ("os", "system"), ("os", "popen"),
}  # fmt: skip
UNPACKED_HERE = {"orchestrator/package.py"}  # bounded and held against its digest: see below


def modules() -> Iterator[tuple[str, ast.Module]]:
    for name in PACKAGES:
        for path in sorted((ROOT / name).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def offences(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in RUNS_WHAT_IT_READS)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in RUNS_WHAT_IT_READS:
            yield node.module or ""
        elif isinstance(node, ast.Call):
            yield from _call(name, node)
        elif isinstance(node, ast.Attribute) and node.attr in ("Loader", "UnsafeLoader", "FullLoader"):
            yield node.attr


def _call(name: str, node: ast.Call) -> Iterator[str]:
    called = node.func
    if isinstance(called, ast.Name) and called.id in CALLS:
        yield called.id
    if isinstance(called, ast.Attribute):
        owner = called.value.id if isinstance(called.value, ast.Name) else ""
        if (owner, called.attr) in METHODS:
            yield f"{owner}.{called.attr}"
        if called.attr in ("extractall", "extract") and owner == "archive" and name not in UNPACKED_HERE:
            yield called.attr
    for given in node.keywords:
        true = isinstance(given.value, ast.Constant) and given.value.value is True
        if given.arg in ("allow_pickle", "shell", "trust_remote_code") and true:
            yield given.arg


@pytest.mark.parametrize(("name", "tree"), list(modules()), ids=lambda v: v if isinstance(v, str) else "")
def test_no_room_runs_what_it_reads(name: str, tree: ast.Module) -> None:
    assert not list(offences(name, tree))


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from marshal import loads", "eval('1')", "yaml.load(text, Loader=yaml.Loader)",
        "np.load(path, allow_pickle=True)", "subprocess.run(words, shell=True)", "torch.load(path)",
        "archive.extractall(there)", "model(path, trust_remote_code=True)",
    ],
)  # fmt: skip
def test_what_would_run_what_it_reads_is_noticed(text: str) -> None:
    assert list(offences("orchestrator/x.py", ast.parse(text)))


def test_a_document_makes_plain_values_only() -> None:
    for text in (
        "a: !!python/object/apply:os.system [true]",
        "a: !!python/name:os.system",
        "a: !!python/tuple [1]",
    ):
        with pytest.raises(SpecError):
            parse_yaml(text, "evil.yaml")


def test_a_studys_journal_is_lines_of_json_and_its_backend_keeps_no_pickled_snapshot(tmp_path: Path) -> None:
    from optuna.storages.journal import JournalFileBackend
    from optuna.storages.journal._base import BaseJournalSnapshot

    from orchestrator.study import SweepStudy

    study = SweepStudy(tmp_path / "study.journal", make_sweep(tmp_path))
    assert study.ask() is not None
    lines = (tmp_path / "study.journal").read_text().splitlines()
    assert lines
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert not issubclass(JournalFileBackend, BaseJournalSnapshot)


def test_a_pickle_where_a_journal_should_be_is_not_run(tmp_path: Path) -> None:
    from orchestrator.study import SweepStudy

    mark = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (mark,)  # type: ignore[return-value]

    (tmp_path / "study.journal").write_bytes(pickle.dumps(Evil()) + b"\n")
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says: it is no JSON
        SweepStudy(tmp_path / "study.journal", make_sweep(tmp_path)).ask()
    assert not mark.exists()


def parcel(name: str) -> Parcel:
    content = b"{}"
    outcome = Outcome(0, "itself", "", 1.0, "", (name,))
    return Parcel(outcome, (File(name, content, hashlib.sha256(content).hexdigest()),))


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "..", ".", "", "a/../../x", "nul\0"])
def test_a_file_of_a_parcel_cannot_leave_the_attempts_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "attempt"
    folder.mkdir()
    with pytest.raises(ParcelDamaged, match="plain file name"):
        deliver(parcel(name), folder)
    assert list(tmp_path.rglob("*")) == [folder]


def test_a_link_in_the_attempts_folder_is_replaced_not_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "attempt"
    outside.write_text("mine")
    folder.mkdir()
    (folder / "result.json").symlink_to(outside)
    deliver(parcel("result.json"), folder)
    assert outside.read_text() == "mine"
    assert not (folder / "result.json").is_symlink()


def test_links_that_a_trial_left_are_not_sent(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("words")
    (tmp_path / "passwd").symlink_to("/etc/passwd")
    sent = collect(Outcome(0, "itself", "", 1.0, "", ("log.txt", "passwd")), tmp_path)
    assert [file.name for file in sent.files] == ["log.txt"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
def test_content_that_is_brought_to_a_node_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    content = b"x"
    part = Part(name, hashlib.sha256(content).hexdigest(), 1)
    other = Part("config.json", part.sha256, 1)
    item = Item("model", "0" * 64, "/nowhere", (part, other))
    with pytest.raises(NotDelivered, match="not a path inside"):
        Stock(tmp_path / "stock").bring(item, lambda item, part: iter([content]))
    assert not (tmp_path / "x").exists()


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_an_archive_that_leads_out_of_its_folder_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    archive = zipped({"../../outside.py": b"x", "/outside.py": b"x", "trials/a.py": b"x"})
    with pytest.raises(ValueError, match="damaged"):
        install(Package("0" * 64, archive), tmp_path / "cache")
    assert [p.name for p in tmp_path.rglob("*")] == ["cache"]


def test_an_archive_that_unpacks_to_more_than_it_may_is_refused_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "_MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="more than 1000"):
        install(Package("0" * 64, zipped({"trials/bomb.py": b"x" * 10_000})), tmp_path / "cache")
    assert [p.name for p in tmp_path.rglob("*")] == ["cache"]


def test_a_table_that_announces_more_than_it_may_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"zeros": np.zeros(2_000_000, np.int64)}), path, compression="zstd")
    assert path.stat().st_size < 100_000
    with pytest.raises(FooterError, match="more than the limit of 1000000"):
        bounded(path, 1_000_000)
    assert bounded(path) == path
    monkeypatch.setattr("orchestrator.recipe.bounded", lambda p: bounded(p, 1_000_000))
    with pytest.raises(SpecError, match="16000000 bytes unpacked"):
        read_table(path)


def test_a_local_ray_and_a_local_mlflow_listen_on_loopback_alone() -> None:
    from orchestrator import ui

    command = ui._command("http://127.0.0.1:5000")
    assert command[command.index("--host") + 1] == "127.0.0.1"
    texts = {n: (ROOT / n).read_text() for n, _ in modules()}
    assert not [n for n, text in texts.items() if "0.0.0.0" in text or "dashboard_host" in text]
    local = [n for n, text in texts.items() if 'address="local"' in text]
    assert local
    assert all("include_dashboard=False" in texts[n] for n in local)
