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

Row = tuple[float, object, object]
GOLDEN = Path(__file__).parents[1] / "golden"
ROOT = Path(__file__).parents[2]


class Sample(NamedTuple):
    """Made-up files, and how rows of (seconds, prompt, output) are written in the format."""

    golden: tuple[str, ...]
    text: Callable[[list[Row]], str]
    place: Callable[[int], str]  # what a refusal calls the n-th row, from 0
    laws: frozenset[str] = frozenset({"rows", "clock", "ordered"})


def _lines(header: str, row: Callable[[float, object, object], str]) -> Callable[[list[Row]], str]:
    return lambda rows: header + "".join(row(*one) + "\n" for one in rows)


def _line(first: int) -> Callable[[int], str]:
    return lambda n: f"line {n + first}"


def _ids(prompt: object, per: int) -> list[int]:
    return list(range(-(-prompt // per))) if isinstance(prompt, int) and prompt < 10**6 else [0]


def _hashed(scale: int, per: int) -> Callable[[float, object, object], str]:
    def row(at_s: float, prompt: object, output: object) -> str:
        return json.dumps(
            {"timestamp": round(at_s * scale), "input_length": prompt, "output_length": output,
             "hash_ids": _ids(prompt, per)}
        )  # fmt: skip

    return row


def _timed(unit_s: float) -> Callable[[float, object, object], str]:
    def row(at_s: float, prompt: object, output: object) -> str:
        return json.dumps({"timestamp": at_s / unit_s, "input_length": prompt, "output_length": output})

    return row


def _lengths(at_s: float, prompt: object, output: object) -> str:
    return json.dumps({"input_toks": prompt, "output_toks": output, "arrival_time_ns": round(at_s * 1e9)})


def _bailian(at_s: float, prompt: object, output: object) -> str:
    return json.dumps(
        {"chat_id": round(at_s * 1000), "parent_chat_id": -1, "timestamp": at_s, "input_length": prompt,
         "output_length": output, "type": "text", "turn": 1, "hash_ids": _ids(prompt, 16)}
    )  # fmt: skip


def _weka(rows: list[Row]) -> str:
    requests = [
        {"t": at_s, "type": "n", "in": prompt, "out": output, "hash_ids": [], "api_time": 0.1}
        for at_s, prompt, output in rows
    ]
    return json.dumps({"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": requests}, indent=1)


def _otel(rows: list[Row]) -> str:
    spans = [
        {"span_id": f"s{n}", "parent_span_id": None, "start_time": f"2030-01-01T00:00:{at_s:09.6f}",
         "end_time": f"2030-01-01T00:00:{at_s + 0.1:09.6f}",
         "attributes": {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.output_tokens": output}}
        for n, (at_s, prompt, output) in enumerate(rows)
    ]  # fmt: skip
    return json.dumps({"trace_id": "t", "spans": spans}, indent=1)


def _dag(at_s: float, prompt: object, output: object) -> str:
    words = "word" * prompt if isinstance(prompt, int) and 0 < prompt < 1000 else prompt
    turn = {"messages": [{"role": "user", "content": words}], "max_tokens": output}
    return json.dumps({"session_id": f"s{at_s}", "turns": [turn]})


SAMPLES = {
    "azure": Sample(
        ("azure_small.csv",),
        _lines(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n",
            lambda at_s, prompt, output: f"2030-01-01 00:00:{at_s:010.7f},{prompt},{output}",
        ),
        _line(2),
    ),
    "mooncake": Sample(("mooncake_small.jsonl",), _lines("", _hashed(1000, 512)), _line(1)),
    "lengths": Sample(("lengths_small.jsonl",), _lines("", _lengths), _line(1)),
    "vidur": Sample(
        ("vidur_small.csv",),
        _lines(
            "arrived_at,num_prefill_tokens,num_decode_tokens\n",
            lambda at_s, prompt, output: f"{at_s},{prompt},{output}",
        ),
        _line(2),
    ),
    "burstgpt": Sample(
        ("burstgpt_small.csv",),
        _lines(
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
            lambda at_s, prompt, output: f"{at_s},ChatGPT,{prompt},{output},0,API log",
        ),
        _line(2),
    ),
    "bailian": Sample(("bailian_small.jsonl",), _lines("", _bailian), _line(1)),
    "weka": Sample(
        ("weka_small.json",), _weka, lambda n: f"request {n + 1}", frozenset({"rows", "ordered", "document"})
    ),
    "otel": Sample(
        ("otel_small.json",), _otel, lambda n: f"span {n + 1}", frozenset({"rows", "clock", "document"})
    ),
    "blis": Sample(
        ("blis_small.yaml", "blis_small.csv"),
        _lines(
            "request_id,input_tokens,output_tokens,arrival_time_us,status\n",
            lambda at_s, prompt, output: f"0,{prompt},{output},{round(at_s * 1e6)},ok",
        ),
        _line(2),
        frozenset({"rows", "clock"}),
    ),
    "aiperf-dag": Sample(("aiperf_dag_small.jsonl",), _lines("", _dag), _line(1), frozenset()),
    "vllm-timed": Sample(("vllm_timed_small.jsonl",), _lines("", _timed(1)), _line(1)),
    "aiperf-mooncake": Sample(("aiperf_mooncake_small.jsonl",), _lines("", _timed(0.001)), _line(1)),
    "guidellm": Sample(("guidellm_small.jsonl",), _lines("", _timed(1)), _line(1)),
}


def _file(folder: Path, name: str, rows: list[Row]) -> Path:
    path = folder / f"{name}.txt"
    path.write_text(SAMPLES[name].text(rows))
    return path


def _golden(name: str) -> list[Path]:
    return [GOLDEN / file for file in SAMPLES[name].golden]


def _as_golden(trace: Trace) -> dict[str, object]:
    return {
        "columns": {name: getattr(trace, name).tolist() for name in COLUMNS},
        "after": [trace.after.row(r).tolist() for r in range(len(trace))],
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


def _having(law: str) -> pytest.MarkDecorator:
    """For the formats of which the law can be asked."""
    return pytest.mark.parametrize("name", sorted(n for n, sample in SAMPLES.items() if law in sample.laws))


def test_golden_file_gives_golden_columns(name: str) -> None:
    stem = name.replace("-", "_")
    expected = json.loads((GOLDEN / f"{stem}_small.golden.json").read_text())
    assert _as_golden(reader(name)(_golden(name))) == expected


def test_same_bytes_in_another_folder_and_under_another_name_give_the_same_hash(name: str, tmp_path: Path) -> None:
    sources = _golden(name)
    moved = [tmp_path / "elsewhere" / f"other{n}.name" for n in range(len(sources))]
    moved[0].parent.mkdir()
    for there, source in zip(moved, sources, strict=True):
        there.write_bytes(source.read_bytes())
    assert trace_hash(reader(name)(moved)) == trace_hash(reader(name)(sources))


def test_import_save_load_keeps_columns_meta_and_hash(name: str, tmp_path: Path) -> None:
    trace = reader(name)(_golden(name))
    save_trace(trace, tmp_path / "t.parquet")
    loaded = load_trace(tmp_path / "t.parquet")
    assert _as_golden(loaded) == _as_golden(trace)
    assert loaded.meta == trace.meta


def test_line_ends_and_a_missing_last_one_do_not_matter(name: str, tmp_path: Path) -> None:
    *others, last = _golden(name)
    lines = last.read_text().splitlines()
    hashes = set()
    for index, end in enumerate(("\n", "\r\n")):
        for tail in ("", end, end + end):
            path = tmp_path / f"{index}{len(tail)}"
            path.write_bytes((end.join(lines) + tail).encode())
            hashes.add(trace_hash(reader(name)([*others, path])))
    assert len(hashes) == 1


@_having("clock")
def test_files_continue_one_another_and_times_count_from_the_first_row(name: str, tmp_path: Path) -> None:
    rows: list[Row] = [(1.0, 10, 2), (2.0, 20, 3), (4.5, 30, 4)]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    trace = reader(name)([_file(tmp_path / "a", name, rows[:2]), _file(tmp_path / "b", name, rows[2:])])
    assert trace.arrival_ns.tolist() == [0, 10**9, 3_500_000_000]
    assert trace.num_prompt_tokens.tolist() == [10, 20, 30]
    assert trace_hash(trace) == trace_hash(reader(name)([_file(tmp_path, name, rows)]))


@_having("rows")
def test_failures_are_left_out_counted_and_listed(name: str, tmp_path: Path) -> None:
    rows: list[Row] = [(1.0, 10, 0), (2.0, 20, 3), (3.0, 5, 0), (4.0, 5, 0), (5.0, 7, 1)]
    path = _file(tmp_path, name, rows)
    trace = reader(name)([path])
    unit, first = SAMPLES[name].place(0).split()
    first = int(first)
    assert trace.num_prompt_tokens.tolist() == [20, 7]
    assert trace.arrival_ns.tolist() == [10**9, 4 * 10**9]  # the first row of the file is the origin all the same
    listed = f"3 rows with 0 output tokens left out, as recorded failures: {unit}s {first}, {first + 2}-{first + 3}"
    assert any(listed in note for note in trace.meta.notes)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ((2.0, -20, 3), "-20 prompt"),
        ((2.0, 20, -3), "-3 output"),
        ((2.0, 0, 3), "0 prompt"),
        ((2.0, 3.5, 3), "3.5"),
        ((2.0, "x", 3), "'x'"),
        ((2.0, 10**30, 3), "whole number"),
        ((2.0, 20, "1e3"), "1e3"),
    ],
)
@_having("rows")
def test_bad_row_is_refused_with_file_line_and_reason(name: str, tmp_path: Path, bad: Row, reason: str) -> None:
    if name == "mooncake" and bad[1] == 10**30:
        bad = (2.0, 600, 10**30)
    path = _file(tmp_path, name, [(1.0, 10, 2), bad, (3.0, 10, 2)])
    with pytest.raises(TraceError) as caught:
        reader(name)([path])
    assert f"{path}, {SAMPLES[name].place(1)}: " in str(caught.value)
    assert reason in str(caught.value)


@_having("ordered")
def test_a_row_before_the_one_in_front_of_it_is_refused_not_moved(name: str, tmp_path: Path) -> None:
    path = _file(tmp_path, name, [(1.0, 10, 2), (0.5, 20, 3), (3.0, 10, 2)])
    with pytest.raises(TraceError) as caught:
        reader(name)([path])
    assert f"{path}, {SAMPLES[name].place(1)}: " in str(caught.value)
    assert "before the r" in str(caught.value)


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
    with pytest.raises(TraceError, match="this is a folder, and a trace file of another tool is needed; name the"):
        reader(name)([tmp_path])
    with pytest.raises(TraceError, match="not a regular file"):
        reader(name)([Path("/dev/zero")])
    with pytest.raises(TraceError, match="no file named"):
        reader(name)([])


def test_only_failures_is_no_trace(name: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request in it"):
        reader(name)([_file(tmp_path, name, [(1.0, 10, 0)])])


def test_an_empty_line_inside_is_refused(name: str, tmp_path: Path) -> None:
    if "document" in SAMPLES[name].laws:
        return  # one document over many lines
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
    *others, last = _golden(name)
    whole = last.read_bytes()
    path = tmp_path / "damaged"
    path.write_bytes((whole[:place] + noise + whole[place + len(noise) :])[:cut])
    try:
        trace = reader(name)([*others, path])
    except TraceError:
        return
    validate(trace)


def test_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(
        SpecError, match=r"'azur' does not exist; did you mean 'azure'\? known: aiperf-dag, aiperf-mooncake, azure"
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
