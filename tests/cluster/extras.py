"""Optional packages that are large, in an environment of their own beside the tests'."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install_extras(*extras: str) -> str:
    """Install extras as README.md says, and return the interpreter that has them.

    What the tests' own environment has is not installed again: it is seen from there. So pip checks
    that all the versions of constraints.txt go together, and fetches only what is missing.
    """
    constraints = ROOT / "constraints.txt"
    digest = hashlib.sha256(constraints.read_bytes()).hexdigest()[:12]
    name = f"with-{'-'.join(extras)}"
    folder = Path(sys.prefix) / f"{name}-{digest}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    with _alone(folder.parent / f"{name}.lock"):
        if ready.exists():
            return str(python)
        for older in folder.parent.glob(f"{name}-*/"):
            shutil.rmtree(older)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        seen = f"{sysconfig.get_path('purelib')}\n{ROOT}\n"
        inside = next(folder.glob("lib/python*/site-packages"))
        (inside / "tests.pth").write_text(seen)
        pip = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
        wanted = [*_requirements(extras), "--constraint", str(constraints)]
        subprocess.run([*pip, *wanted], check=True, timeout=600)
        ready.touch()
    return str(python)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep out the other processes that run tests."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _requirements(extras: tuple[str, ...]) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [each for extra in extras for each in project["optional-dependencies"][extra]]
