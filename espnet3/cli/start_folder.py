"""Let processes that Lightning starts find what the command line names: it was typed elsewhere."""

import os
import sys

from espnet3.trainer.launching.process_rank import LAUNCHED

_START = "ESPNET3_START_DIR"


def remember_start() -> None:
    """Note the folder that the command was typed in, before the recipe's folder is entered.

    Lightning repeats the command from the folder of the recipe, where relative paths lead nowhere.
    A process that it started goes back to where the command was typed.
    """
    if LAUNCHED in os.environ and _START in os.environ:
        os.chdir(os.environ[_START])
    else:
        os.environ[_START] = os.getcwd()
    if os.path.exists(sys.argv[0]):
        sys.argv[0] = os.path.abspath(sys.argv[0])
