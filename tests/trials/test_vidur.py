"""Lengths with or without arrivals; seconds at the digits that are written."""

from pathlib import Path

import pytest

from trials.formats.vidur import read
from trials.trace import Trace, TraceError


def _read(folder: Path, text: str) -> Trace:
    (folder / "v.csv").write_text(text)
    return read([folder / "v.csv"])


def test_seconds_are_read_at_the_digits_that_are_written(tmp_path: Path) -> None:
    trace = _read(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n0.1,5,1\n0.3,5,1\n1e1,5,1\n")
    assert trace.arrival_ns.tolist() == [0, 200_000_000, 9_900_000_000]


def test_a_file_without_arrivals_is_for_closed_loads(tmp_path: Path) -> None:
    trace = _read(
        tmp_path, "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n5,2,7,2.5\n9,3,12,3.0\n"
    )
    assert trace.arrival_ns.tolist() == [0, 0]
    assert trace.meta.synthetic == ("arrival_ns",)
    assert "not read" not in "".join(trace.meta.notes)  # what follows from the lengths is no loss


@pytest.mark.parametrize("text", ["arrived_at,num_prefill_tokens\n1,2\n", "arrived_at,in,out\n1,2,3\n"])
def test_a_header_without_the_lengths_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        TraceError, match=r"line 1: num_.* missing; a row has num_prefill_tokens, num_decode_tokens"
    ):
        _read(tmp_path, text)


@pytest.mark.parametrize("at", ["nan", "inf", "-inf", "", "1 s", "1e400"])
def test_what_is_no_time_is_refused(tmp_path: Path, at: str) -> None:
    with pytest.raises(TraceError, match="line 2: arrived_at is '"):
        _read(tmp_path, f"arrived_at,num_prefill_tokens,num_decode_tokens\n{at},5,1\n")
