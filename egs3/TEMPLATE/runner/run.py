"""Run stages of this recipe; see README.md, or python run.py --help."""

import sys

from espnet3.cli.recipe import run_recipe
from src.system import LoudnessSystem

if __name__ == "__main__":
    sys.exit(run_recipe(LoudnessSystem))
