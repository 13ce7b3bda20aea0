"""Run the snippets of the documentation as printed, as a user would: in a script of their own."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.helpers.snippets import read_snippet


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


def _source(part: str) -> str:
    return read_snippet(part) if part.isidentifier() else textwrap.dedent(part)
