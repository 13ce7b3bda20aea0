"""Run a function in a fresh process, and learn what it took: seconds and memory."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """What a function took, memory in bytes."""

    seconds: float
    before: int
    """The memory of the process before the call: interpreter, modules and arguments."""
    peak: int
    """Its highest memory, all in all."""
    cpu_seconds: float
    """Of all its threads: what other programs take does not count."""

    @property
    def growth(self) -> int:
        """The memory that the call itself needed at most."""
        return self.peak - self.before


def run_measured(module: str, *arguments: str) -> Usage:
    """Run `python -m module arguments` and return what its `report_usage` said."""
    command = [sys.executable, "-m", module, *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Usage(**json.loads(output))


def report_usage(function: Callable[[], object]) -> None:
    """Call a function and print what it took, for `run_measured`."""
    before = peak_memory()
    begin, cpu = time.perf_counter(), time.process_time()
    function()
    taken, cpu = time.perf_counter() - begin, time.process_time() - cpu
    print(json.dumps(asdict(Usage(taken, before, peak_memory(), cpu))))


def peak_memory() -> int:
    """Return the highest memory of this process so far, in bytes."""
    try:
        # Not ru_maxrss: a process inherits that of the one that started it.
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
