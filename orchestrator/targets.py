"""Where a verb is told to write: what cannot be written there is said before anything runs."""

from pathlib import Path

from trials.units import SpecError, folder_words, require_utf8


def target_folder(path: Path) -> Path:
    """The folder, absolute, there or not. SpecError where a file stands there, or its name is no text."""
    whole = path.resolve()
    _named(whole)
    if whole.exists() and not whole.is_dir():
        raise SpecError(f"{path}: a file stands there; name a folder with -o")
    return whole


def target_file(path: Path) -> None:
    """SpecError where a folder stands there, or the name is no text."""
    _named(path.resolve())
    if path.is_dir():
        raise SpecError(f"{folder_words(path, 'a file to write')}, as {path / 'NAME'}")


def _named(whole: Path) -> None:
    """Results, logs and recipes name the folder that they lie in; all of them are UTF-8."""
    require_utf8(str(whole), "the output")
