"""How the running program was called."""

import sys
from collections.abc import Sequence
from pathlib import Path


def program_words(argv: Sequence[str]) -> list[str]:
    """Return what stands before `argv` on the command line, such as `python run.py`.

    Args:
        argv: the last arguments of the program; if they are not, the usual call is returned.
    """
    typed = list(sys.orig_argv)
    n_before = len(typed) - len(argv)
    if n_before < 2 or typed[n_before:] != list(argv) or typed[1] == "-c":
        return ["python", "run.py"]
    words = [Path(typed[0]).name, *typed[1:n_before]]
    # An installed command is a script with the path of its interpreter.
    return ["espnet3", *words[2:]] if Path(words[1]).name == "espnet3" else words
