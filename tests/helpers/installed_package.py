"""The package as its users have it: built, and installed in a virtual environment of its own.

What it depends on is that of the tests, since torch alone takes minutes to install; the clone, and
the editable installation in it, are out of reach.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.helpers.recipe_copy import ROOT


def run(*words: str | Path, cwd: Path, code: int = 0, seconds: float = 170) -> str:
    """Run a command outside of the clone, and return what it told."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTEST_CURRENT_TEST")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**env, "COLUMNS": "200"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout


def build(folder: Path, source: Path = ROOT) -> tuple[Path, Path]:
    """Build an sdist and a wheel, and return their paths."""
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=source)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel in a new environment, and return the folder of its commands."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=wheel.parent)
    python = folder / "bin" / "python"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index",
        "--no-deps", "--no-compile", wheel, cwd=wheel.parent,
    )  # fmt: skip
    (site,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is added as it is: .pth files in there, such as that of the editable
    # installation, are not read.
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin"
