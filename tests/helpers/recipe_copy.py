"""A copy of a recipe in a folder of its own, run as its users do, or in this process."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from espnet3.cli.recipe import run_recipe

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"


class RecipeCopy:
    """Copies `egs3/<name>` without what was made in it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        made = shutil.ignore_patterns("data", "exp", "logs", "__pycache__")
        shutil.copytree(ROOT / "egs3" / name, folder, ignore=made)

    def run(self, *words: str, code: int = 0, seconds: float = 170) -> str:
        """Run in the folder, and return what was told."""
        done = subprocess.run(
            [sys.executable, "run.py", *words],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def run_here(self, system: Any, *words: str, code: int = 0) -> None:
        """Run in this process, which has imported all already."""
        with _restored(self.folder):
            assert run_recipe(system, list(words), recipe_dir=self.folder) == code


@contextmanager
def _restored(folder: Path) -> Iterator[None]:
    environ, path, here = dict(os.environ), list(sys.path), Path.cwd()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(environ)
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(folder)):
                del sys.modules[name]


def run_recipe_here(system: Any, folder: Path, *words: str, code: int = 0) -> None:
    """Run a recipe that is there already, in this process."""
    with _restored(folder):
        assert run_recipe(system, list(words), recipe_dir=folder) == code
