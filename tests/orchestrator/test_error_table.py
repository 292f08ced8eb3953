"""Every error path of the command line is provoked: its exit code, its words, and nothing half written."""

import re
from pathlib import Path

import pytest

from tests.error_table import CASES, PAGE, Case, answer, page, prepare

_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}")  # what a file is called until it is whole


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("errors").resolve()
    prepare(made)
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}: {case.typed}")
def test_an_error_has_its_exit_code_and_says_what_to_do(case: Case, folder: Path) -> None:
    code, said = answer(case, folder)
    assert (code, case.says in said) == (case.exit_code, True), said
    assert not [path for path in folder.rglob(".*") if _TEMPORARY.fullmatch(path.name)]
    assert not (folder / "new.parquet").exists()


def test_the_page_of_errors_is_what_the_command_line_says(folder: Path) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(folder), "write it anew: python -m tests.error_table"
