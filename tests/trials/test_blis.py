"""BLIS rows as BLIS replays them: growing sessions, prefixes in front of the input, deadlines that were missed."""

from pathlib import Path

import pytest

from trials.content import Content
from trials.formats.blis import read
from trials.trace import Trace, TraceError

HEADER = "trace_version: 3\ntime_unit: us\nmode: real\n"
GROWING = HEADER + "session_context_growth: accumulate\n"


def _read(folder: Path, columns: str, *rows: str, header: str | None = HEADER) -> Trace:
    paths = []
    if header is not None:
        (folder / "h.yaml").write_text(header)
        paths.append(folder / "h.yaml")
    (folder / "d.csv").write_text("\n".join([columns, *rows]))
    return read([*paths, folder / "d.csv"])


SESSION = "session_id,round_index,input_tokens,output_tokens,arrival_time_us,last_chunk_time_us"


def test_rounds_of_a_growing_session_add_to_what_was_said(tmp_path: Path) -> None:
    trace = _read(tmp_path, SESSION, "s,0,100,10,1000,3000", "s,1,20,10,5000,9000", header=GROWING)
    assert trace.num_prompt_tokens.tolist() == [100, 130]
    assert trace.inherited_tokens.tolist() == [0, 110]
    assert trace.think_ns.tolist() == [0, 2_000_000]  # from the last chunk of the answer in front
    assert Content(trace).common_tokens(0, 1) == 110


def test_a_compaction_starts_from_the_prompt_that_is_given(tmp_path: Path) -> None:
    trace = _read(
        tmp_path, SESSION + ",input_tokens_reset", "s,0,100,10,1000,3000,", "s,1,0,10,5000,9000,60",
        "s,2,5,1,20000,0,", header=GROWING,
    )  # fmt: skip
    assert trace.num_prompt_tokens.tolist() == [100, 60, 75]
    assert (trace.parent.tolist(), trace.inherited_tokens.tolist()) == ([-1, -1, 1], [0, 0, 70])


def test_rounds_of_other_sessions_carry_their_whole_prompt(tmp_path: Path) -> None:
    trace = _read(tmp_path, SESSION, "s,0,100,10,1000,0", "s,1,20,10,5000,0")
    assert (trace.num_prompt_tokens.tolist(), trace.inherited_tokens.tolist()) == ([100, 20], [0, 0])
    assert trace.after.row(1).tolist() == [0]
    assert trace.think_ns.tolist() == [0, 4_000_000]
    assert any("think times that are gaps between arrivals: 1" in note for note in trace.meta.notes)


def test_a_recorded_think_time_goes_before_gaps(tmp_path: Path) -> None:
    trace = _read(tmp_path, SESSION + ",think_time_us", "s,0,100,10,1000,3000,", "s,1,20,10,5000,9000,0")
    assert trace.think_ns.tolist() == [0, 0]


def test_a_prefix_stands_in_front_of_the_input_and_is_shared_by_its_group(tmp_path: Path) -> None:
    """The first to ARRIVE has it, whatever the order of the rows."""
    trace = _read(
        tmp_path, "prefix_group,prefix_length,input_tokens,output_tokens,arrival_time_us,server_input_tokens",
        "g,64,20,10,9000,84", "g,64,30,10,7000,0", ",0,30,10,8000,41", "h,8,1,1,9500,0",
    )  # fmt: skip
    assert trace.num_prompt_tokens.tolist() == [94, 41, 84, 9]
    assert (trace.parent.tolist(), trace.inherited_tokens.tolist()) == ([-1, -1, 0, -1], [0, 0, 64, 0])
    assert Content(trace).common_tokens(0, 2) == 64


def test_only_a_deadline_that_was_missed_is_a_cancel(tmp_path: Path) -> None:
    trace = _read(
        tmp_path, "input_tokens,output_tokens,arrival_time_us,deadline_us,status",
        "5,5,1000,4500,timeout", "5,5,2000,90000,ok", "5,5,3000,0,ok",
    )  # fmt: skip
    assert trace.cancel_after_ns.tolist() == [3_500_000, -1, -1]
    assert any("rows that met their deadline: 1; it is no cancel" in note for note in trace.meta.notes)


def test_errors_are_left_out_and_told_apart_from_empty_answers(tmp_path: Path) -> None:
    trace = _read(
        tmp_path,
        "input_tokens,output_tokens,arrival_time_us,status",
        "5,5,1000,error",
        "5,0,1500,ok",
        "6,5,2000,ok",
    )
    assert trace.num_prompt_tokens.tolist() == [6]
    assert any("1 row whose status is an error left out" in note for note in trace.meta.notes)
    assert any("1 row with 0 output tokens left out" in note for note in trace.meta.notes)


def test_the_servers_priority_is_kept(tmp_path: Path) -> None:
    trace = _read(tmp_path, "input_tokens,output_tokens,arrival_time_us,vllm_priority", "5,5,1,3", "5,5,2,0")
    assert trace.priority.tolist() == [3, 0]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("trace_version: 1\n", "trace_version 1 with time_unit 'us': 2 or 3 in us are read"),
        ("trace_version: 2\ntime_unit: ms\n", "time_unit 'ms'"),
        ("trace_version: 2\nsession_context_growth: shrink\n", "accumulate is read, or none"),
        ("trace_version: [2\n", "no header and no rows of BLIS"),
    ],
)
def test_a_header_that_says_something_else_is_refused(tmp_path: Path, header: str, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        _read(tmp_path, SESSION, "s,0,100,10,1000,0", header=header)


@pytest.mark.parametrize("second", ["s,2,20,10,5000,0", "s,0,20,10,5000,0"])
def test_a_round_that_is_missing_or_twice_is_refused(tmp_path: Path, second: str) -> None:
    with pytest.raises(TraceError, match=r"line 3: round_index . of session 's', where 1 is due"):
        _read(tmp_path, SESSION, "s,0,100,10,1000,0", second)


def test_rows_without_a_header_say_so(tmp_path: Path) -> None:
    trace = _read(tmp_path, SESSION, "s,0,100,10,1000,0", header=None)
    assert any("read without a header" in note for note in trace.meta.notes)
