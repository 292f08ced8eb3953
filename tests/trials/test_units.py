"""Quantities: whole integers come out, ambiguity is refused."""

import pytest

from trials.units import SpecError, nearest, parse_bytes, parse_count, parse_ns, shown


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16GiB", 17_179_869_184), ("500MB", 500_000_000), ("500 MB", 500_000_000), (4096, 4096), ("4096B", 4096),
        ("1.5KiB", 1536), ("0.1GiB", 107_374_182), ("2TiB", 2 << 40), ("1e3kB", 10**6), (0, 0),
    ],
)  # fmt: skip
def test_bytes(text: object, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500ms", 500_000_000), ("0.3s", 300_000_000), ("10min", 600 * 10**9), ("1h", 3600 * 10**9), (0, 0),
        ("0", 0), ("0s", 0), ("1.000000001s", 1_000_000_001), ("7us", 7000), ("7µs", 7000), ("-5s", -5 * 10**9),
    ],
)  # fmt: skip
def test_durations_are_exact_nanoseconds(text: object, value: int) -> None:
    assert parse_ns(text) == value


@pytest.mark.parametrize(("text", "value"), [("128k", 128_000), (8192, 8192), (8192.0, 8192), ("1.5k", 1500)])
def test_counts(text: object, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["16G", "16g", "16Gb", "16 GIB", "1M", "5K"])
def test_a_unit_of_bytes_with_two_meanings_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(SpecError, match=r"unknown or ambiguous unit.*KiB, MiB, GiB.*for example 16GiB"):
        parse_bytes(text, "pool")


@pytest.mark.parametrize("text", [5, "5", 0.5, "1e3"])
def test_a_duration_without_unit_is_refused(text: object) -> None:
    with pytest.raises(SpecError, match="has no unit; one of ns, us"):
        parse_ns(text)


@pytest.mark.parametrize("text", [3.5, "3.5", "1.0001k", "0.5"])
def test_a_count_is_never_rounded(text: object) -> None:
    with pytest.raises(SpecError, match="not a whole number"):
        parse_count(text)


def test_nothing_is_rounded_to_zero() -> None:
    with pytest.raises(SpecError, match="not a whole number"):
        parse_ns("0.0001us")
    with pytest.raises(SpecError, match="not a whole number"):
        parse_bytes("0.5B")


@pytest.mark.parametrize("parse", [parse_bytes, parse_ns, parse_count])
@pytest.mark.parametrize(
    "text", [True, False, None, [1], {"a": 1}, "", "abc", "1,5s", "--3", "inf", "nan", float("inf"), float("nan"),
             "1e99999s", "9" * 5000, pytest.param(10**5000, id="long"), "٣s", "1 2"],
)  # fmt: skip
def test_whatever_stands_there_the_answer_is_a_short_spec_error(parse: object, text: object) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, "x")  # type: ignore[operator]
    assert str(caught.value).startswith("x: ")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["1e30", "9223372036854775808", 2**63])
def test_what_no_column_holds_is_out_of_range(text: object) -> None:
    with pytest.raises(SpecError, match="out of range"):
        parse_count(text)


def test_nearest_hints_and_lists() -> None:
    assert nearest("azur", ["mooncake", "azure"]) == "did you mean 'azure'? known: azure, mooncake"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"


def test_shown_is_a_line_at_most() -> None:
    assert len(shown("x" * 10_000)) < 70
    assert shown({"a": list(range(10_000))}) == "a dict of 1"
