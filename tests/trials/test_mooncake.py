"""Mooncake rows: 512 tokens an id, rounded up, ids kept as they are."""

import json
from pathlib import Path

import pytest

from trials.formats.mooncake import read
from trials.trace import Trace, TraceError


def _read(folder: Path, *rows: object) -> Trace:
    path = folder / "m.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read([path])


def _row(prompt: int = 600, ids: object = (0, 7), **changes: object) -> dict[str, object]:
    return {"timestamp": 0, "input_length": prompt, "output_length": 4, "hash_ids": ids, **changes}


@pytest.mark.parametrize(("prompt", "num_ids"), [(1, 1), (511, 1), (512, 1), (513, 2), (1024, 2), (1025, 3)])
def test_a_prompt_has_one_id_a_512_tokens_rounded_up(tmp_path: Path, prompt: int, num_ids: int) -> None:
    trace = _read(tmp_path, _row(prompt, list(range(num_ids))))
    assert trace.prefix_ids.row(0).tolist() == list(range(num_ids))
    assert (trace.meta.tokens_per_id, trace.meta.tail_rule) == (512, "ceil")
    for wrong in (num_ids - 1, num_ids + 1):
        told = f"{wrong} hash_ids for {prompt} input tokens: at 512 tokens an id there must be {num_ids}"
        with pytest.raises(TraceError, match=told):
            _read(tmp_path, _row(prompt, list(range(wrong))))


@pytest.mark.parametrize("ids", [None, "01", [0, -1], [0, 1.5], [0, True], [0, "1"], [0, 2**70], {"0": 1}])
def test_ids_are_whole_numbers_from_0(tmp_path: Path, ids: object) -> None:
    with pytest.raises(TraceError, match=r"line 1: hash_ids is .*a list of whole numbers from 0 is needed"):
        _read(tmp_path, _row(600, ids))


def test_milliseconds_become_nanoseconds(tmp_path: Path) -> None:
    trace = _read(tmp_path, _row(timestamp=27_482), _row(timestamp=30_535))
    assert trace.arrival_ns.tolist() == [0, 3_053_000_000]


@pytest.mark.parametrize("stamp", [0.5, "0", None, True, 10**20, float("nan")])
def test_a_stamp_is_whole_milliseconds(tmp_path: Path, stamp: object) -> None:
    if stamp == "0":
        assert _read(tmp_path, _row(timestamp=stamp)).arrival_ns.tolist() == [0]
        return
    with pytest.raises(TraceError, match="line 1: timestamp is "):
        _read(tmp_path, _row(timestamp=stamp))


def test_a_missing_key_is_named_with_those_of_a_row(tmp_path: Path) -> None:
    row = _row()
    del row["hash_ids"]
    with pytest.raises(TraceError, match="line 1: hash_ids missing; a row has timestamp, input_length"):
        _read(tmp_path, row)


def test_keys_that_are_not_read_are_told(tmp_path: Path) -> None:
    trace = _read(tmp_path, _row(session_id="s", type="x"), _row(type="y"))
    assert "m.jsonl: not read: session_id, type" in trace.meta.notes


def test_rows_on_few_stamps_are_told_with_the_remedy(tmp_path: Path) -> None:
    trace = _read(tmp_path, *[_row(timestamp=3000 * (n // 4)) for n in range(12)])
    assert trace.meta.notes == (
        "arrivals are quantised: 12 rows on 3 stamps, 3 s apart (median); `--spread 3s --seed S` spreads them",
    )


def test_a_file_of_another_block_size_is_refused_not_misread(tmp_path: Path) -> None:
    """A row with 16-token ids and the same keys: 33 tokens, 3 ids."""
    with pytest.raises(TraceError, match="do the hashes have another block size"):
        _read(tmp_path, _row(33, [4, 5, 6]))


def test_stamps_in_another_unit_show_as_a_trace_of_lifetimes(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match="line 2: arrives over 70 years after the first row; are the stamps in anoth"
    ):
        _read(tmp_path, _row(), _row(timestamp=10**14))
