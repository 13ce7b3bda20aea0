"""A cluster class of dask-jobqueue for a scheduler that it does not know."""

import math
import shlex
from dataclasses import replace
from functools import cache
from typing import Any

from espnet3.schedulers import Scheduler
from espnet3.schedulers.base import JobRequest, Made

_DEFAULTS: dict[str, Any] = {
    "name": "dask-worker", "cores": None, "memory": None, "processes": None, "python": None,
    "interface": None, "death-timeout": 60, "local-directory": None, "extra": None,
    "shared-temp-directory": None, "worker-command": "distributed.cli.dask_worker",
    "worker-extra-args": [], "shebang": "#!/usr/bin/env bash", "queue": None, "account": None,
    "walltime": None, "env-extra": None, "job-script-prologue": [], "job-extra": None,
    "job-extra-directives": [], "job-directives-skip": [], "log-directory": None,
    "scheduler-options": {},
}  # fmt: skip
"""What dask-jobqueue looks up for each of its own schedulers."""
_SETTINGS = {
    "queue": "queue", "account": "account", "time": "walltime", "n_cpus": "cores",
    "megabytes": "memory",
}  # fmt: skip
"""Options from which the fields of a `JobRequest` follow."""


@cache
def generic_cluster(scheduler: Scheduler) -> Any:
    """Return a cluster class whose jobs have the directives that a scheduler's class yields.

    Its options are those that all classes of dask-jobqueue share, and queue, account and walltime.
    """
    import dask
    from dask_jobqueue import core

    job_class: Any = core.Job
    dask.config.update_defaults({"jobqueue": {scheduler.name: _DEFAULTS}})
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
