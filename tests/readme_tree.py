"""The tree in README.md, made from the files themselves: `python tests/readme_tree.py` writes it anew.

The word beside a file is its own first sentence (a module's docstring, a YAML's first comment), so that neither can
grow old alone. Files that cannot carry one have it here. tests/ mirrors the packages: what has no module is named.
"""

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- tree: python tests/readme_tree.py -->", "<!-- /tree -->"
SHOWN = ("trials", "search_spaces", "orchestrator", "benchmarks", "examples", "docs", "tests", "tests_engines")
WORDS = {
    "Makefile": "install, demo, test: each stage with its seconds",
    ".ci/run": "what has to hold before anything lands",
    ".gitignore": "what is made here and not kept",
    "constraints.txt": "the versions that were tested",
    "pyproject.toml": "the distribution, its dependencies, the rules of lint, types and tests",
    "README.md": "this page",
    "CHANGELOG.md": "what changed for users, newest first",
    "CONTRIBUTING.md": "how to change this",
    "benchmarks/search_efficiency_azure.npz": "what each of 6,048 points came to, simulated",
    "benchmarks/search_efficiency_mooncake.npz": "the same on the other trace",
    "docs/knee.svg": "the picture in this page, drawn from a report by benchmarks/knee_picture.py",
    "orchestrator/page.css": "the report's style, light and dark",
    "orchestrator/page.html": "the report's frame",
    "orchestrator/page.js": "the report's script",
}


def tracked() -> list[str]:
    """Paths that git knows, sorted; without git, those on the disk."""
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return sorted(path for path in listed.splitlines() if (ROOT / path).is_file())
    except (OSError, subprocess.CalledProcessError):
        folders = [path for name in SHOWN for path in (ROOT / name).rglob("*")]
        files = [p for p in (*ROOT.iterdir(), *folders) if p.is_file() and "__pycache__" not in p.parts]
        return sorted(p.relative_to(ROOT).as_posix() for p in files)


def named(path: str) -> bool:
    """Whether the tree names this file: tests only where they mirror no module, and no data of tests."""
    if not path.startswith(("tests/", "tests_engines/")):
        return path.split("/")[0] in SHOWN or "/" not in path or path.startswith(".ci/")
    return path.endswith(".py") and not Path(path).name.startswith("test_")


def words_of(path: str) -> str:
    """The file's own first sentence. KeyError where it has none and none is written down here."""
    if path in WORDS:
        return WORDS[path]
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".py"):
        first = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].replace("\n", " ")
    elif path.endswith((".yaml", ".yml", ".sh", ".txt")):
        lines = [line.lstrip("#! ") for line in text.splitlines() if line.startswith("# ")]
        first = lines[0] if lines else ""
    elif path.endswith(".md"):
        first = next((line.lstrip("# ") for line in text.splitlines() if line.startswith("# ")), "")
    else:
        first = ""
    if not first:
        raise KeyError(
            f"{path}: says nothing of itself; give it a first sentence, or a word in tests/readme_tree.py"
        )
    return first.split(". ")[0].rstrip(".")


def tree() -> str:
    """The tree as it stands: folders, and a line a file."""
    lines, open_folders = [], []
    for path in sorted(filter(named, tracked()), key=lambda p: ("/" in p, p.split("/"))):
        *folders, name = path.split("/")
        for depth, folder in enumerate(folders):
            if open_folders[: depth + 1] != folders[: depth + 1]:
                lines.append(f"{'  ' * depth}{folder}/")
                open_folders = folders[: depth + 1]
        open_folders = folders
        indent = "  " * len(folders)
        lines.append(f"{indent + name:<34} {words_of(path)}")
    return "\n".join(lines)


def section() -> str:
    """What stands between the marks in README.md."""
    return f"{BEGIN}\n```\n{tree()}\n```\n{END}"


def written(readme: str) -> str:
    """README.md with the tree as it should be. ValueError where the marks are gone."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no {BEGIN} ... {END}")
    return before + section() + after


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
