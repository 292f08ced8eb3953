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
        (["import", "azure", "{golden}", "-o", "{dir}"], "this is a folder, and a file to write is needed"),
        (["import", "azure", "{golden}", "-o", "{notes}"], "exists and is no kvknee trace"),
        (["import", "azure", "{golden}", "-o", "{notes}/t"], "error: "),
        (["import", "azure", "{golden}", "-o", "{out}", "--stagger", "60s"], "it is for weka, aiperf-dag"),
        (["import", "weka", "{weka}", "-o", "{out}", "--stagger", "60"], "--stagger: '60' has no unit"),
        (
            ["import", "weka", "{weka}", "-o", "{out}", "--spread", "3s"],
            "rows that follow other rows cannot be spread",
        ),
        (["overlay", "{golden}", "-o", "{out}", "--cancel-share", "0.1", "--patience", "5s"], "not a whole trace"),
        (["overlay", "{golden}", "-o", "{out}"], "nothing to put on the trace"),
        (["overlay", "{golden}", "-o", "{out}", "--cancel-share", "0.1"], "cancels need after_tokens or patience"),
        (["overlay", "{golden}", "-o", "{out}", "--fork-width", "3"], "forks.share: this key is needed"),
        (["overlay", "{golden}", "-o", "{out}", "--cancel-share", "2", "--patience", "5"], "must be at most 1"),
        (["export", "weka", "{golden}", "-o", "{out}"], "can be read but not written"),
        (["export", "azur", "{golden}", "-o", "{out}"], "did you mean 'azure'?"),
        (["export", "azure", "{golden}", "-o", "{notes}"], "exists; choose another name"),
        (["export", "azure", "{golden}", "-o", "{out}"], "not a whole trace file"),
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
    places = {
        "golden": GOLDEN / "azure_small.csv",
        "weka": GOLDEN / "weka_small.json",
        "dir": tmp_path,
        "notes": notes,
        "out": out,
    }
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


@pytest.mark.parametrize("verb", ["import", "generate", "overlay", "export", "describe"])
def test_help_has_an_example(verb: str) -> None:
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert f"Example: kvknee trace {verb} " in " ".join(result.stdout.split())


def test_sessions_begin_apart_where_they_have_no_common_clock(tmp_path: Path) -> None:
    weka = tmp_path / "other.json"
    weka.write_text((GOLDEN / "weka_small.json").read_text().replace('"out": 9', '"out": 8'))
    sources = [GOLDEN / "weka_small.json", weka]
    hashes = set()
    for seed in (1, 2, 1):
        told = json.loads(run("import", "weka", *sources, "-o", tmp_path / "t", "--stagger", "60s", "--seed", seed,
                              "--json").stdout)  # fmt: skip
        hashes.add(told["trace_hash"])
        assert told["synthetic"] == ["arrival_ns"]
        assert any("2 sessions begin at uniform moments" in note for note in told["notes"])
        assert not any("all beginning at 0" in note for note in told["notes"])
    assert len(hashes) == 2


def test_an_overlay_is_seeded_marked_and_told(tmp_path: Path) -> None:
    run("generate", "bursts", "-o", tmp_path / "b")
    options = ["--cancel-share", 0.25, "--cancel-after-tokens", 20, "--fork-share", 0.5, "--fork-width", 3,
               "--beam-share", 0.2, "--beam-width", 2, "--beam-every", 40]  # fmt: skip
    told = [
        json.loads(run("overlay", tmp_path / "b", "-o", tmp_path / "o", *options, "--seed", seed, "--json").stdout)
        for seed in (1, 1, 2)
    ]
    assert told[0] == told[1]
    assert told[0]["trace_hash"] != told[2]["trace_hash"]
    assert told[2]["rows"] == len(load_trace(tmp_path / "o")) > 116 + 2 * 58
    assert {"cancel_after_tokens", "parent", "starts"} <= set(told[0]["synthetic"])
    assert (
        "note: overlay, seed 1: 58 prompts sampled 3 times, 116 rows more"
        in run("overlay", tmp_path / "b", "-o", tmp_path / "o", *options, "--seed", 1).stderr
    )


def test_an_export_says_what_is_lost_and_whether_the_hash_is_kept(tmp_path: Path) -> None:
    run("import", "mooncake", GOLDEN / "mooncake_small.jsonl", "-o", tmp_path / "m")
    result = run("export", "vllm-timed", tmp_path / "m", "-o", tmp_path / "v.jsonl")
    assert result.exit_code == 0
    assert f"{tmp_path / 'v.jsonl'}: 4 rows" in result.stdout
    assert "importing it gives the same trace hash" in result.stdout
    assert "read it with: --timed-trace-chunk-hash-size 512" in result.stdout
    assert "lost" not in result.stderr
    result = run("export", "azure", tmp_path / "m", "-o", tmp_path / "a.csv", "--json")
    told = json.loads(result.stdout)
    assert told["hash_kept"] is False
    assert told["losses"] == [{"column": "prefix_ids", "reason": "no place for them"}]
    assert result.stderr.splitlines() == ["lost: prefix_ids: no place for them"]
    assert told["rows"] == len((tmp_path / "a.csv").read_text().splitlines()) - 1


def test_real_traces_import_and_describe(real_traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "conv.parquet"
    source = real_traces / "azure2023/AzureLLMInferenceTrace_conv.csv"
    told = json.loads(run("import", "azure", source, "-o", out, "--json").stdout)
    assert told["rows"] == 19_366
    assert "19,366 rows over 3,501.7 s" in run("describe", out).stdout
