"""One suite over all trace formats: what is read is exact, and what cannot be read is refused by file and line."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trials.fingerprint import trace_hash
from trials.formats import FORMATS, reader
from trials.trace import COLUMNS, Trace, TraceError, load_trace, save_trace, validate
from trials.units import SpecError

GOLDEN = Path(__file__).parents[1] / "golden"
ROOT = Path(__file__).parents[2]


class Sample(NamedTuple):
    """A made-up file, and how a row of (seconds, prompt, output) is written in it."""

    golden: str
    header: str
    row: Callable[[float, object, object], str]


def _mooncake(at_s: float, prompt: object, output: object) -> str:
    ids = list(range(-(-prompt // 512))) if isinstance(prompt, int) else [0]
    return json.dumps(
        {"timestamp": round(at_s * 1000), "input_length": prompt, "output_length": output, "hash_ids": ids}
    )


def _lengths(at_s: float, prompt: object, output: object) -> str:
    return json.dumps({"input_toks": prompt, "output_toks": output, "arrival_time_ns": round(at_s * 1e9)})


SAMPLES = {
    "azure": Sample(
        "azure_small.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        lambda at_s, prompt, output: f"2030-01-01 00:00:{at_s:010.7f},{prompt},{output}",
    ),
    "mooncake": Sample("mooncake_small.jsonl", "", _mooncake),
    "lengths": Sample("lengths_small.jsonl", "", _lengths),
}


def _file(folder: Path, name: str, rows: list[tuple[float, object, object]]) -> Path:
    sample = SAMPLES[name]
    path = folder / f"{name}.txt"
    path.write_text(sample.header + "".join(sample.row(*row) + "\n" for row in rows))
    return path


def _as_golden(trace: Trace) -> dict[str, object]:
    return {
        "columns": {name: getattr(trace, name).tolist() for name in COLUMNS},
        "prefix_ids": [trace.prefix_ids.row(r).tolist() for r in range(len(trace))],
        "tokens_per_id": trace.meta.tokens_per_id,
        "tail_rule": trace.meta.tail_rule,
        "synthetic": list(trace.meta.synthetic),
        "notes": list(trace.meta.notes),
        "hash": trace_hash(trace),
    }


def test_every_format_has_a_sample() -> None:
    assert set(SAMPLES) == set(FORMATS)


@pytest.fixture(params=sorted(FORMATS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_golden_file_gives_golden_columns(name: str) -> None:
    source = GOLDEN / SAMPLES[name].golden
    expected = json.loads(source.with_suffix(".json").read_text())
    assert _as_golden(reader(name)([source])) == expected


def test_same_bytes_in_another_folder_and_under_another_name_give_the_same_hash(name: str, tmp_path: Path) -> None:
    source = GOLDEN / SAMPLES[name].golden
    moved = tmp_path / "elsewhere" / "other.name"
    moved.parent.mkdir()
    moved.write_bytes(source.read_bytes())
    assert trace_hash(reader(name)([moved])) == trace_hash(reader(name)([source]))


def test_import_save_load_keeps_columns_meta_and_hash(name: str, tmp_path: Path) -> None:
    trace = reader(name)([GOLDEN / SAMPLES[name].golden])
    save_trace(trace, tmp_path / "t.parquet")
    loaded = load_trace(tmp_path / "t.parquet")
    assert _as_golden(loaded) == _as_golden(trace)
    assert loaded.meta == trace.meta


def test_line_ends_and_a_missing_last_one_do_not_matter(name: str, tmp_path: Path) -> None:
    text = (GOLDEN / SAMPLES[name].golden).read_text()
    lines = text.splitlines()
    hashes = set()
    for index, end in enumerate(("\n", "\r\n")):
        for tail in ("", end, end + end):
            path = tmp_path / f"{index}{len(tail)}"
            path.write_bytes((end.join(lines) + tail).encode())
            hashes.add(trace_hash(reader(name)([path])))
    assert len(hashes) == 1


def test_files_continue_one_another_and_times_count_from_the_first_row(name: str, tmp_path: Path) -> None:
    rows: list[tuple[float, object, object]] = [(1.0, 10, 2), (2.0, 20, 3), (4.5, 30, 4)]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    trace = reader(name)([_file(tmp_path / "a", name, rows[:2]), _file(tmp_path / "b", name, rows[2:])])
    assert trace.arrival_ns.tolist() == [0, 10**9, 3_500_000_000]
    assert trace.num_prompt_tokens.tolist() == [10, 20, 30]
    assert trace_hash(trace) == trace_hash(reader(name)([_file(tmp_path, name, rows)]))


def test_failures_are_left_out_counted_and_listed(name: str, tmp_path: Path) -> None:
    rows: list[tuple[float, object, object]] = [(1.0, 10, 0), (2.0, 20, 3), (3.0, 5, 0), (4.0, 5, 0), (5.0, 7, 1)]
    path = _file(tmp_path, name, rows)
    trace = reader(name)([path])
    first = 2 if SAMPLES[name].header else 1
    assert trace.num_prompt_tokens.tolist() == [20, 7]
    assert trace.arrival_ns.tolist() == [10**9, 4 * 10**9]  # the first row of the file is the origin all the same
    listed = f"3 rows with 0 output tokens left out, as recorded failures: lines {first}, {first + 2}-{first + 3}"
    assert any(listed in note for note in trace.meta.notes)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ((2.0, -20, 3), "-20 prompt"),
        ((2.0, 20, -3), "-3 output"),
        ((2.0, 0, 3), "0 prompt"),
        ((0.5, 20, 3), "arrives 500000000 ns before the row in front of it"),
        ((2.0, 3.5, 3), "3.5"),
        ((2.0, "x", 3), "'x'"),
        ((2.0, 10**30, 3), "whole number"),
        ((2.0, 20, "1e3"), "1e3"),
    ],
)
def test_bad_row_is_refused_with_file_line_and_reason(
    name: str, tmp_path: Path, bad: tuple[float, object, object], reason: str
) -> None:
    if name == "mooncake" and bad[1] == 10**30:
        bad = (2.0, 600, 10**30)
    path = _file(tmp_path, name, [(1.0, 10, 2), bad, (3.0, 10, 2)])
    with pytest.raises(TraceError) as caught:
        reader(name)([path])
    line = 3 if SAMPLES[name].header else 2
    assert f"{path}, line {line}: " in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\r\n \n", "empty"),
        (b"PAR1\x00\x00\x15\x04", "binary"),
        (b"\x1f\x8b\x08\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "line 1"),
        (b'{"a": 1', "line 1"),
        (b"a,b\n1,2\n", "line"),
        (b"9" * 10_000, "line 1"),
    ],
)
def test_what_is_no_such_file_is_refused(name: str, tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=reason) as caught:
        reader(name)([path])
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1_000


def test_absent_file_folder_and_device_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        reader(name)([tmp_path / "absent"])
    with pytest.raises(TraceError, match="not a regular file"):
        reader(name)([tmp_path])
    with pytest.raises(TraceError, match="not a regular file"):
        reader(name)([Path("/dev/zero")])
    with pytest.raises(TraceError, match="no file named"):
        reader(name)([])


def test_only_failures_is_no_trace(name: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request in it"):
        reader(name)([_file(tmp_path, name, [(1.0, 10, 0)])])


def test_an_empty_line_inside_is_refused(name: str, tmp_path: Path) -> None:
    path = _file(tmp_path, name, [(1.0, 10, 2), (2.0, 10, 2)])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], "", lines[-1]]))
    with pytest.raises(TraceError, match=f"line {len(lines)}"):
        reader(name)([path])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, 400), place=st.integers(0, 400), noise=st.binary(max_size=6))
def test_damage_is_refused_or_leaves_a_valid_trace(
    name: str, tmp_path: Path, cut: int, place: int, noise: bytes
) -> None:
    """A cut may fall on a row's end, and another digit is a digit: no reader sees those. Nothing else passes."""
    whole = (GOLDEN / SAMPLES[name].golden).read_bytes()
    path = tmp_path / "damaged"
    path.write_bytes((whole[:place] + noise + whole[place + len(noise) :])[:cut])
    try:
        trace = reader(name)([path])
    except TraceError:
        return
    validate(trace)


def test_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(
        SpecError, match=r"'azur' does not exist; did you mean 'azure'\? known: azure, lengths, moon"
    ):
        reader("azur")


def test_listing_formats_imports_no_reader() -> None:
    code = "import sys, trials.formats; print([m for m in sys.modules if m.startswith('trials.formats.')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_real_traces_have_the_rows_that_their_publishers_count(real_traces: Path) -> None:
    expected = {
        ("azure", "azure2023/AzureLLMInferenceTrace_conv.csv"): 19_366,
        ("azure", "azure2023/AzureLLMInferenceTrace_code.csv"): 8_819,
        ("mooncake", "mooncake/conversation_head5000.jsonl"): 5_000,
        ("lengths", "sharegpt_lengths/qwen3_32b_300.jsonl"): 300,
    }
    for (kind, file), rows in expected.items():
        trace = reader(kind)([real_traces / file])
        assert len(trace) == rows
        assert not any("left out" in note for note in trace.meta.notes)


def test_real_stamps_are_whole_ticks_of_100_ns(real_traces: Path) -> None:
    path = real_traces / "azure2023/AzureLLMInferenceTrace_conv.csv"
    trace = reader("azure")([path])
    fractions = [line.split(b",")[0][-7:] for line in path.read_bytes().splitlines()[1:]]
    ticks = trace.arrival_ns // 100
    assert (trace.arrival_ns % 100 == 0).all()
    assert [f"{(int(t) + int(fractions[0])) % 10**7:07d}".encode() for t in ticks] == fractions
    assert len(np.unique(trace.arrival_ns)) == len(trace)


def test_real_mooncake_rows_keep_their_chains(real_traces: Path) -> None:
    path = real_traces / "mooncake/conversation_head5000.jsonl"
    trace = reader("mooncake")([path])
    assert (trace.prefix_ids.lengths == -(-trace.num_prompt_tokens // 512)).all()
    for row, line in enumerate(path.read_text().splitlines()[:200]):
        assert trace.prefix_ids.row(row).tolist() == json.loads(line)["hash_ids"]
    parents: dict[int, int] = {}
    for row in range(len(trace)):
        before = -1
        for key in trace.prefix_ids.row(row).tolist():
            assert parents.setdefault(key, before) == before
            before = key
