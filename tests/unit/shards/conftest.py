import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from espnet3.shards import commit as commit_module
from tests.helpers.planned_run import Run

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    """Damage is no late view here, and need not be waited for."""
    with pytest.MonkeyPatch.context() as patch:  # of its own: tests undo theirs
        patch.setattr(commit_module, "SETTLE_SECONDS", 0.0)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name breaks code that splits, quotes or formats paths carelessly."""
    path = tmp_path / 'it\'s a "new\n folder" 100% {é} [0] \\n'
    path.mkdir()
    return path


@pytest.fixture
def make_run(folder: Path) -> Callable[..., Run]:
    return lambda **values: Run(folder, **values)


@pytest.fixture
def run(folder: Path) -> Run:
    return Run(folder)


def start_python(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


@pytest.fixture
def spawn():
    """Start Python with a script; what is still running at the end of the test is killed."""
    processes = []

    def start(code: str, *args: object) -> subprocess.Popen[str]:
        processes.append(start_python(code, *args))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def race(spawn):
    """Run a script in several processes that wait for each other at each `go()`.

    Returns the lines that each of them printed.
    """
    prelude = """
import sys
def go():
    print("ready", flush=True)
    sys.stdin.readline()
"""

    def run_race(code: str, n: int, *args: object, n_goes: int = 1) -> list[list[str]]:
        processes = [spawn(prelude + textwrap.dedent(code), number, *args) for number in range(n)]
        printed: list[list[str]] = [[] for _ in processes]
        for _ in range(n_goes):
            for process, lines in zip(processes, printed, strict=True):
                while (line := process.stdout.readline()) != "ready\n":
                    assert line, f"it ended before go() with code {process.wait(30)}"
                    lines.append(line.rstrip())
            for process in processes:
                process.stdin.write("go\n")
                process.stdin.flush()
        for process, lines in zip(processes, printed, strict=True):
            lines.extend(process.communicate(timeout=60)[0].splitlines())
        assert [process.returncode for process in processes] == [0] * n
        return printed

    return run_race
