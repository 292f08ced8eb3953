"""Azure stamps: 100 ns ticks as integers, whatever the publisher's year writes."""

from pathlib import Path

import pytest

from trials.formats.azure import HEADER, read
from trials.trace import TraceError


def _arrivals(folder: Path, *stamps: str) -> list[int]:
    path = folder / "a.csv"
    path.write_bytes("\r\n".join([HEADER, *(f"{stamp},10,2" for stamp in stamps)]).encode())
    return read([path]).arrival_ns.tolist()


def test_a_tick_is_100_ns_and_no_float_touches_it(tmp_path: Path) -> None:
    """2**53 ns are 104 days: a stamp as a float of ns since 1970 would lose its last tick."""
    stamps = ["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:46.6805901", "2023-11-16 18:15:46.6805902"]
    assert _arrivals(tmp_path, *stamps) == [0, 100, 200]


def test_days_months_and_leap_years_roll_over(tmp_path: Path) -> None:
    stamps = ["2024-02-28 23:59:59.9999999", "2024-02-29 00:00:00.0000000", "2024-03-01 00:00:00.0000000"]
    assert _arrivals(tmp_path, *stamps) == [0, 100, 100 + 86_400 * 10**9]


@pytest.mark.parametrize("text", ["2024-05-10 00:00:01+00:00", "2024-05-10T00:00:01Z", "2024-05-10 00:00:01.0"])
def test_other_ways_to_write_the_same_utc_second(tmp_path: Path, text: str) -> None:
    assert _arrivals(tmp_path, "2024-05-10 00:00:00.0000000", text) == [0, 10**9]


@pytest.mark.parametrize(
    "text",
    ["2023-02-29 00:00:00.0000000", "2023-13-01 00:00:00.0", "2023-01-01 24:00:00.0", "2023-01-01 00:60:00.0",
     "2023-01-01 00:00:60.0", "2023-01-01 00:00:00.", "2023-01-01 00:00:00.0+02:00", "2023-01-01", "1700158546"],
)  # fmt: skip
def test_what_is_no_utc_stamp_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match="line 2: TIMESTAMP '"):
        _arrivals(tmp_path, text)


@pytest.mark.parametrize("header", ["timestamp,in,out", "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"])
def test_another_header_is_refused_with_the_one_that_is_read(tmp_path: Path, header: str) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n2023-01-01 00:00:00.0,1,2\n")
    with pytest.raises(TraceError, match="line 1: the header must be TIMESTAMP,ContextTokens,GeneratedTokens"):
        read([tmp_path / "a.csv"])


@pytest.mark.parametrize("row", ["2023-01-01 00:00:00,1", "2023-01-01 00:00:00,1,", "2023-01-01 00:00:00,1,2,3"])
def test_a_row_cut_short_or_too_long_is_refused(tmp_path: Path, row: str) -> None:
    (tmp_path / "a.csv").write_text(f"{HEADER}\n{row}")
    with pytest.raises(TraceError, match="line 2: "):
        read([tmp_path / "a.csv"])


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + f"{HEADER}\n2023-01-01 00:00:00.0,1,2".encode())
    assert len(read([tmp_path / "a.csv"])) == 1
