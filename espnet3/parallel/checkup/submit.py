"""Run the probe in one worker, started exactly as a run starts its workers."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import EspnetError
from espnet3.findings import Finding
from espnet3.io.atomic import write_text
from espnet3.parallel.checkup.filesystem import find_mount, nearest_folder, scratch_name
from espnet3.parallel.checkup.probe import (
    DONE,
    Report,
    Request,
    Written,
    ours_name,
    remove_traces,
    run_probe,
    trace_path,
)
from espnet3.parallel.checkup.verdict import judge
from espnet3.parallel.clusters.table import ON_THIS_MACHINE, gpus_per_job

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

LOOK_SECONDS = 1.0
NOTE_SECONDS = 5.0
"""Between two lines on why the job waits."""
_CLEAN_SECONDS = 30.0
CACHE_SECONDS = 90.0
"""How long to look for what the job wrote: NFS may remember for a minute that it was not there."""
DISK_SECONDS = 5.0
"""The same for a disk of this machine, which remembers nothing of the kind."""


@dataclass(frozen=True)
class Trial:
    """What to try in the job."""

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


@dataclass(frozen=True)
class Visit:
    """What a worker reported, and what this machine saw of it."""

    report: Report
    address: str
    """Whom the worker talked to."""
    skew: float
    """Seconds by which its clock is ahead, less those that the report took."""
    delays: dict[str, float | None]
    """After how many seconds what it wrote was seen here, by setting; None: never."""


def submit_probe(trial: Trial) -> tuple[list[Finding], set[str]]:
    """Start one worker, let it look around, and end it.

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
    told = f"ran on {report.host} and reached {visit.address}; all in all {seconds:.0f} s"
    judged = judge(report, visit.delays, visit.skew, trial.config)
    return [Finding("ok", "job", told), *judged], set(report.written)


def _request(trial: Trial, places: Mapping[str, str], token: str) -> Request:
    from espnet3.parallel.dask_pool import driver_sys_path

    for key, place in places.items():
        # So that NFS remembers its absence, as it does in a run.
        os.path.exists(trace_path(Path(place), token, key))
        write_text(Path(place, ours_name(token)), token)
    return Request(
        token=token,
        sys_path=driver_sys_path(),
        folders=dict(places),
        targets=list(trial.targets),
        recipe_dir=None if trial.recipe_dir is None else str(trial.recipe_dir),
        needs_gpu=gpus_per_job(trial.config) > 0,
    )


def _visit(trial: Trial, places: Mapping[str, str], token: str) -> Visit:
    request = _request(trial, places, token)
    if trial.config.env in ON_THIS_MACHINE:
        report = _read(_run_here(trial, request))
        return Visit(report, "this process", 0.0, _delays(report, places, token))
    from espnet3.parallel.parallel import get_client

    with get_client(_with_one_worker(trial)) as client:
        deadline = time.monotonic() + trial.timeout
        worker = _wait_for_worker(client, trial, deadline)
        trial.tell(f"{worker} has come; it looks around")
        probe = client.submit(run_probe, asdict(request), pure=False)
        report = _read(_wait_for_result(probe, client, deadline))
        skew = report.now - time.time()
        delays = _delays(report, places, token)
        # There, because what cannot be seen from here cannot be removed from here.
        cleaned = client.submit(remove_traces, places, token, pure=False)
        with suppress(Exception):
            cleaned.result(timeout=_CLEAN_SECONDS)
        return Visit(report, client.scheduler.address, skew, delays)


def _delays(report: Report, places: Mapping[str, str], token: str) -> dict[str, float | None]:
    return {
        key: _wait_for(trace_path(Path(place), token, key) / DONE, token)
        for key, place in places.items()
        if not report.written[key].error
    }


def _run_here(trial: Trial, request: Request) -> dict[str, Any]:
    """Use a process of ours, as a run on this machine does."""
    from espnet3.parallel.parallel import parallel_map, use_parallel

    config = _with_one_worker(trial)
    if config.env == "local":
        config = config.model_copy(update={"n_workers": 2})  # with 1, it would be this process
    with use_parallel(config):
        result: dict[str, Any] = parallel_map(run_probe, [asdict(request)])[0]
    return result


def _with_one_worker(trial: Trial) -> "ParallelConfig":
    changes = {"n_workers": 1, "adaptive": None, "start_timeout": trial.timeout}
    return trial.config.model_copy(update=changes)


def _read(values: Mapping[str, Any]) -> Report:
    written = {key: Written(**each) for key, each in values["written"].items()}
    return Report(**{**values, "written": written})


def _wait_for_worker(client: Any, trial: Trial, deadline: float) -> str:
    """Wait for the worker; tell why it does not come whenever that changes."""
    monitor = getattr(client.cluster, "monitor", None)
    told, next_note = "", time.monotonic() + NOTE_SECONDS
    while True:
        workers = list(client.nthreads())
        if workers:
            return str(workers[0])
        if monitor is not None:
            monitor.look(1)
            told = monitor.waiting() or told
        if time.monotonic() > deadline:
            raise TooLate(
                f"no worker came within {trial.timeout:.0f} s, and the job was cancelled: "
                f"{told or 'no reason is known.'} Run it again with more patience: --timeout 3600"
            )
        if told and time.monotonic() > next_note:
            trial.tell(told)
            next_note = time.monotonic() + NOTE_SECONDS
        time.sleep(LOOK_SECONDS)


def _wait_for_result(future: Any, client: Any, deadline: float) -> dict[str, Any]:
    monitor = getattr(client.cluster, "monitor", None)
    while not future.done():
        if monitor is not None:
            monitor.look(1, list(client.nthreads()))
        if time.monotonic() > deadline:
            raise TooLate("the worker came, but did not report in time. Run it with --timeout 3600")
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
        except OSError:
            pass
        time.sleep(0.05)
    return None
