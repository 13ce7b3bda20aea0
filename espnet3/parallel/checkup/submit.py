"""Run the probe in one worker, started exactly as a run starts its workers."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import EspnetError
from espnet3.findings import Finding
from espnet3.io.atomic import write_text
from espnet3.parallel.checkup.filesystem import nearest_folder, scratch_name
from espnet3.parallel.checkup.probe import DONE, Report, Request, Written, ours_name, run_probe
from espnet3.parallel.checkup.verdict import judge
from espnet3.parallel.clusters.requested import gpus_per_job

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

LOOK_SECONDS = 1.0
VISIBLE_SECONDS = 90.0
"""How long to look for what the job wrote: NFS may remember for a minute that it was not there."""


@dataclass(frozen=True)
class Trial:
    """What to try in the job."""

    config: "ParallelConfig"
    folders: Mapping[str, Path]
    targets: Sequence[tuple[str, str]] = ()
    recipe_dir: Path | None = None
    timeout: float = 300.0
    """Seconds until the job must have reported."""
    tell: Callable[[str], None] = lambda line: None
    """Gets a line when what is waited for changes."""


class TooLate(EspnetError):
    """The job did not report in time."""


def submit_probe(trial: Trial) -> tuple[list[Finding], set[str]]:
    """Start one worker, let it look around, and end it.

    Returns:
        What was found, and the settings whose folders both machines see.
    """
    token = scratch_name()
    places = {key: nearest_folder(path) for key, path in trial.folders.items()}
    begin = time.monotonic()
    try:
        with _traces_removed(places, token):
            report, address, skew = _report(trial, _request(trial, places, token))
            seconds = time.monotonic() - begin
            delays = {
                key: _wait_for(place / token / DONE, token)
                for key, place in places.items()
                if not report.written[key].error
            }
    except Exception as error:
        return [Finding.of("job", error)], set()
    told = f"ran on {report.host} and reached {address}; it took {seconds:.0f} s with its end"
    findings = [Finding("ok", "job", told), *judge(report, delays, skew, trial.config)]
    seen = {key for key, delay in delays.items() if delay is not None}
    return findings, {key for key in seen if report.written[key].saw_ours}


def _request(trial: Trial, places: Mapping[str, Path], token: str) -> Request:
    from espnet3.parallel.dask_pool import driver_sys_path

    for place in places.values():
        write_text(place / ours_name(token), token)
        os.path.exists(place / token)  # so that NFS remembers its absence, as it does in a run
    return Request(
        token=token,
        sys_path=driver_sys_path(),
        folders={key: str(place) for key, place in places.items()},
        targets=list(trial.targets),
        recipe_dir=None if trial.recipe_dir is None else str(trial.recipe_dir),
        needs_gpu=gpus_per_job(trial.config) > 0,
    )


@contextmanager
def _traces_removed(places: Mapping[str, Path], token: str) -> Iterator[None]:
    try:
        yield
    finally:
        for place in set(places.values()):
            (place / ours_name(token)).unlink(missing_ok=True)
            for name in (token, f"{token}.part"):
                shutil.rmtree(place / name, ignore_errors=True)


def _report(trial: Trial, request: Request) -> tuple[Report, str, float]:
    """Return the report, whom the worker talked to, and how far its clock is ahead of ours."""
    if trial.config.env == "local":
        report = _read(_run_here(trial, request))
        return report, "this process", 0.0
    from espnet3.parallel.parallel import get_client

    config = trial.config.model_copy(update={"n_workers": 1})
    deadline = time.monotonic() + trial.timeout
    with get_client(config) as client:
        worker = _wait_for_worker(client, trial, deadline)
        trial.tell(f"{worker} has come; it looks around")
        future = client.submit(run_probe, asdict(request), pure=False)
        report = _read(_wait_for_result(future, client, deadline))
        return report, client.scheduler.address, report.now - time.time()


def _run_here(trial: Trial, request: Request) -> dict[str, Any]:
    """Use a process of ours, as a run on this machine does."""
    from espnet3.parallel.parallel import parallel_map, use_parallel

    config = trial.config.model_copy(update={"n_workers": 2})  # with 1, it would be this process
    with use_parallel(config):
        result: dict[str, Any] = parallel_map(run_probe, [asdict(request)])[0]
    return result


def _read(values: Mapping[str, Any]) -> Report:
    written = {key: Written(**each) for key, each in values["written"].items()}
    return Report(**{**values, "written": written})


def _wait_for_worker(client: Any, trial: Trial, deadline: float) -> str:
    """Wait for the worker; tell why it does not come whenever that changes."""
    keeper = getattr(client.cluster, "keeper", None)
    told = ""
    while True:
        workers = list(client.nthreads())
        if workers:
            return str(workers[0])
        if keeper is not None:
            keeper.look(1)
            reason = keeper.waiting()
            if reason != told:
                told = reason
                trial.tell(reason)
        if time.monotonic() > deadline:
            raise TooLate(
                f"no worker came within {trial.timeout:.0f} s. {told or 'No reason is known.'} "
                "Run it again with more patience: --timeout 3600; or ask for less"
            )
        time.sleep(LOOK_SECONDS)


def _wait_for_result(future: Any, client: Any, deadline: float) -> dict[str, Any]:
    keeper = getattr(client.cluster, "keeper", None)
    while not future.done():
        if keeper is not None:
            keeper.look(1)
        if time.monotonic() > deadline:
            raise TooLate("the worker came, but did not report in time. Run it with --timeout 3600")
        time.sleep(LOOK_SECONDS / 5)
    result: dict[str, Any] = future.result()
    return result


def _wait_for(path: Path, token: str) -> float | None:
    """Return after how many seconds a file of the job can be read here; None if never."""
    begin = time.monotonic()
    while time.monotonic() - begin < VISIBLE_SECONDS:
        try:
            if path.read_text() == token:
                return time.monotonic() - begin
        except OSError:
            pass
        time.sleep(0.05)
    return None
