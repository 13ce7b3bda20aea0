"""What an import and the command line load, and how long that takes."""

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.figures import Figure, best_of

HEAVY = ("torch", "dask", "distributed", "lightning")
_STARTS = {
    "import espnet3.parallel": "import espnet3.parallel",
    "BaseRunner and set_parallel": "from espnet3.parallel import BaseRunner, set_parallel",
    "espnet3 --help": (
        "import contextlib, io, sys; sys.argv[:] = ['espnet3', '--help']\n"
        "from espnet3.cli.main import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main()"
    ),
}
_REPORT = "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"


def loaded_modules(code: str) -> list[str]:
    """Return the names of all modules that are loaded after running the code."""
    names: list[str] = json.loads(_run(code + _REPORT).splitlines()[-1])
    return names


def _run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def measure() -> Iterator[Figure]:
    """Count the heavy packages that are loaded, and time the start against that of Python."""
    for what, code in _STARTS.items():
        found = sorted(set(HEAVY) & set(loaded_modules(code)))
        named = f" ({', '.join(found)})" if found else ""
        yield Figure(f"{what}: heavy packages loaded{named}", len(found), "", limit=0)
        ours, plain = best_of(3, lambda code=code: _run(code), lambda: _run("pass"))
        yield Figure(f"{what}; against python -c pass", ours * 1e3, "ms", plain * 1e3)
