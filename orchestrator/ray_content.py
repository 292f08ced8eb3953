"""Content on its way to nodes by its digest: through Ray's object store, or over a place that all of them reach.

Never inside a runtime_env: Ray would upload and unpack it for every job anew.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.stock import Digests, Item, NotDelivered, Part, Stock, items_of, relocated
from trials.spec import TrialSpec
from trials.units import SpecError

_PIECE_BYTES = 64 << 20
_MOST_THROUGH_RAY_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a spec needs, and where a node finds it that has not got it. `refs`: by digest of a part, its pieces."""

    items: tuple[Item, ...] = ()
    refs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    shared: str | None = None

    def brought(self, spec: TrialSpec, stock: Stock) -> TrialSpec:
        """The spec with paths of this node. Raises NotDelivered."""
        return relocated(spec, {item.field: stock.bring(item, self._fetch) for item in self.items})

    def _fetch(self, item: Item, part: Part) -> Iterator[bytes]:
        if self.shared is not None:
            yield from _read(self.shared, part.sha256)
            return
        if part.sha256 not in self.refs:
            raise NotDelivered(
                f"the {item.field} {item.origin} ({item.size_bytes} bytes) is not on this node, and too large to "
                "be sent through Ray: put it at the same path on every node, or name a place in executor.content"
            )
        import ray

        for ref in self.refs[part.sha256]:
            yield ray.get(ref)


class Dispatch:
    """The driver's side: puts each piece of content on its way once. Keeps what it put alive."""

    def __init__(self, shared: str | None = None) -> None:
        self._shared = shared
        self._digests = Digests()
        self._refs: dict[str, tuple[Any, ...]] = {}
        self._stored: set[str] = set()

    def of(self, spec: TrialSpec) -> Delivery:
        """How nodes get what this spec needs. SpecError where the shared place cannot be written."""
        items = items_of(spec, self._digests)
        for item in items:
            if self._shared is not None:
                self._store(item)
            elif item.size_bytes <= _MOST_THROUGH_RAY_BYTES:
                self._put(item)
        wanted = {part.sha256 for item in items for part in item.parts}
        return Delivery(items, {d: refs for d, refs in self._refs.items() if d in wanted}, self._shared)

    def _put(self, item: Item) -> None:
        import ray

        for part in item.parts:
            if part.sha256 not in self._refs:
                self._refs[part.sha256] = tuple(ray.put(piece) for piece in _pieces(_path(item, part)))

    def _store(self, item: Item) -> None:
        assert self._shared is not None
        for part in item.parts:
            if part.sha256 not in self._stored:
                _write(self._shared, part.sha256, _pieces(_path(item, part)))
                self._stored.add(part.sha256)


def _path(item: Item, part: Part) -> Path:
    return Path(item.origin) / part.name if part.name else Path(item.origin)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as handle:
        while piece := handle.read(_PIECE_BYTES):
            yield piece


def _opened(uri: str) -> tuple[Any, str]:
    from pyarrow import ArrowException, fs

    try:
        return fs.FileSystem.from_uri(uri)  # type: ignore[no-any-return]
    except (ArrowException, OSError, ValueError) as error:
        raise SpecError(
            f"executor.content: {uri}: {error}; write it like file:///nfs/kvknee or s3://bucket/kvknee"
        ) from None


def _write(uri: str, digest: str, pieces: Iterator[bytes]) -> None:
    """Put one file under its digest, whole or not at all; one that stands there already is left alone."""
    from pyarrow import fs

    system, root = _opened(uri)
    try:
        if system.get_file_info(f"{root}/{digest}").type is fs.FileType.File:
            return
        system.create_dir(root, recursive=True)
        with system.open_output_stream(f"{root}/.{digest}.coming") as out:
            for piece in pieces:
                out.write(piece)
        system.move(f"{root}/.{digest}.coming", f"{root}/{digest}")
    except OSError as error:
        raise SpecError(f"executor.content: {uri}: {error}; it must be writable for the driver") from None


def _read(uri: str, digest: str) -> Iterator[bytes]:
    system, root = _opened(uri)
    try:
        with system.open_input_stream(f"{root}/{digest}") as stream:
            while piece := stream.read(_PIECE_BYTES):
                yield piece
    except OSError as error:
        raise NotDelivered(f"executor.content: {uri} cannot be read on this node: {error}") from None
