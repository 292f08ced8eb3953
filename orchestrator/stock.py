"""What a trial reads beside its spec, by digest: its trace, its table of step times, the folder of its model.

On the driver's machine: what a spec's locators lead to. On a node: the same content under another path, from that
very path where the node sees it too, else from a checked cache that is filled once. A path is never trusted by its
name: its digest is taken once for each state of the file (size, time of change) that is met.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trials.fingerprint import file_digest
from trials.spec import TrialSpec
from trials.trace import write_whole

_LARGE_BYTES = 64 << 20


class NotDelivered(RuntimeError):
    """Content that a trial needs could not be brought to its node."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file: its path inside the item, "" for an item that is a single file; sha256 of its bytes."""

    name: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Item:
    """One locator's content. `field`: trace, table or model. `origin`: where it lies on the driver's machine."""

    field: str
    digest: str
    origin: str
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def suffix(self) -> str:
        """Of the file's name, which some readers go by."""
        return Path(self.origin).suffix if self.parts and not self.parts[0].name else ""


Fetch = Callable[[Item, Part], Iterator[bytes]]  # a part's bytes, in pieces


class Digests:
    """Digests of files, taken once for each state of a file.

    `folder`: where those of large files are kept for other processes of this node, so that weights are read once.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._known: dict[str, str] = {}

    def of(self, path: Path) -> str:
        """sha256 of a file. Raises OSError."""
        stat = path.stat()
        state = f"{path}\n{stat.st_size} {stat.st_mtime_ns} {stat.st_ino} {stat.st_dev}"
        if state not in self._known:
            large = self._folder is not None and stat.st_size >= _LARGE_BYTES
            self._known[state] = self._kept(state, path) if large else file_digest(path)
        return self._known[state]

    def _kept(self, state: str, path: Path) -> str:
        assert self._folder is not None
        note = self._folder / hashlib.sha256(state.encode()).hexdigest()
        try:
            return bytes.fromhex(note.read_text(encoding="ascii")).hex()
        except (OSError, ValueError):
            found = file_digest(path)
            write_whole(note, lambda temporary: temporary.write_text(found, encoding="ascii"))
            return found


def items_of(spec: TrialSpec, digests: Digests) -> tuple[Item, ...]:
    """What the spec's locators lead to on this machine; what is not there is left to the worker to refuse."""
    found = (item_of(name, path, digests) for name, path in _locators(spec))
    return tuple(item for item in found if item is not None)


def _locators(spec: TrialSpec) -> Iterator[tuple[str, Path]]:
    yield "trace", Path(spec.trace.path)
    if spec.engine.table is not None:
        yield "table", spec.engine.table
    if spec.model.path is not None:
        yield "model", Path(spec.model.path)


def item_of(name: str, path: Path, digests: Digests) -> Item | None:
    """A file or a folder as an item; None where nothing is there that could be read."""
    try:
        if path.is_file():
            part = Part("", digests.of(path), path.stat().st_size)
            return Item(name, part.sha256, str(path), (part,))
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else []
        parts = tuple(Part(p.relative_to(path).as_posix(), digests.of(p), p.stat().st_size) for p in files)
    except OSError:
        return None
    return Item(name, digest_of(parts), str(path), parts) if parts else None


def digest_of(parts: tuple[Part, ...]) -> str:
    """Of a folder: names and contents."""
    h = hashlib.sha256(b"kvknee-folder-1\n")
    for part in parts:
        h.update(f"{part.name}\n{part.sha256}\n".encode())
    return h.hexdigest()


def relocated(spec: TrialSpec, paths: dict[str, Path]) -> TrialSpec:
    """The spec with its locators leading to `paths`; its hash does not cover them."""
    update: dict[str, object] = {}
    if "trace" in paths:
        update["trace"] = spec.trace.model_copy(update={"path": str(paths["trace"])})
    if "table" in paths:
        update["engine"] = spec.engine.with_table(paths["table"])
    if "model" in paths:
        update["model"] = spec.model.model_copy(update={"path": str(paths["model"])})
    return spec.model_copy(update=update)


class Stock:
    """A node's cache: `folder`/DIGEST, whole or not at all. Several processes may fill it at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digests = Digests(folder / "digests")

    def have(self, item: Item) -> Path | None:
        """Where the content lies already, with the right digest: at its origin, or in the cache."""
        for place in (Path(item.origin), self._place(item)):
            if self._is(place, item):
                return place
        return None

    def _is(self, place: Path, item: Item) -> bool:
        try:
            return all(self._digests.of(_inside(place, part)) == part.sha256 for part in item.parts)
        except OSError:
            return False

    def _place(self, item: Item) -> Path:
        return self._folder / f"{item.digest}{item.suffix}"

    def bring(self, item: Item, fetch: Fetch) -> Path:
        """Where the content lies, fetched where this node has not got it. Raises NotDelivered."""
        found = self.have(item)
        if found is not None:
            return found
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=self._folder, prefix=".coming-"))
        try:
            content = aside / "content"
            for part in item.parts:
                self._write(_inside(content, part), fetch(item, part), part, item)
            place = self._place(item)
            _settle(content, place)
            return place
        except OSError as error:
            raise NotDelivered(f"the {item.field} {item.origin} cannot be kept on this node: {error}") from None
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _write(self, path: Path, pieces: Iterator[bytes], part: Part, item: Item) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        h = hashlib.sha256()
        with path.open("wb") as out:
            for piece in pieces:
                h.update(piece)
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        if h.hexdigest() != part.sha256:
            raise NotDelivered(f"the {item.field} {item.origin} arrived with another digest than it was sent with")


def _inside(place: Path, part: Part) -> Path:
    """A part's path; a name that would lead out of the item is refused."""
    path = place / part.name if part.name else place
    if part.name and (part.name.startswith("/") or ".." in Path(part.name).parts):
        raise NotDelivered(f"{part.name!r} is not a path inside a folder")
    return path


def _settle(content: Path, place: Path) -> None:
    """Put it where it belongs; damaged content there gives way, and one that another process put there stays."""
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    try:
        os.replace(content, place)
    except OSError:
        if not place.is_dir():
            raise
