"""Who may know whom: imports run orchestrator -> search_spaces -> trials and never back."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("trials", "search_spaces", "orchestrator")
HEAVY = {"ray", "optuna", "mlflow", "torch", "transformers", "vllm", "pandas", "matplotlib", "bokeh", "numba"}
HOMES = {
    "optuna": {
        "search_spaces/space.py",
        *(f"orchestrator/{room}.py" for room in ("study", "history", "journal", "samplers")),
    },
    "ray": {f"orchestrator/ray_{room}.py" for room in ("slots", "crew", "places", "content", "session")},
    "mlflow": {
        f"orchestrator/tracking_{room}.py"
        for room in ("check", "content", "recipe", "registry", "rows", "runs", "send")
    },
    "pandas": {"orchestrator/frames.py", "orchestrator/frames_gaps.py", "orchestrator/frames_load.py"},
    "matplotlib": {"orchestrator/plots.py"},
    "bokeh": {"orchestrator/plots_live.py"},
}
PURE = {"pydantic", "pydantic_core", "yaml", "numpy", "pyarrow"}
FORBIDDEN_NAMES = {"utils", "common", "helpers", "base", "manager"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> set[str]:
    """Top-level names of everything that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize(("name", "tree"), list(modules()), ids=lambda v: v if isinstance(v, str) else "")
def test_imports_run_one_way_and_heavy_libraries_live_in_their_homes(name: str, tree: ast.Module) -> None:
    names = imported(tree)
    package = name.split("/")[0]
    if package == "trials":
        assert not names & {"search_spaces", "orchestrator", "ray", "optuna", "mlflow", "pandas", "matplotlib"}
        if not name.startswith("trials/engines/"):
            outside = names - PURE - {"trials"} - set(sys.stdlib_module_names)
            if name != "trials/worker.py":
                assert not outside, f"{name} imports {outside}"
    if package == "search_spaces":
        assert "orchestrator" not in names
    for library, homes in HOMES.items():
        assert library not in names or name in homes, f"{name} imports {library}, which lives in {homes}"
    for library in ("torch", "transformers", "vllm"):
        assert library not in names or name.startswith("trials/engines/") or name == "orchestrator/doctor.py"


def test_no_room_is_called_after_nothing() -> None:
    assert not [n for n, _ in modules() if Path(n).stem in FORBIDDEN_NAMES]


def test_rooms_stay_small() -> None:
    """A module under 350 lines, a function under 60: past that, a concept is missing."""
    long = []
    for name, tree in modules():
        lines = (ROOT / name).read_text(encoding="utf-8").count("\n")
        if lines > 350:
            long.append(f"{name}: {lines} lines")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                size = node.end_lineno - node.lineno + 1
                if size > 60:
                    long.append(f"{name}:{node.lineno} {node.name}: {size} lines")
    assert not long


@pytest.mark.parametrize("module", ["trials.worker", "trials.replay", "search_spaces.knee", "orchestrator.cli"])
def test_heavy_libraries_are_imported_only_when_used(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {HEAVY!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == []


def test_public_functions_have_docstrings_with_words() -> None:
    missing = []
    for name, tree in modules():
        assert ast.get_docstring(tree), f"{name} does not say what it knows"
        classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
        missing += [f"{name}: {node.name}" for node in classes if not ast.get_docstring(node)]
    assert not missing


def test_test_files_have_names_of_their_own() -> None:
    """Tests import one another's builders by file name, so that two of one name cannot be collected together."""
    stems = [path.stem for folder in ("tests", "tests_engines") for path in (ROOT / folder).rglob("*.py")]
    assert not {stem for stem in stems if stems.count(stem) > 1 and stem != "conftest"}
