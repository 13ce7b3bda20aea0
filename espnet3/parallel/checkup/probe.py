"""Probe job of `doctor --submit`: collects facts about a node without judging them.

Sent by Dask like any task, so it takes and returns plain values.
"""

import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PACKAGES = ("espnet3", "dask", "distributed", "cloudpickle", "numpy", "torch", "lightning")
DONE = "done"


@dataclass(frozen=True)
class ProbeRequest:
    """Checks that a worker should make."""

    token: str
    """What is written into each folder, as its proof."""
    sys_path: list[str]
    folders: dict[str, str]
    """By the name of the setting: where to write, a folder that exists where this was made."""
    targets: list[tuple[str, str]] = field(default_factory=list)
    """Keys of the config, and what they say must be imported."""
    recipe_dir: str | None = None
    needs_gpu: bool = False


@dataclass(frozen=True)
class Written:
    """Result of the write test in one folder."""

    free: int = 0
    """Bytes."""
    saw_ours: bool = False
    """Whether a file that was made on the driver's machine is there."""
    error: str = ""


@dataclass(frozen=True)
class ProbeReport:
    """Facts that a worker found."""

    host: str
    now: float
    """By its clock."""
    python: str
    executable: str
    espnet3_dir: str
    packages: dict[str, str]
    variables: dict[str, str]
    n_cpus: int
    memory: int | None
    """Bytes that this process may use, as far as known."""
    scratch: str
    """Where temporary files go."""
    scratch_free: int
    """Bytes."""
    gpus: list[str]
    gpu_problem: str
    imports: dict[str, str]
    """What could not be imported: by key, or file, the error."""
    written: dict[str, Written]


def run_probe(request: dict[str, Any]) -> dict[str, Any]:
    """Look at what a `Request` asks for; both it and the `Report` travel as plain dicts."""
    asked = ProbeRequest(**request)
    # As for a run: what the driver can import, this worker looks for in the same places.
    sys.path += [entry for entry in asked.sys_path if entry not in sys.path]
    return asdict(look(asked))


def look(asked: ProbeRequest) -> ProbeReport:
    """Look at it in this process."""
    import espnet3

    imports = _import_all(asked)
    written = {key: _write(Path(folder), asked.token, key) for key, folder in asked.folders.items()}
    gpus, problem = _find_gpus() if asked.needs_gpu else ([], "")
    return ProbeReport(
        host=socket.gethostname(),
        now=time.time(),
        python=platform.python_version(),
        executable=sys.executable,
        espnet3_dir=os.path.dirname(os.path.realpath(espnet3.__file__)),
        packages=_versions(PACKAGES),
        variables={name: os.environ[name] for name in _variables() if name in os.environ},
        n_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        memory=_memory(),
        scratch=tempfile.gettempdir(),
        scratch_free=shutil.disk_usage(tempfile.gettempdir()).free,
        gpus=gpus,
        gpu_problem=problem,
        imports=imports,
        written=written,
    )


def _variables() -> list[str]:
    from espnet3.schedulers import JOB_ID, possible_schedulers

    numbers = [name for each in possible_schedulers() for name in each.job_variables]
    return ["CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", JOB_ID, *numbers]


def _versions(names: Iterable[str]) -> dict[str, str]:
    from importlib import metadata

    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _import_all(asked: ProbeRequest) -> dict[str, str]:
    from espnet3.config.targets import locate

    failed = {}
    if asked.recipe_dir is not None and not os.path.isdir(asked.recipe_dir):
        failed["the recipe"] = f"{asked.recipe_dir} is not there"
    for key, target in asked.targets:
        try:
            locate(target)
        except Exception as error:
            failed[key] = f"{target}: {type(error).__name__}: {error}"
    return failed


def _find_gpus() -> tuple[list[str], str]:
    """Return the names of the GPUs that torch can use, and else why it cannot."""
    try:
        import torch
    except ImportError as error:
        return [], f"torch cannot be imported: {error}"
    if not (torch.version.cuda or torch.version.hip):
        return [], f"torch {torch.__version__} is a build without GPUs"
    try:
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    except Exception as error:
        return [], f"{type(error).__name__}: {error}"
    return names, "" if names else "torch finds none"


def _memory() -> int | None:
    """Return the smallest of the limits that hold here."""
    from espnet3.schedulers import possible_schedulers

    limits = [_page_bytes("SC_PHYS_PAGES")]
    # cgroup v2, then v1; `max`, which is no number, means that there is no limit.
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limits.append(int(Path(name).read_text()))
    limits += [each.memory(os.environ) for each in possible_schedulers()]
    return min((limit for limit in limits if limit), default=None)


def _page_bytes(name: str) -> int | None:
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _write(place: Path, token: str, key: str) -> Written:
    """Publish a folder as a shard is published: written aside, forced to disk, renamed."""
    target = trace_path(place, token, key)
    attempt = target.with_name(f"{target.name}.part")
    try:
        from espnet3.io.atomic import fsync_dir, write_text

        saw_ours = (place / ours_name(token)).is_file()
        attempt.mkdir()
        write_text(attempt / DONE, token)
        fsync_dir(attempt)
        os.rename(attempt, target)
        return Written(shutil.disk_usage(place).free, saw_ours)
    except OSError as error:
        return Written(error=f"{error.strerror or error}: {error.filename or place}")


def trace_path(place: Path, token: str, key: str) -> Path:
    """Return what a worker publishes for a setting; several may be made in one folder."""
    return place / f"{token}-{key}"


def ours_name(token: str) -> str:
    """Return the name of the file that the driver makes."""
    return f"{token}.driver"


def remove_traces(places: Mapping[str, str], token: str) -> None:
    """Remove what driver and worker wrote, as far as it can be seen from here."""
    for place in set(places.values()):
        with suppress(OSError):
            Path(place, ours_name(token)).unlink(missing_ok=True)
        for trace in Path(place).glob(f"{token}-*"):
            shutil.rmtree(trace, ignore_errors=True)
