"""Clusters of dask-jobqueue: single jobs for a monitor, and schedulers that it does not know."""

import asyncio
import itertools
import math
import shlex
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from espnet3.logs import quiet
from espnet3.parallel.clusters.dask_config import DEFAULTS
from espnet3.parallel.clusters.job_logs import find_log
from espnet3.schedulers import Scheduler
from espnet3.schedulers.base import JobRequest, Made
from espnet3.text import count

_SETTINGS = {
    "queue": "queue", "account": "account", "time": "walltime", "n_cpus": "cores",
    "megabytes": "memory",
}  # fmt: skip
"""Options from which the fields of a `JobRequest` follow."""


@dataclass(frozen=True)
class Change:
    """Result of submitting jobs."""

    job_ids: dict[str, str] = field(default_factory=dict)
    """By the names of their workers; without those that were refused."""
    error: str = ""


@dataclass(frozen=True)
class ConnectedWorker:
    """A worker that the scheduler of Dask counts as there."""

    name: str
    silent: float
    """Seconds since it was last heard of."""


class JobCluster:
    """Protocol of a started `JobQueueCluster`, for the monitor of its jobs."""

    def __init__(self, cluster: Any, scheduler: Scheduler) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._numbers = itertools.count()
        self._new: list[str] = []
        self._running: Future[None] | None = None

    @property
    def n_processes(self) -> int:
        """Number of workers that one job starts."""
        return len(self._cluster.new_spec.get("group", ["one"]))

    def workers(self) -> dict[str, ConnectedWorker]:
        """Return the workers that are there, by address."""

        # In the event loop, whose thread changes this table.
        async def read() -> dict[str, ConnectedWorker]:
            now = time.time()
            states = self._cluster.scheduler.workers.values()
            return {
                each.address: ConnectedWorker(str(each.name), now - each.last_seen)
                for each in states
            }

        found: dict[str, ConnectedWorker] = self._cluster.sync(read)
        return found

    def change(self, *, drop: list[str], n_more: int) -> list[str]:
        """Begin to cancel the jobs of some names and to submit more; return the new names."""
        for name in drop:
            self._cluster.worker_spec.pop(name, None)
        # Not the cluster's own numbers: it would use that of a lost job again, whose worker may
        # still be there, and two workers of one name are refused.
        numbers = itertools.islice(self._numbers, n_more)
        self._new = [self._cluster._new_worker_name(number) for number in numbers]
        self._cluster.worker_spec.update(dict.fromkeys(self._new, self._cluster.new_spec))
        loop = self._cluster.loop.asyncio_loop
        self._running = asyncio.run_coroutine_threadsafe(self._correct_state(), loop)
        return self._new

    async def _correct_state(self) -> None:
        # Not cluster.scale(): it submits in the background and drops refusals.
        # And shielded, because what Ctrl-C interrupts is cancelled, and job ids forgotten.
        await asyncio.shield(self._cluster._correct_state())

    def wait(self) -> Change:
        """Wait for the last change."""
        if self._running is not None:
            with suppress(Exception):  # `outcome` tells
                self._running.result()
        return self.outcome() or Change()

    def outcome(self) -> Change | None:
        """Return what became of the last change, once it is known; None before, and afterwards."""
        if self._running is None or not self._running.done():
            return None
        error = self._running.exception()
        self._running = None
        workers = self._cluster.workers
        found = {name: workers[name].job_id for name in self._new if name in workers}
        for name in [name for name, job_id in found.items() if not job_id]:
            self._cluster.worker_spec.pop(name, None)  # refused; not to be tried again unasked
        return Change(
            {name: str(job_id) for name, job_id in found.items() if job_id},
            str(error) or repr(error) if error else "",
        )

    def remove_worker(self, address: str) -> None:
        """Let Dask forget a worker, and tell that to end."""
        scheduler = self._cluster.scheduler
        stimulus = f"espnet3-remove-{time.time()}"
        self._cluster.sync(scheduler.remove_worker, address, stimulus_id=stimulus)

    def find_log(self, job_id: str) -> Path | None:
        """Return the file that a job writes to."""
        folder = self._cluster._job_kwargs.get("log_directory")
        return find_log([Path(folder) if folder else Path.cwd()], job_id, self._scheduler)


def kept_cluster_class(cluster_class: Any) -> Any:
    """Return a cluster class whose lost jobs are left to a monitor."""
    from distributed.deploy.spec import SpecCluster

    class Cluster(cluster_class):
        monitor: Any = None

        def _update_worker_status(self, op: str, msg: Any) -> None:
            # Not SpecCluster's: it cancels a job 15 s after its worker has left, also one that
            # the scheduler has put back into the queue.
            super(SpecCluster, self)._update_worker_status(op, msg)  # type: ignore[misc]

        async def _close(self) -> None:
            with quiet("distributed"):
                await super()._close()
            if self.monitor is not None:
                # Cancelled before, but not seen to end: scancel itself may have failed.
                job = self._dummy_job
                closing = [
                    job._close_job(job_id, job.cancel_command)
                    for job_id in self.monitor.not_seen_to_end()
                ]
                await asyncio.gather(*closing)

        def left_behind(self) -> str:
            """Say which jobs may still be there, and how to cancel them."""
            job_ids = [each.job_id for each in list(self.workers.values()) if each.job_id]
            if self.monitor is not None:
                job_ids += self.monitor.not_seen_to_end()
            if not job_ids:
                return "No job is left."
            command = f"{self._dummy_job.cancel_command} {' '.join(map(str, job_ids))}"
            return f"{count(len(job_ids), 'job')} may still be there. Cancel: {command}"

    Cluster.__name__ = cluster_class.__name__  # workers are named after it
    return Cluster


@cache
def generic_cluster(scheduler: Scheduler) -> Any:
    """Return a cluster class whose jobs have the directives that a scheduler's class yields.

    Its options are those that all classes of dask-jobqueue share, and queue, account and walltime.
    """
    import dask
    from dask_jobqueue import core

    job_class: Any = core.Job
    dask.config.update_defaults({"jobqueue": {scheduler.name: dict(DEFAULTS)}})
    own = scheduler  # in `__init__`, the name is that of Dask's scheduler

    class GenericJob(job_class):
        submit_command = shlex.join(own.submit)
        cancel_command = shlex.join(own.cancel)
        config_name = own.name

        def __init__(
            self,
            scheduler: Any = None,
            name: str | None = None,
            queue: str | None = None,
            account: str | None = None,
            walltime: str | None = None,
            config_name: str | None = None,
            **others: Any,
        ) -> None:
            super().__init__(scheduler=scheduler, name=name, config_name=config_name, **others)

            def chosen(option: str, value: str | None) -> str | None:
                found = dask.config.get(f"jobqueue.{self.config_name}.{option}", None)
                return found if value is None else value

            time = chosen("walltime", walltime)
            seconds = own.parse_time(str(time)) if time is not None else None
            request = JobRequest(
                name=str(self.job_name),
                queue=chosen("queue", queue),
                account=chosen("account", account),
                n_cpus=int(self.worker_cores),
                # Rounded up: schedulers end a job whose worker uses more than was asked for.
                megabytes=math.ceil(self.worker_memory / 2**20),
                seconds=None if seconds is None else math.ceil(seconds),
                time=time,
                log=_log(own, self.log_directory, str(self.job_name)),
                directives=tuple(map(str, self.job_extra_directives)),
            )
            self.made = [
                replace(each, key=_key(each, given={**others, **_given(queue, account, walltime)}))
                for each in own.directives(request)
                if not any(skip in each.text for skip in self.job_directives_skip)
            ]
            lines = [each.text for each in self.made] + list(request.directives)
            self.job_header = "\n".join(f"{own.mark} {line}" for line in lines)

    class GenericCluster(core.JobQueueCluster):
        job_cls = GenericJob

    GenericJob.__name__, GenericCluster.__name__ = f"{own.title}Job", f"{own.title}Cluster"
    return GenericCluster


def _given(queue: Any, account: Any, walltime: Any) -> dict[str, Any]:
    return {"queue": queue, "account": account, "walltime": walltime}


def _key(made: Made, given: dict[str, Any]) -> str:
    """Return the user's option that a directive follows from; empty if it is a default."""
    name = _SETTINGS.get(made.key, "")
    return f"parallel.options.{name}" if given.get(name) is not None else ""


def _log(scheduler: Scheduler, folder: str | None, name: str) -> str | None:
    number = f"-{scheduler.number_in_path}" if scheduler.number_in_path else ""
    return None if folder is None else f"{folder}/{name}{number}.out"
