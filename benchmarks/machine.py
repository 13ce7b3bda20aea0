"""What a published number must carry: date, versions, hardware. Nothing that names the machine."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = (
    "espnet3", "numpy", "dask", "distributed", "joblib", "ray", "datasets", "datatrove", "submitit",
    "torch", "lightning", "dask-jobqueue",
)  # fmt: skip


def describe_machine(names: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the figures of a run, of all benchmarks or of some, depend on."""
    return {
        "command": " ".join(["python -m benchmarks", *names]),
        "date": date.today().isoformat(),
        "commit": _commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        folder = Path(__file__).parent
        return subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((s.partition(":")[2].strip() for s in lines if s.startswith("model name")), "")
