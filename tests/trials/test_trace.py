"""The columnar trace: what is valid, what a file may be, and that nothing is cut to fit."""

import errno
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trials.fingerprint import trace_hash
from trials.trace import (
    COLUMNS,
    NONE,
    STARTS,
    Ints,
    Ragged,
    Trace,
    TraceError,
    TraceMeta,
    load_trace,
    make_trace,
    save_trace,
    validate,
    with_links,
    write_whole,
)


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def linked() -> Trace:
    """Four rows: a turn that follows row 0, a fork of row 1, and a row with prefix ids 5, 6."""
    meta = TraceMeta(4, "floor", ("arrival_ns",), "made up", "by hand", ("a note\nof two lines", "another"))
    trace = make_trace(
        ints(0, 10, 20, 30), ints(8, 9, 12, 8), ints(1, 2, 3, 4), Ragged.of([[5], [], [], [5, 6]]), meta,
        parent=ints(NONE, 0, 1, NONE), inherited_tokens=ints(0, 4, 9, 0), session=ints(7, 7, 7, NONE),
    )  # fmt: skip
    starts = ints(STARTS["arrival"], STARTS["think"], STARTS["fork"], STARTS["arrival"])
    return with_links(replace(trace, starts=starts, think_ns=ints(0, 5, 0, 0)), Ragged.of([[], [0], [], []]))


def test_save_then_load_gives_the_same_trace_and_hash(tmp_path: Path) -> None:
    trace = linked()
    save_trace(trace, tmp_path / "deep" / "t.parquet")
    loaded = load_trace(tmp_path / "deep" / "t.parquet")
    for name in COLUMNS:
        assert getattr(loaded, name).dtype == np.int64
        assert getattr(loaded, name).tolist() == getattr(trace, name).tolist()
    assert [loaded.after.row(r).tolist() for r in range(4)] == [[], [0], [], []]
    assert [loaded.prefix_ids.row(r).tolist() for r in range(4)] == [[5], [], [], [5, 6]]
    assert loaded.meta == trace.meta
    assert trace_hash(loaded) == trace_hash(trace)


def test_take_keeps_order_and_moves_links() -> None:
    taken = linked().take(ints(0, 1, 3))
    assert taken.parent.tolist() == [NONE, 0, NONE]
    assert taken.inherited_tokens.tolist() == [0, 4, 0]
    assert [taken.after.row(r).tolist() for r in range(3)] == [[], [0], []]
    assert taken.prefix_ids.row(2).tolist() == [5, 6]
    validate(taken)


def test_take_cuts_links_to_rows_that_are_left_out() -> None:
    taken = linked().take(ints(1, 2, 3))
    assert taken.parent.tolist() == [NONE, 0, NONE]
    assert taken.inherited_tokens.tolist() == [0, 9, 0]
    assert taken.starts.tolist() == [STARTS["arrival"], STARTS["fork"], STARTS["arrival"]]
    assert len(taken.after.values) == 0
    validate(taken)


def test_take_of_all_rows_changes_nothing() -> None:
    assert trace_hash(linked().take(np.arange(4))) == trace_hash(linked())


def _set(name: str, *values: int) -> Callable[[Trace], Trace]:
    return lambda trace: replace(trace, **{name: ints(*values)})


def _meta(**changes: object) -> Callable[[Trace], Trace]:
    return lambda trace: replace(trace, meta=replace(trace.meta, **changes))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_set("arrival_ns", 0, 20, 10, 30), "row 2: arrives before the row in front of it; sort"),
        (_set("arrival_ns", -1, 20, 20, 30), "row 0: arrival time out of range"),
        (_set("arrival_ns", 0, 20, 20, 1 << 62), "row 3: arrival time out of range"),
        (_set("num_prompt_tokens", 8, 9, 12, 0), "row 3: a prompt needs at least one token"),
        (_set("num_prompt_tokens", 8, 9, 12, 1 << 40), "row 3: a prompt of more than"),
        (_set("num_output_tokens", -5, 1, -2, 3), r"row 0 \(and 1 more\): an answer needs at least one"),
        (_set("num_output_tokens", 1, 1, 1), "column num_output_tokens has 3 entries for 4 rows"),
        (_set("parent", NONE, 1, 1, NONE), "row 1: its parent does not stand before it"),
        (_set("parent", NONE, 0, 1, -2), "row 3: unknown parent"),
        (_set("parent", NONE, NONE, 1, NONE), "row 1: inherits tokens from nobody"),
        (_set("inherited_tokens", 0, 10, 9, 0), "row 1: inherits more tokens than its prompt has"),
        (_set("starts", 0, 2, 1, 9), "row 3: unknown start rule"),
        (_set("starts", 1, 2, 1, 0), "row 0: forks from nobody"),
        (_set("starts", 0, 2, 1, 2), "row 3: waits for nobody"),
        (_set("think_ns", 0, -5, 0, 0), "row 1: think time out of range"),
        (_set("session", 0, 0, -2, 0), "row 2: session below -1"),
        (_set("cancel_after_ns", -1, -2, -1, -1), "row 1: cancel_after_ns below -1"),
        (lambda t: replace(t, after=Ragged.of([[], [1], [], []])), "row 1: starts after a row that does not stand"),
        (lambda t: replace(t, after=Ragged.of([[], [0], [-1], []])), "row 2: starts after a row that does not"),
        (lambda t: replace(t, after=Ragged.of([[], [0], []])), "after has 4 offsets for 4 rows; 5 are needed"),
        (lambda t: replace(t, prefix_ids=Ragged(ints(0, 3, 1, 1, 3), ints(5, 5, 6))), "offsets must rise"),
        (
            lambda t: replace(t, prefix_ids=Ragged(ints(0, 1, 1, 1, 9), ints(5, 5, 6))),
            "offsets must rise from 0 to 3",
        ),
        (lambda t: replace(t, prefix_ids=Ragged(ints(1, 1, 1, 1, 3), ints(5, 5, 6))), "offsets must rise"),
        (lambda t: replace(t, prefix_ids=Ragged.of([[5, 6, 7], [], [], []])), "row 0: has more prefix ids than"),
        (_meta(tokens_per_id=0), "tokens_per_id >= 1"),
        (_meta(tokens_per_id=5), "row 3: has more prefix ids than its prompt holds at 5"),
        (_meta(tail_rule="round"), "known rules: ceil, floor"),
    ],
)
def test_a_rule_that_a_row_breaks_is_named(damage: Callable[[Trace], Trace], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        validate(damage(linked()))


def test_a_trace_has_rows() -> None:
    with pytest.raises(TraceError, match="no rows"):
        make_trace(ints(), ints(), ints())


@pytest.mark.parametrize(
    "column", [np.array([1.5, 2.0]), np.array(["1", "2"]), np.array([[1, 2]]), np.array([2**63, 1], np.uint64)]
)
def test_a_column_is_never_cut_to_fit(column: np.ndarray) -> None:
    with pytest.raises(TraceError, match="column num_prompt_tokens"):
        make_trace(ints(0, 1), column, ints(1, 1))


def test_an_unknown_column_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TraceError, match=r"unknown trace columns: after; known: session, priority"):
        make_trace(ints(0), ints(1), ints(1), after=ints(0))


def _saved(folder: Path) -> Path:
    save_trace(linked(), folder / "t.parquet")
    return folder / "t.parquet"


def test_absent_empty_text_and_folder_are_no_traces(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such trace; make one with `kvknee trace import`"):
        load_trace(tmp_path / "absent.parquet")
    for content in (b"", b"TIMESTAMP,a,b\r\n", b"\x00" * 64, b"PAR1PAR1"):
        (tmp_path / "odd").write_bytes(content)
        with pytest.raises(TraceError, match="odd: not a whole trace file"):
            load_trace(tmp_path / "odd")
    with pytest.raises(TraceError, match="this is a folder, and a trace"):
        load_trace(tmp_path)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    data = _saved(tmp_path).read_bytes()
    (tmp_path / "cut").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(TraceError, match="not a whole trace file"):
        load_trace(tmp_path / "cut")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_changes_nothing_that_counts(tmp_path: Path, place: float, flip: int) -> None:
    """Pages carry checksums, and so does the whole; what is left is names, statistics and words."""
    data = bytearray(_saved(tmp_path).read_bytes())
    data[int(len(data) * place)] ^= flip
    (tmp_path / "flipped").write_bytes(bytes(data))
    try:
        loaded = load_trace(tmp_path / "flipped")
    except TraceError:
        return
    assert trace_hash(loaded) == trace_hash(linked())


def _rewrite(path: Path, name: str, column: pa.Array) -> Path:
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index(name), name, column), path)
    return path


@pytest.mark.parametrize(
    ("name", "column", "reason"),
    [
        ("arrival_ns", pa.array([0.5, 1.0, 2.0, 3.0]), "column arrival_ns: int64 is needed, found double"),
        ("arrival_ns", pa.array(["0", "1", "2", "3"]), "int64 is needed, found string"),
        ("arrival_ns", pa.array([0, None, 2, 3], pa.int64()), "1 rows have no value"),
        ("parent", pa.array([[0], [], [], []], pa.large_list(pa.int64())), "int64 is needed"),
        ("after", pa.array([0, 1, 2, 3]), "column after: large_list"),
        ("after", pa.array([[], None, [], []], pa.large_list(pa.int64())), "1 rows have no value"),
        ("prefix_ids", pa.array([[None], [], [], []], pa.large_list(pa.int64())), "1 entries have no value"),
        ("prefix_ids", pa.array([["a"], [], [], []]), "column prefix_ids: large_list"),
        ("arrival_ns", pa.array([3, 2, 1, 0]), "arrives before the row in front"),
        ("priority", pa.array([0, 1, 0, 0]), "its content is not what was written; make it anew"),
        ("after", pa.array([[], [0], [999], []], pa.large_list(pa.int64())), "row 2: starts after a row"),
    ],
)
def test_foreign_columns_are_refused_by_name(tmp_path: Path, name: str, column: pa.Array, reason: str) -> None:
    path = _rewrite(_saved(tmp_path), name, column)
    with pytest.raises(TraceError, match=reason) as caught:
        load_trace(path)
    assert str(path) in str(caught.value)


def test_foreign_parquet_names_what_is_missing(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(TraceError, match="not a trace of kvknee, columns missing: arrival_ns, num_prompt"):
        load_trace(tmp_path / "other.parquet")


@pytest.mark.parametrize("description", [None, b"{", b"[]", b"{}", b'{"tokens_per_id": "4"}', b'{"surplus": 1}'])
def test_a_missing_or_damaged_description_is_refused(tmp_path: Path, description: bytes | None) -> None:
    path = _saved(tmp_path)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"kvknee.trace": description} if description else None), path)
    with pytest.raises(TraceError, match="description is missing or damaged"):
        load_trace(path)


def test_a_file_that_unpacks_to_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A million equal numbers take a few hundred bytes on disk: the bound is on what they become in memory."""
    rows = 1_000_000
    zeros = np.zeros(rows, np.int64)
    columns = {name: pa.array(zeros) for name in COLUMNS}
    for name in ("after", "prefix_ids"):
        columns[name] = pa.LargeListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int64)), pa.array(zeros[:0]))
    pq.write_table(pa.table(columns), tmp_path / "bomb.parquet", compression="zstd")
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    with pytest.raises(TraceError, match="bytes unpacked, more than the limit of 50000000"):
        load_trace(tmp_path / "bomb.parquet", max_bytes=50_000_000)


def test_columns_that_are_not_ours_are_not_read(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    table = pq.read_table(path).append_column("text", pa.array(["x"] * 4))
    pq.write_table(table, path)
    assert trace_hash(load_trace(path)) == trace_hash(linked())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    before = path.read_bytes()

    def half(temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise RuntimeError("full")

    with pytest.raises(RuntimeError, match="full"):
        write_whole(path, half)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


def test_a_folder_that_takes_no_file_is_said_by_the_name_that_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(dir: Path, prefix: str) -> tuple[int, str]:
        raise OSError(errno.EROFS, "Read-only file system", f"{dir}/{prefix}a1b2c3")

    monkeypatch.setattr(tempfile, "mkstemp", refused)
    with pytest.raises(OSError, match="Read-only") as said:
        write_whole(tmp_path / "t.parquet", lambda path: path.touch())
    assert said.value.filename == str(tmp_path / "t.parquet")
