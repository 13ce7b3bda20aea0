"""Run the probe in one worker, started as a run starts its workers, and judge its report."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import EspnetError
from espnet3.findings import Finding, Level
from espnet3.io.atomic import write_text
from espnet3.parallel.checkup.filesystem import (
    MAX_SKEW,
    MIN_FREE,
    find_mount,
    nearest_folder,
    scratch_name,
)
from espnet3.parallel.checkup.probe import (
    DONE,
    ProbeReport,
    ProbeRequest,
    Written,
    look,
    ours_name,
    remove_traces,
    run_probe,
    trace_path,
)
from espnet3.parallel.clusters.registry import BACKENDS, ON_THIS_MACHINE, gpus_per_job
from espnet3.schedulers import known_scheduler
from espnet3.text import count

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

# These talk to each other, or load each other's pickles.
_MUST_MATCH = ("espnet3", "dask", "distributed", "cloudpickle")
_SLOW_SECONDS = 5.0
"""A folder in which a file shows up later than this slows each shard down."""
LOOK_SECONDS = 1.0
NOTE_SECONDS = 5.0
"""Between two lines on why the job waits."""
_CLEAN_SECONDS = 30.0
CACHE_SECONDS = 90.0
"""How long to look for what the job wrote: NFS may remember for a minute that it was not there."""
DISK_SECONDS = 5.0
"""The same for a disk of this machine, which remembers nothing of the kind."""


@dataclass(frozen=True)
class ProbeJob:
    """Description of the probe job."""

    config: "ParallelConfig"
    folders: Mapping[str, Path]
    targets: Sequence[tuple[str, str]] = ()
    recipe_dir: Path | None = None
    timeout: float = 300.0
    """Seconds from its submission until the job must have reported."""
    tell: Callable[[str], None] = lambda line: None
    """Gets a line now and then on what is waited for."""


class TooLate(EspnetError):
    """The job did not report in time."""


class NeverStarts(EspnetError):
    """The scheduler says that the job cannot run, however long one waits."""


@dataclass(frozen=True)
class Visit:
    """Report of a worker, and what this machine saw of it."""

    report: ProbeReport
    address: str
    """Address that the worker connected to."""
    skew: float
    """Seconds by which its clock is ahead, less those that the report took."""
    delays: dict[str, float | None]
    """After how many seconds what it wrote was seen here, by setting; None: never."""


def submit_probe(trial: ProbeJob) -> tuple[list[Finding], set[str]]:
    """Start one worker, let it report on its surroundings, and end it.

    Returns:
        What was found, and the settings whose folders have been judged by it.
    """
    token = scratch_name()
    places = {key: str(nearest_folder(path)) for key, path in trial.folders.items()}
    begin = time.monotonic()
    try:
        visit = _visit(trial, places, token)
    except Exception as error:
        return [Finding.of("job", error)], set()
    finally:
        remove_traces(places, token)
    report, seconds = visit.report, time.monotonic() - begin
    text = f"ran on {report.host} and reached {visit.address}; all in all {seconds:.0f} s"
    judged = judge(report, visit.delays, visit.skew, trial.config)
    return [Finding("ok", "job", text), *judged], set(report.written)


def _request(trial: ProbeJob, places: Mapping[str, str], token: str) -> ProbeRequest:
    from espnet3.parallel.dask_pool import driver_sys_path

    for key, place in places.items():
        # So that NFS remembers its absence, as it does in a run.
        os.path.exists(trace_path(Path(place), token, key))
        write_text(Path(place, ours_name(token)), token)
    return ProbeRequest(
        token=token,
        sys_path=driver_sys_path(),
        folders=dict(places),
        targets=list(trial.targets),
        recipe_dir=None if trial.recipe_dir is None else str(trial.recipe_dir),
        needs_gpu=gpus_per_job(trial.config) > 0,
    )


def _visit(trial: ProbeJob, places: Mapping[str, str], token: str) -> Visit:
    request = _request(trial, places, token)
    if trial.config.env in ON_THIS_MACHINE or not BACKENDS[trial.config.env].is_dask:
        report = _read(_run_here(trial, request))
        return Visit(report, "this process", 0.0, _delays(report, places, token))
    from espnet3.parallel.parallel import get_client

    with get_client(_with_one_worker(trial)) as client:
        deadline = time.monotonic() + trial.timeout
        worker = _wait_for_worker(client, trial, deadline)
        trial.tell(f"{worker} has come; it looks around")
        # Not pure: Dask may take an equal call for one that it has done.
        probe = client.submit(run_probe, asdict(request), pure=False)
        report = _read(_wait_for_result(probe, client, deadline))
        skew = report.now - time.time()
        delays = _delays(report, places, token)
        # There, because what cannot be seen from here cannot be removed from here.
        cleaned = client.submit(remove_traces, places, token, pure=False)
        with suppress(Exception):
            cleaned.result(timeout=_CLEAN_SECONDS)
        return Visit(report, client.scheduler.address, skew, delays)


def _delays(report: ProbeReport, places: Mapping[str, str], token: str) -> dict[str, float | None]:
    return {
        key: _wait_for(trace_path(Path(place), token, key) / DONE, token)
        for key, place in places.items()
        if not report.written[key].error
    }


def _run_here(trial: ProbeJob, request: ProbeRequest) -> dict[str, Any]:
    """Use a process of ours, as a run on this machine does."""
    from espnet3.parallel.parallel import parallel_map, use_parallel

    config = _with_one_worker(trial)
    if config.env == "local":
        config = config.model_copy(update={"n_workers": 2})  # with 1, it would be this process
    with use_parallel(config):
        result: dict[str, Any] = parallel_map(run_probe, [asdict(request)])[0]
    return result


def _with_one_worker(trial: ProbeJob) -> "ParallelConfig":
    changes = {"n_workers": 1, "adaptive": None, "start_timeout": trial.timeout}
    return trial.config.model_copy(update=changes)


def _read(values: Mapping[str, Any]) -> ProbeReport:
    written = {key: Written(**each) for key, each in values["written"].items()}
    return ProbeReport(**{**values, "written": written})


def _wait_for_worker(client: Any, trial: ProbeJob, deadline: float) -> str:
    """Wait for the worker; tell why it does not come whenever that changes."""
    monitor = getattr(client.cluster, "monitor", None)
    text, next_note = "", time.monotonic() + NOTE_SECONDS
    while True:
        workers = list(client.nthreads())
        if workers:
            return str(workers[0])
        if monitor is not None:
            # The monitor acts only when it is called, and no run does so here.
            monitor.look(1)
            text = monitor.waiting() or text
            if reason := monitor.hopeless():
                raise NeverStarts(
                    f"the job will never start, and was cancelled: {reason}.",
                    fix=f"{known_scheduler(trial.config.env).advice(reason)}.",
                )
        if time.monotonic() > deadline:
            raise TooLate(
                f"no worker came within {trial.timeout:.0f} s, and the job was cancelled: "
                f"{text or 'no reason is known.'}",
                fix="Run it again with more patience: --timeout 3600",
            )
        if text and time.monotonic() > next_note:
            trial.tell(text)
            next_note = time.monotonic() + NOTE_SECONDS
        time.sleep(LOOK_SECONDS)


def _wait_for_result(future: Any, client: Any, deadline: float) -> dict[str, Any]:
    monitor = getattr(client.cluster, "monitor", None)
    while not future.done():
        if monitor is not None:
            monitor.look(1, list(client.nthreads()))
        if time.monotonic() > deadline:
            raise TooLate(
                "the worker came, but did not report in time.", fix="Run it with --timeout 3600"
            )
        time.sleep(LOOK_SECONDS / 5)
    result: dict[str, Any] = future.result()
    return result


def _wait_for(path: Path, token: str) -> float | None:
    """Return after how many seconds a file of the job can be read here; None if never."""
    begin = time.monotonic()
    seconds = CACHE_SECONDS if find_mount(nearest_folder(path)).is_network else DISK_SECONDS
    while time.monotonic() - begin < seconds:
        try:
            if path.read_text() == token:
                return time.monotonic() - begin
        # Not seen yet, or its name before its content.
        except OSError:
            pass
        time.sleep(0.05)
    return None


def judge(
    report: ProbeReport,
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
    here = look(ProbeRequest(token="", sys_path=[], folders={}))
    return [
        *_python(report, here),
        *_imports(report),
        *_gpus(report, config),
        *_machine(report),
        *_clock(report, skew),
        *(f for key in report.written for f in _folder(report, key, delays.get(key))),
    ]


def _python(report: ProbeReport, here: ProbeReport) -> list[Finding]:
    if _release(report.python) != _release(here.python):
        text = f"the job has Python {report.python}, and here it is {here.python}"
        fix = f"Write under options: python: {here.executable}, a path that all nodes have"
        return [Finding("problem", "job: Python", text, fix)]
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
        text = f"espnet3 is imported from {report.espnet3_dir}, but here from {here.espnet3_dir}"
        fix = f"Write under options: python: {here.executable}"
        return [Finding("warning", "job: packages", text, fix)]
    text = f"Python {report.python} and {len(here.packages)} packages as here"
    return [Finding("ok", "job: Python", text)]


def _release(version: str) -> list[str]:
    return version.split(".")[:2]


def _imports(report: ProbeReport) -> list[Finding]:
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


def _gpus(report: ProbeReport, config: "ParallelConfig") -> list[Finding]:
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
        text = "CUDA_VISIBLE_DEVICES is not set in the job: nothing says which GPU is its own"
        return [Finding("problem" if not report.gpus else "warning", "job: GPU", text, fix)]
    if report.gpus:
        return [Finding("ok", "job: GPU", f"{what}: {', '.join(report.gpus)}")]
    fix = "In the environment of the nodes, install a torch for your GPUs: https://pytorch.org"
    level: Level = "warning" if "without GPUs" in report.gpu_problem else "problem"
    return [Finding(level, "job: GPU", f"{what}, but {report.gpu_problem}", fix)]


def _machine(report: ProbeReport) -> list[Finding]:
    threads = report.variables.get("OMP_NUM_THREADS")
    memory = "" if report.memory is None else f", {report.memory / 1e9:.0f} GB of memory"
    text = (
        f"{count(report.n_cpus, 'CPU')}{memory}, OMP_NUM_THREADS={threads or 'not set'}, "
        f"{report.scratch_free / 1e9:.0f} GB free in {report.scratch}"
    )
    return [Finding("ok", "job: machine", text)]


def _clock(report: ProbeReport, skew: float) -> list[Finding]:
    if abs(skew) < MAX_SKEW:
        return []
    text = f"the clock of {report.host} is {skew:+.0f} s away from that of this machine"
    return [Finding("warning", "job: clock", text, "Let both follow one time server")]


def _folder(report: ProbeReport, key: str, delay: float | None) -> list[Finding]:
    written = report.written[key]
    what = f"job: {key}"
    shared = f"Set {key} to a folder that this machine and all nodes share"
    if written.error:
        return [Finding("problem", what, f"{report.host} cannot write: {written.error}", shared)]
    if delay is None:
        text = f"{report.host} wrote there, but this machine does not see it"
        return [Finding("problem", what, text, shared)]
    if not written.saw_ours:
        text = f"{report.host} does not see a file that this machine wrote"
        return [Finding("problem", what, text, shared)]
    free = f"{written.free / 1e9:.0f} GB free"
    text = f"written on {report.host}, seen here after {delay:.1f} s, {free}"
    if written.free < MIN_FREE or delay > _SLOW_SECONDS:
        return [Finding("warning", what, text, f"Make room, or set {key} to a faster place")]
    return [Finding("ok", what, text)]
