"""SLO text: what it means, and where it is wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trials.slo import METRICS, Clause, parse_slo, slo_from_goodput
from trials.units import SpecError

MS = 1_000_000


def test_clauses_bound_the_population_and_set_the_limits_of_a_request():
    slo = parse_slo("ttft:p99<500ms;itl:p90<50ms")
    assert slo.clauses == (Clause("ttft", 99, 500 * MS), Clause("itl", 90, 50 * MS))
    assert (slo.ttft_ns, slo.mean_gap_ns, slo.e2el_ns, slo.attainment) == (500 * MS, 50 * MS, None, 0.99)


def test_a_request_is_held_to_the_limit_of_the_highest_percentile():
    slo = parse_slo("ttft:p50<100ms;ttft:p99<500ms;itl:p50<10ms;tpot:p90<30ms")
    assert (slo.ttft_ns, slo.mean_gap_ns) == (500 * MS, 30 * MS)


def test_the_stricter_of_two_limits_at_one_percentile_holds_a_request():
    assert parse_slo("itl:p99<50ms;tpot:p99<30ms").mean_gap_ns == 30 * MS


def test_qualify_clauses_replace_what_the_others_would_set_for_a_request():
    slo = parse_slo("ttft:p99<500ms;itl:p99<50ms;qualify:ttft<2s;qualify:e2el<10s")
    assert (slo.ttft_ns, slo.mean_gap_ns, slo.e2el_ns) == (2000 * MS, None, 10_000 * MS)
    assert len(slo.clauses) == 2


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("ttft:p99<1s", 0.99),
        ("ttft:p50<1s;itl:p95<1s", 0.95),
        ("ttft:p99.9<1s", 999 / 1000),
        ("ttft:p99<1s;attainment>=0.9", 0.9),
        ("ttft:p99<1s;attainment>=90%", 0.9),
        ("ttft:p99<1s;attainment>=1", 1.0),
        ("qualify:ttft<1s", 0.99),
    ],
)
def test_attainment_is_as_written_else_the_highest_percentile(text, share):
    assert parse_slo(text).attainment == share


@settings(deadline=None)
@given(st.integers(1, 100_000), st.integers(1, 1000))
def test_attainment_equals_the_share_that_it_spells(thousandths, times):
    thousandths = thousandths % 100_000 + 1
    percent = f"{thousandths // 1000}.{thousandths % 1000:03d}"
    assert parse_slo(f"ttft:p99<1s;attainment>={percent}%").attainment == thousandths * times / (100_000 * times)


@pytest.mark.parametrize(
    "text", [" ttft : p99 < 500 ms ; ", "TTFT:p99<=500ms", "ttft:p99<0.5s;;", "ttft:p99\n<500ms"]
)
def test_blanks_case_and_empty_parts_mean_nothing(text):
    assert parse_slo(text).clauses == parse_slo("ttft:p99<500ms").clauses


@settings(deadline=None)
@given(
    st.sampled_from(METRICS),
    st.integers(1, 100_000).map(lambda n: n / 1000),
    st.integers(1, 10**14).map(lambda n: n * 1000),
)
def test_a_clause_s_text_reads_back_as_the_clause(metric, percentile, limit_ns):
    clause = parse_slo(f"{metric}:p{percentile:.3f}<{limit_ns}ns").clauses[0]
    assert parse_slo(clause.text).clauses == (clause,)


@pytest.mark.parametrize(
    ("text", "caret", "words"),
    [
        ("tfft:p99<500ms", 0, "did you mean 'ttft'"),
        ("ttft:p99<500ms;itk:p99<5ms", 15, "unknown metric 'itk'"),
        ("ttft<500ms", 4, "a percentile, like :p99"),
        ("ttft:p<500ms", 6, "a percentile, like p99"),
        ("ttft:p99>500ms", 8, "`<` with a limit"),
        ("ttft:p9x<500ms", 7, "`<` with a limit"),
        ("ttft:p99<", 9, "a limit with a unit"),
        ("ttft:p99<500", 9, "has no unit"),
        ("ttft:p99<5foo", 9, "unit 'foo'"),
        ("ttft:p99<0ms", 9, "above zero"),
        ("ttft:p101<5ms", 6, "above 0 and up to 100"),
        ("ttft:p0<5ms", 6, "above 0 and up to 100"),
        ("ttft:p99<5ms,itl:p99<5ms", 12, "`;` or the end"),
        ("ttft:p99<5ms itl:p99<5ms", 13, "`;` or the end"),
        ("ttft:p99<5ms;ttft:p99<6ms", 13, "stands twice"),
        ("ttft:p99<5ms;attainment>=99", 25, "a percentage like 99%"),
        ("ttft:p99<5ms;attainment>=0", 25, "above 0"),
        ("ttft:p99<5ms;attainment>=101%", 25, "up to 1"),
        ("ttft:p99<5ms;attainment>=1.2.3", 25, "up to 1"),
        ("ttft:p99<5ms;attainment>=x", 25, "a share, like 0.99"),
        ("ttft:p99<5ms;attainment<=0.9", 23, "`>=`"),
        ("ttft:p99<5ms;attainment>=.9", 25, "a share, like 0.99"),
        ("ttft:p99<5ms;attainment>=0.9;attainment>=0.8", 29, "stands twice"),
        ("qualify:ttft:p99<5ms", 12, "`<` with a limit"),
        ("attainment>=0.9", 0, "at least one clause"),
        ("", 0, "at least one clause"),
        (" ; ", 0, "at least one clause"),
    ],
)
def test_a_caret_stands_under_the_first_character_that_is_wrong(text, caret, words):
    with pytest.raises(SpecError) as caught:
        parse_slo(text)
    lines = str(caught.value).splitlines()
    assert words in lines[0]
    assert lines[1] == "  " + text
    assert lines[2] == "  " + " " * caret + "^"


@settings(deadline=None)
@given(st.text(alphabet="tfi:;p9<>=5ms. %qatx-\n٣", max_size=25))
def test_any_text_is_an_slo_or_a_clear_error(text):
    try:
        read = parse_slo(text).attainment
    except SpecError as error:
        read = str(error)
    assert "^" in read if isinstance(read, str) else 0 < read <= 1


def test_waiting_is_bounded_by_first_tokens_or_whole_answers_only():
    assert parse_slo("ttft:p50<1s").bounds_waiting
    assert parse_slo("e2el:p50<1s").bounds_waiting
    assert not parse_slo("itl:p99<50ms;qualify:ttft<1s").bounds_waiting


def test_goodput_of_vllm_is_read_as_limits_of_a_request():
    for text in ("ttft:500 tpot:50", "ttft:500,tpot:50"):
        slo = parse_slo(slo_from_goodput(text))
        assert (slo.ttft_ns, slo.mean_gap_ns, slo.attainment) == (500 * MS, 50 * MS, 0.99)


@pytest.mark.parametrize("text", ["", "ttft", "ttft:x", "ttft:0", "ttft:-5", "itl5:3", "ttft:5 ttft:6", "ttft:1e3"])
def test_goodput_that_cannot_be_read_is_refused(text):
    with pytest.raises(SpecError, match="goodput"):
        slo_from_goodput(text)
