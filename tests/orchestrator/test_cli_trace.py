"""`kvknee trace`: results on stdout, words on stderr, exit 2 for bad input, files whole or not at all."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from orchestrator.cli_trace import trace_app
from trials.fingerprint import trace_hash
from trials.trace import load_trace

GOLDEN = Path(__file__).parents[1] / "golden"


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(trace_app, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_import_writes_the_trace_and_tells_rows_span_hash_and_notes(tmp_path: Path) -> None:
    out = tmp_path / "new" / "azure.parquet"
    result = run("import", "azure", GOLDEN / "azure_small.csv", "-o", out)
    assert result.exit_code == 0
    trace = load_trace(out)
    assert f"{out}: 4 rows over 12.3 s" in result.stdout
    assert f"trace hash {trace_hash(trace)}" in result.stdout
    assert (
        "note: azure_small.csv: 1 row with 0 output tokens left out, as recorded failures: line 4" in result.stderr
    )
    assert "note" not in result.stdout


def test_json_is_one_document_on_stdout_and_the_rest_on_stderr(tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    result = run("import", "mooncake", GOLDEN / "mooncake_small.jsonl", "-o", out, "--json")
    told = json.loads(result.stdout)
    assert (told["rows"], told["span_s"], told["trace"]) == (4, 3.0, str(out))
    assert told["trace_hash"] == trace_hash(load_trace(out))
    assert told["notes"] == list(load_trace(out).meta.notes)
    assert "note: arrivals are quantised" in result.stderr
    described = json.loads(run("describe", out, "--json").stdout)
    assert described["trace_hash"] == told["trace_hash"]
    assert described["sharing"]["tokens_per_id"] == 512
    drawn = json.loads(run("generate", "bursts", "-o", tmp_path / "g.parquet", "--json").stdout)
    assert drawn["rows"] == 116


def test_spread_moves_only_arrivals_and_marks_them(tmp_path: Path) -> None:
    source = GOLDEN / "mooncake_small.jsonl"
    hashes = {}
    wide = ["--spread", "3s"]
    for name, options in (("raw", []), ("a", [*wide, "--seed", 1]), ("b", [*wide, "--seed", 2]),
                          ("c", [*wide, "--seed", 1]), ("d", wide)):  # fmt: skip
        assert run("import", "mooncake", source, "-o", tmp_path / name, *options).exit_code == 0
        hashes[name] = trace_hash(load_trace(tmp_path / name))
    assert hashes["a"] == hashes["c"]
    assert len(set(hashes.values())) == 4
    assert load_trace(tmp_path / "a").meta.synthetic == ("arrival_ns",)
    assert load_trace(tmp_path / "raw").meta.synthetic == ()
    assert (
        load_trace(tmp_path / "a").num_prompt_tokens.tolist()
        == load_trace(tmp_path / "raw").num_prompt_tokens.tolist()
    )


def test_several_files_are_one_trace(tmp_path: Path) -> None:
    text = (GOLDEN / "lengths_small.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "a").write_text("".join(text[:1]))
    (tmp_path / "b").write_text("".join(text[1:]))
    run("import", "lengths", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "parts")
    run("import", "lengths", GOLDEN / "lengths_small.jsonl", "-o", tmp_path / "whole")
    assert trace_hash(load_trace(tmp_path / "parts")) == trace_hash(load_trace(tmp_path / "whole"))


def test_generate_takes_a_ready_name_or_a_file_and_a_seed(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nrows: 50\narrivals: {kind: poisson, rps: 2}\n"
        "prompt: {kind: fixed, tokens: 9}\noutput: {kind: uniform, min: 1, max: 5}\n"
    )
    mine = tmp_path / "mine.yaml"
    for name, preset, options in (("a", "chat", []), ("b", mine, []), ("c", "chat", ["--seed", 0]),
                                  ("d", "chat", ["--seed", 1])):  # fmt: skip
        result = run("generate", preset, "-o", tmp_path / name, *options)
        assert result.exit_code == 0, result.stderr
    hashes = [trace_hash(load_trace(tmp_path / name)) for name in "abcd"]
    assert hashes[0] == hashes[2] != hashes[3]
    assert len(load_trace(tmp_path / "b")) == 50


def test_describe_shows_sharing_with_its_granularity(tmp_path: Path) -> None:
    run("import", "mooncake", GOLDEN / "mooncake_small.jsonl", "-o", tmp_path / "m")
    shown = run("describe", tmp_path / "m").stdout
    assert "mooncake_small: 4 rows over 3.0 s" in shown
    assert "at 512-token granularity (a lower bound for smaller blocks)" in shown
    run("import", "azure", GOLDEN / "azure_small.csv", "-o", tmp_path / "a")
    shown = run("describe", tmp_path / "a").stdout
    assert "sharing     unknown: the trace has no prefix ids" in shown
    assert "tail slack" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["import", "azur", "{golden}", "-o", "{out}"], "format 'azur' does not exist; did you mean 'azure'?"),
        (["import", "mooncake", "{golden}", "-o", "{out}"], "azure_small.csv, line 1: not a JSON object"),
        (["import", "azure", "{dir}/absent.csv", "-o", "{out}"], "absent.csv: no such file"),
        (["import", "azure", "{golden}", "-o", "{out}", "--seed", "1"], "--seed has no effect without --spread"),
        (["import", "azure", "{golden}", "-o", "{out}", "--spread", "3"], "--spread: '3' has no unit"),
        (["import", "azure", "{golden}", "-o", "{out}", "--spread", "0s"], "a width and a seed from 0"),
        (["import", "azure", "{golden}", "-o", "{out}", "--spread", "1s", "--seed", "-1"], "a seed from 0"),
        (["import", "azure", "{golden}", "-o", "{notes}"], "exists and is no kvknee trace; choose another name"),
        (["import", "azure", "{golden}", "-o", "{dir}"], "exists and is no kvknee trace"),
        (["import", "azure", "{golden}", "-o", "{notes}/t"], "error: "),
        (["generate", "chatt", "-o", "{out}"], "did you mean 'chat'?"),
        (["generate", "{notes}", "-o", "{out}"], "a mapping of keys is needed"),
        (["describe", "{dir}/absent"], "no such trace; make one with `kvknee trace import`"),
        (["describe", "{golden}"], "not a whole trace file"),
        (["import", "azure", "-o", "{out}"], "FILE"),
        (["import", "azure", "{golden}"], "--out"),
        (["describe"], "TRACE"),
    ],
)
def test_bad_input_ends_with_2_a_message_and_no_file(tmp_path: Path, arguments: list[str], message: str) -> None:
    notes, out = tmp_path / "notes.txt", tmp_path / "out.parquet"
    notes.write_text("my notes\n")
    places = {"golden": GOLDEN / "azure_small.csv", "dir": tmp_path, "notes": notes, "out": out}
    result = run(*[a.format_map(places) for a in arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt"]
    assert notes.read_text() == "my notes\n"


def test_a_trace_of_ours_may_be_written_anew(tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    run("generate", "bursts", "-o", out)
    first = trace_hash(load_trace(out))
    assert run("generate", "bursts", "--seed", "9", "-o", out).exit_code == 0
    assert trace_hash(load_trace(out)) != first


@pytest.mark.parametrize("verb", ["import", "generate", "describe"])
def test_help_has_an_example(verb: str) -> None:
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert f"Example: kvknee trace {verb} " in " ".join(result.stdout.split())


def test_real_traces_import_and_describe(real_traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "conv.parquet"
    source = real_traces / "azure2023/AzureLLMInferenceTrace_conv.csv"
    told = json.loads(run("import", "azure", source, "-o", out, "--json").stdout)
    assert told["rows"] == 19_366
    assert "19,366 rows over 3,501.7 s" in run("describe", out).stdout
