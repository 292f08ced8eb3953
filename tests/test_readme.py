"""The documents tell the truth: their console blocks run, verbs exist, files are there, the tree is the disk."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from readme_tree import ROOT, tracked, written
from typer.testing import CliRunner

from orchestrator.cli import app

DOCUMENTS = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"(?:<!-- not run here: (?P<why>[^>]+?) -->\n)?```console\n(?P<text>.*?)```", re.DOTALL)
_KVKNEE = [sys.executable, "-m", "orchestrator.cli"]


@dataclass(frozen=True)
class Block:
    document: str
    commands: tuple[str, ...]
    why_not: str | None


def _blocks() -> list[Block]:
    found = []
    for document in DOCUMENTS:
        for block in _BLOCK.finditer((ROOT / document).read_text(encoding="utf-8")):
            commands = tuple(line[2:] for line in block["text"].splitlines() if line.startswith("$ "))
            found.append(Block(document, commands, block["why"]))
    return found


def _text(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a checkout, in which commands may write."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("*.parquet"))
    return folder


@pytest.mark.parametrize("block", [b for b in _blocks() if b.why_not is None], ids=lambda b: b.document)
def test_a_console_block_without_an_excuse_runs(block: Block, checkout: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for command in block.commands:
        program, *arguments = command.split()
        assert program == "kvknee", f"{command}: only kvknee can be run here; say why not above the block"
        done = subprocess.run(
            [*_KVKNEE, *arguments], cwd=checkout, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_every_console_block_shows_a_command_and_every_excuse_a_reason() -> None:
    for block in _blocks():
        assert block.commands, f"{block.document}: a console block without a command"
        assert block.why_not is None or len(block.why_not.split()) > 3


def _verbs() -> set[tuple[str, ...]]:
    """`kvknee VERB` and `kvknee trace VERB` wherever a document shows one."""
    shown = set()
    for document in DOCUMENTS:
        if document == "docs/errors.md":
            continue  # there, a verb that does not exist is the point
        for words in re.findall(r"kvknee ((?:trace )?[a-z]+)", "\n".join(_code(_text(document)))):
            shown.add(tuple(words.split()))
    return shown


def _code(text: str) -> list[str]:
    """Lines of console blocks that are commands, and what stands between backticks."""
    return [c for b in _BLOCK.finditer(text) for c in b["text"].splitlines() if c.startswith("$ ")] + re.findall(
        r"`(kvknee [^`]+)`", text
    )


@pytest.mark.parametrize("verb", sorted(_verbs()), ids=" ".join)
def test_every_verb_that_is_shown_exists_and_has_help_with_an_example(verb: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*verb, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 0, done.output
    assert verb == ("trace",) or "Example" in done.output  # `trace` is a group of verbs


def test_every_file_that_a_document_names_is_there() -> None:
    known = set(tracked())
    for document in DOCUMENTS:
        named = re.findall(r"\b(?:benchmarks|tests|examples|docs|orchestrator|trials|search_spaces)/[\w/.]+\.\w+", _text(document))  # noqa: E501  # fmt: skip
        made_here = {
            "examples/chat.parquet", "examples/azure_conv.parquet", "examples/vllm_cpu.parquet",
            "tests/PACKAGE/test_X.py",
        }  # fmt: skip
        missing = {n for n in named if n not in made_here and n not in known and not (ROOT / n).is_file()}
        assert not missing, f"{document} names {missing}"


def test_every_link_of_a_document_leads_to_a_file() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", _text(document)):
            if not target.startswith("http"):
                assert ((ROOT / document).parent / target).is_file(), f"{document} links to {target}"


def test_make_knows_every_target_that_is_shown() -> None:
    targets = set(re.findall(r"^([a-z-]+):", _text("Makefile"), re.MULTILINE))
    for document in DOCUMENTS:
        assert set(re.findall(r"`?\bmake ([a-z-]+)`", _text(document))) <= targets


def test_the_tree_in_the_readme_is_the_disk() -> None:
    readme = _text("README.md")
    assert readme == written(readme), "run: .venv/bin/python tests/readme_tree.py"
