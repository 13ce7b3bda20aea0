"""Run stages of this recipe; see README.md, or python run.py --help."""

import sys

from espnet3.cli.recipe import run_recipe
from espnet3.systems.asr.system import ASRSystem

if __name__ == "__main__":
    sys.exit(run_recipe(ASRSystem))
