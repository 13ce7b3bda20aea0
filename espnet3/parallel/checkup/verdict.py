"""Compare the facts that the probe job reported with this machine."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from espnet3.findings import Finding, Level
from espnet3.parallel.checkup.filesystem import MAX_SKEW, MIN_FREE
from espnet3.parallel.checkup.probe import Report, Request, look
from espnet3.parallel.clusters.table import gpus_per_job

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

_MUST_MATCH = ("espnet3", "dask", "distributed", "cloudpickle")
_SLOW_SECONDS = 5.0
"""A folder in which a file shows up later than this slows each shard down."""


def judge(
    report: Report,
    delays: Mapping[str, float | None],
    skew: float,
    config: "ParallelConfig",
) -> list[Finding]:
    """Return what to think of a report.

    Args:
        report: of the worker.
        delays: after how many seconds this machine saw what it wrote, by setting; None: never.
        skew: seconds by which its clock is ahead, less those that the report took.
        config: what was asked for.
    """
    here = look(Request(token="", sys_path=[], folders={}))
    return [
        *_python(report, here),
        *_imports(report),
        *_gpus(report, config),
        *_machine(report),
        *_clock(report, skew),
        *(f for key in report.written for f in _folder(report, key, delays.get(key))),
    ]


def _python(report: Report, here: Report) -> list[Finding]:
    if _release(report.python) != _release(here.python):
        told = f"the job has Python {report.python}, and here it is {here.python}"
        fix = f"Write under options: python: {here.executable}, a path that all nodes have"
        return [Finding("problem", "job: Python", told, fix)]
    other = {
        name: (report.packages.get(name), version)
        for name, version in here.packages.items()
        if report.packages.get(name) != version
    }
    if other:
        listed = ", ".join(
            f"{n} {there or 'missing'} ({own} here)" for n, (there, own) in other.items()
        )
        level: Level = "problem" if set(other) & set(_MUST_MATCH) else "warning"
        fix = f"Write under options: python: {here.executable}, a path that all nodes have"
        return [Finding(level, "job: packages", f"{listed}; by {report.executable}", fix)]
    if report.espnet3_dir != here.espnet3_dir:
        told = f"espnet3 is imported from {report.espnet3_dir}, but here from {here.espnet3_dir}"
        fix = f"Write under options: python: {here.executable}"
        return [Finding("warning", "job: packages", told, fix)]
    told = f"Python {report.python} and {len(here.packages)} packages as here"
    return [Finding("ok", "job: Python", told)]


def _release(version: str) -> list[str]:
    return version.split(".")[:2]


def _imports(report: Report) -> list[Finding]:
    if not report.imports:
        return [Finding("ok", "job: recipe", "all that the configs name can be imported")]
    return [
        Finding(
            "problem",
            "job: recipe",
            f"{key} cannot be imported on {report.host}: {error}",
            "Make the folder and the packages visible on the nodes: the recipe on a shared file "
            f"system, packages in the environment of {report.executable}",
        )
        for key, error in report.imports.items()
    ]


def _gpus(report: Report, config: "ParallelConfig") -> list[Finding]:
    n_wanted = gpus_per_job(config)
    if not n_wanted:
        return []
    visible = report.variables.get("CUDA_VISIBLE_DEVICES")
    what = f"CUDA_VISIBLE_DEVICES={visible}"
    if visible is None:
        fix = (
            "Write under options, with the number of GPUs of a node: "
            "job_script_prologue: ['export ESPNET3_NODE_GPUS=4']"
        )
        told = "CUDA_VISIBLE_DEVICES is not set in the job: nothing says which GPU is its own"
        return [Finding("problem" if not report.gpus else "warning", "job: GPU", told, fix)]
    if report.gpus:
        return [Finding("ok", "job: GPU", f"{what}: {', '.join(report.gpus)}")]
    fix = "In the environment of the nodes, install a torch for your GPUs: https://pytorch.org"
    level: Level = "warning" if "without GPUs" in report.gpu_trouble else "problem"
    return [Finding(level, "job: GPU", f"{what}, but {report.gpu_trouble}", fix)]


def _machine(report: Report) -> list[Finding]:
    threads = report.variables.get("OMP_NUM_THREADS")
    memory = "" if report.memory is None else f", {report.memory / 1e9:.0f} GB of memory"
    told = (
        f"{report.n_cpus} CPU(s){memory}, OMP_NUM_THREADS={threads or 'not set'}, "
        f"{report.scratch_free / 1e9:.0f} GB free in {report.scratch}"
    )
    return [Finding("ok", "job: machine", told)]


def _clock(report: Report, skew: float) -> list[Finding]:
    if abs(skew) < MAX_SKEW:
        return []
    told = f"the clock of {report.host} is {skew:+.0f} s away from that of this machine"
    return [Finding("warning", "job: clock", told, "Let both follow one time server")]


def _folder(report: Report, key: str, delay: float | None) -> list[Finding]:
    written = report.written[key]
    what = f"job: {key}"
    shared = f"Set {key} to a folder that this machine and all nodes share"
    if written.error:
        return [Finding("problem", what, f"{report.host} cannot write: {written.error}", shared)]
    if delay is None:
        told = f"{report.host} wrote there, but this machine does not see it"
        return [Finding("problem", what, told, shared)]
    if not written.saw_ours:
        told = f"{report.host} does not see a file that this machine wrote"
        return [Finding("problem", what, told, shared)]
    free = f"{written.free / 1e9:.0f} GB free"
    told = f"written on {report.host}, seen here after {delay:.1f} s, {free}"
    if written.free < MIN_FREE or delay > _SLOW_SECONDS:
        return [Finding("warning", what, told, f"Make room, or set {key} to a faster place")]
    return [Finding("ok", what, told)]
