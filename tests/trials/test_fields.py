"""Values as formats write them: exact, or refused with the place and the name."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trials.formats.fields import csv_records, ids_of, json_documents, json_object, need, time_ns, whole
from trials.formats.source import Source
from trials.trace import TraceError


def source(*lines: str) -> Source:
    return Source(Path("f"), list(lines), "")


@given(ns=st.integers(-(10**18), 10**18))
def test_seconds_written_with_nine_digits_are_exact(ns: int) -> None:
    sign, size = "-" if ns < 0 else "", abs(ns)
    assert time_ns(source(), 1, "t", f"{sign}{size // 10**9}.{size % 10**9:09d}") == ns


@pytest.mark.parametrize(("value", "unit", "ns"), [(0.1, 10**9, 10**8), (1.25, 10**6, 1_250_000), (7, 1, 7),
                                                    ("  3 ", 1000, 3000), (Decimal("0.5"), 10**9, 5 * 10**8),
                                                    (1e-9, 10**9, 1)])  # fmt: skip
def test_a_float_is_taken_at_the_digits_that_were_written(value: Any, unit: int, ns: int) -> None:
    assert time_ns(source(), 1, "t", value, unit) == ns


@pytest.mark.parametrize("value", [True, None, [], "x", "", float("nan"), float("inf"), 1e300, "1e999999999"])
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(TraceError, match="f, line 3: t is "):
        time_ns(source(), 3, "t", value)


@pytest.mark.parametrize(("value", "number"), [(7, 7), ("7", 7), (7.0, 7), (Decimal("7.0"), 7), (" -3", -3)])
def test_whole_numbers_come_in_several_coats(value: Any, number: int) -> None:
    assert whole(source(), 1, "n", value) == number


@pytest.mark.parametrize("value", [7.5, Decimal("7.5"), "7.0", True, None, "", 10**20, 2.0**60])
def test_what_is_not_whole_is_refused(value: Any) -> None:
    with pytest.raises(TraceError, match=r"n is .*: a whole number"):
        whole(source(), 1, "n", value)


def test_a_document_stands_over_lines_or_one_a_line() -> None:
    assert json_documents(source('{"a":', "1}")) == [(1, {"a": 1})]
    assert json_documents(source('{"a": 1}', '{"a": 2}')) == [(1, {"a": 1}), (2, {"a": 2})]
    with pytest.raises(TraceError, match="line 2: not a JSON object"):
        json_documents(source('{"a":', "x}"))
    with pytest.raises(TraceError, match="line 2: not a JSON object"):
        json_documents(source('{"a": 1}', "x}"))
    with pytest.raises(TraceError, match="line 1: a JSON object is needed, found a list of 1"):
        json_documents(source("[", "1]"))


def test_numbers_can_be_kept_as_they_are_written() -> None:
    assert json_object(source('{"t": 1.000000000000000001}'), 1, exact=True) == {
        "t": Decimal("1.000000000000000001")
    }


def test_csv_rows_are_found_by_name_and_have_all_cells() -> None:
    assert list(csv_records(source("a, b", '1,"2,3"'))) == [(2, {"a": "1", "b": "2,3"})]
    for lines, reason in ((("a,b", "1"), "line 2: 1 columns instead of 2"), (("a,a", "1,2"), "stands twice"),
                          (("a,b", '"1,2'), "line 2: not CSV")):  # fmt: skip
        with pytest.raises(TraceError, match=reason):
            list(csv_records(source(*lines)))


def test_missing_keys_are_named_with_those_of_a_row() -> None:
    need(source(), 1, {"a": 1, "b": 2}, "a", "b")
    with pytest.raises(TraceError, match="line 4: b, c missing; a row has a, b, c"):
        need(source(), 4, {"a": 1}, "a", "b", "c")


@pytest.mark.parametrize("found", [None, "1", [-1], [1.0], [True], [1 << 70], {"0": 1}])
def test_ids_are_whole_numbers_from_0(found: Any) -> None:
    with pytest.raises(TraceError, match="hash_ids is "):
        ids_of(source(), 1, found)
