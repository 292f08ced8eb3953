"""Who ran a sweep, and from which commit of this program."""

import contextlib
import getpass
import os
import subprocess
from pathlib import Path


def origin_tags() -> dict[str, str]:
    """MLflow's own tags, which its client does not set. KVKNEE_GIT_COMMIT speaks where no .git is at hand."""
    tags = {"mlflow.source.name": "kvknee", "mlflow.source.type": "LOCAL"}
    with contextlib.suppress(Exception):
        tags["mlflow.user"] = getpass.getuser()
    commit = os.environ.get("KVKNEE_GIT_COMMIT") or commit_of(Path(__file__).resolve())
    if commit:
        tags["mlflow.source.git.commit"] = commit
    return tags


def commit_of(file: Path) -> str:
    """The commit of the checkout that this file is tracked in; empty where it is installed elsewhere."""
    git = ["git", "-C", str(file.parent)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", file.name], capture_output=True, timeout=10)
        if tracked.returncode == 0:
            head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, timeout=10, text=True)
            return head.stdout.strip()
    return ""
