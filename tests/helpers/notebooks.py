"""Run the code of a notebook in a process of its own, cell by cell, as Jupyter would."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.helpers.pages import DOCS

TUTORIALS = DOCS / "tutorials"
# Jupyter too runs cells in `__main__`, and shows their text to whom asks `inspect` for it.
_PROGRAM = """
import json, linecache, sys

cells = [c for c in json.load(open(sys.argv[1]))["cells"] if c["cell_type"] == "code"]
for number, cell in enumerate(cells):
    text, name = "".join(cell["source"]), f"<cell {number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), globals())
"""


def run_notebook(name: str, folder: Path, **variables: str) -> str:
    """Run a tutorial in a folder, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, TUTORIALS / f"{name}.ipynb"],
        cwd=folder, env={**os.environ, **variables}, text=True, timeout=500,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def markdown_of(name: str) -> str:
    """Return the text between the cells of code."""
    cells = json.loads((TUTORIALS / f"{name}.ipynb").read_text())["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
