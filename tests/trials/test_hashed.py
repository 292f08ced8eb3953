"""How many tokens an id has, told from lengths alone; stamps as exact decimals."""

import json
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trials.formats.hashed import decimal, tokens_an_id


@given(
    prompts=st.lists(st.integers(1, 20_000), min_size=1, max_size=50),
    per=st.sampled_from([1, 8, 16, 64, 512, 1024]),
)
def test_a_size_that_is_told_fits_all_rows_and_the_usual_one_goes_first(prompts: list[int], per: int) -> None:
    n = np.array(prompts)
    counts = -(-n // per)
    assert tokens_an_id(n, counts, per) == per
    found = tokens_an_id(n, counts, 3)
    assert found is None or (-(-n // found) == counts).all()


def test_none_is_told_where_several_fit_or_none_does() -> None:
    assert tokens_an_id(np.array([5]), np.array([1]), 3) is None  # 8, 16, ... all fit
    assert tokens_an_id(np.array([100, 100]), np.array([2, 3]), 16) is None
    assert tokens_an_id(np.array([], np.int64), np.array([], np.int64), 16) is None


@pytest.mark.parametrize(("ns", "unit", "text"), [(0, 10**9, "0"), (1, 10**9, "0.000000001"), (1500, 1000, "1.5"),
                                                   (10**9, 10**9, "1"), (100, 1, "100")])  # fmt: skip
def test_times_are_written_without_a_float(ns: int, unit: int, text: str) -> None:
    assert decimal(ns, unit) == text


@given(ns=st.integers(0, 1 << 61), unit=st.sampled_from([1, 1000, 10**6, 10**9]))
def test_what_is_written_is_read_back_exactly(ns: int, unit: int) -> None:
    assert json.loads(decimal(ns, unit), parse_float=Decimal) * unit == ns
