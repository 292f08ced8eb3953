"""Standard streams of the console script, where whoever started it had closed one."""

import os
import sys


def with_streams() -> None:
    """Let a closed stream lead nowhere: else the next file opened takes its number, and prints land in it.

    Called before anything is opened.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
        setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
