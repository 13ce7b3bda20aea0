"""Run the snippets of the documentation as printed, as a user would: in a script of their own."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SNIPPETS = Path(__file__).parent / "snippets"
# What the provider of the guide wraps its dataset in, and does not print.
FILTERED = """

class FilteredDataset:
    def __init__(self, dataset, min_duration):
        durations = dataset.durations()
        self.kept = [dataset[i] for i in range(len(dataset)) if durations[i] >= min_duration]

    def __len__(self):
        return len(self.kept)

    def __getitem__(self, i):
        return self.kept[i]
"""


@pytest.fixture
def run_script(tmp_path):
    """Return a function that runs parts of code, or snippets by name, as one script."""

    def run(*parts: str, cwd: Path = tmp_path) -> str:
        script = tmp_path / "my script's.py"
        script.write_text("\n".join(_source(part) for part in parts), encoding="utf-8")
        process = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, cwd=cwd, timeout=120
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    return run


def read_snippet(name: str) -> str:
    """Return a snippet of the documentation."""
    return (SNIPPETS / f"{name}.py.txt").read_text(encoding="utf-8")


def _source(part: str) -> str:
    return read_snippet(part) if part.isidentifier() else textwrap.dedent(part)
