"""Run stages of this recipe; see README.md, or python run.py --help.

The stages, in their order, are methods of BaseSystem in espnet3.systems.base.system;
python run.py --list-stages lists them. A subclass adds one of its own: docs/recipes.md of espnet3.
"""

import sys

from espnet3.cli.recipe import run_recipe
from espnet3.systems.base.system import BaseSystem

if __name__ == "__main__":
    sys.exit(run_recipe(BaseSystem))
