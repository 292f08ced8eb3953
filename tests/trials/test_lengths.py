"""Lists of lengths: JSONL or CSV, two sets of names, with or without arrivals."""

from pathlib import Path

import pytest

from trials.fingerprint import trace_hash
from trials.formats.lengths import read
from trials.trace import Trace, TraceError


def _read(folder: Path, text: str) -> Trace:
    path = folder / "lengths.txt"
    path.write_text(text)
    return read([path])


def test_both_kinds_and_both_sets_of_names_give_the_same_trace(tmp_path: Path) -> None:
    texts = [
        '{"input_toks": 5, "output_toks": 2, "arrival_time_ns": 7}\n'
        '{"input_toks": 6, "output_toks": 3, "arrival_time_ns": 9}\n',
        '{"num_prompt_tokens": 5, "num_output_tokens": 2, "arrival_ns": 7}\n'
        '{"num_prompt_tokens": 6, "num_output_tokens": 3, "arrival_ns": 9}\n',
        "arrival_time_ns,input_toks,output_toks\r\n7,5,2\r\n9,6,3",
        '"num_output_tokens","num_prompt_tokens","arrival_ns"\n2,5,7\n"3",6,9\n',
    ]
    hashes = {trace_hash(_read(tmp_path, text)) for text in texts}
    assert len(hashes) == 1
    assert _read(tmp_path, texts[0]).arrival_ns.tolist() == [0, 2]


@pytest.mark.parametrize(
    "text", ['{"input_toks": 5, "output_toks": 2}\n' * 3, "num_prompt_tokens,num_output_tokens\n" + "5,2\n" * 3]
)
def test_without_arrivals_all_rows_come_at_0_and_that_is_told(tmp_path: Path, text: str) -> None:
    trace = _read(tmp_path, text)
    assert trace.arrival_ns.tolist() == [0, 0, 0]
    assert trace.meta.synthetic == ("arrival_ns",)
    assert "only a closed load (concurrency) fits" in " ".join(trace.meta.notes)


def test_arrivals_in_some_rows_only_are_refused(tmp_path: Path) -> None:
    rows = '{"input_toks": 5, "output_toks": 2}\n{"input_toks": 5, "output_toks": 2, "arrival_ns": 3}\n'
    with pytest.raises(TraceError, match="line 2: some rows have an arrival and some have none"):
        _read(tmp_path, rows)


def test_other_columns_are_not_read_and_told(tmp_path: Path) -> None:
    trace = _read(tmp_path, "num_prompt_tokens,model,num_output_tokens\n5,x,2\n")
    assert "lengths.txt: not read: model" in trace.meta.notes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b\n1,2\n", "line 1: input_toks or num_prompt_tokens is needed; found a, b"),
        ('{"input_toks": 5}\n', "line 1: output_toks or num_output_tokens is needed; found input_toks"),
        ('{"input_toks": 5, "num_prompt_tokens": 5, "output_toks": 1}\n', "both give the prompt; take one out"),
        ("input_toks,input_toks,output_toks\n1,1,1\n", "line 1: a column name stands twice"),
        ("input_toks,output_toks\n5,2\n5\n", "line 3: 1 columns instead of 2"),
        ("input_toks,output_toks\n5,2\n5,\n", "line 3: output_toks is ''"),
        ('input_toks,output_toks\n5,"2\n', "not CSV|whole number"),
        ("input_toks,output_toks\n", "no request in it"),
        ('{"input_toks": 5, "output_toks": 2}\n5,2\n', "line 2: not a JSON object|line 2: a JSON object is needed"),
        ('{"input_toks": 5, "output_toks": 2, "arrival_ns": 5}\n' * 2 + '{"input_toks": 5, "output_toks": 2, '
         '"arrival_ns": 4}\n', "line 3: arrives 1 ns before"),
        ('{"input_toks": 1, "output_toks": 2, "arrival_ns": 0}\n{"input_toks": 5, "output_toks": 2, '
         '"arrival_ns": 900000000000000000}\n{"input_toks": 5, "output_toks": 2, "arrival_ns": '
         '999999999999999999999}\n', "line 3: arrival_ns is"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_by_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        _read(tmp_path, text)


def test_ns_since_1970_keep_their_last_digit(tmp_path: Path) -> None:
    text = "input_toks,output_toks,arrival_ns\n1,2,1700158546680590001\n1,2,1700158546680590003\n"
    assert _read(tmp_path, text).arrival_ns.tolist() == [0, 2]


def test_a_length_beyond_reason_is_refused_by_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 2: a length of more than 2147483648 tokens"):
        _read(tmp_path, "input_toks,output_toks\n1,9999999999\n")
