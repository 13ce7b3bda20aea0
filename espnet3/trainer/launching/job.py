"""A training as a job of a scheduler: what its script is made of."""

import shlex
from dataclasses import dataclass
from pathlib import PurePath

from espnet3.schedulers import Scheduler, known_scheduler
from espnet3.schedulers.base import JobRequest
from espnet3.trainer.launching.launch_config import LaunchConfig


@dataclass(frozen=True)
class Job:
    """What a script is made of; all paths are absolute."""

    config: LaunchConfig
    name: str
    n_nodes: int
    n_processes: int
    """Of the training, on each node."""
    n_gpus: int
    """On each node."""
    n_threads: int
    """Of each process, beside the workers of its loader."""
    recipe_dir: str
    script: str
    """Where the script is, as seen from all nodes."""
    log: str
    python: str
    arguments: tuple[str, ...]
    """Of `run.py`: configs and overrides."""
    stages: tuple[str, ...] = ("train",)
    """Those beside `train` run before and after it, in one process."""

    @property
    def n_cpus(self) -> int:
        """Cores on each node."""
        return self.n_processes * self.config.cpus_per_task

    @property
    def scheduler(self) -> Scheduler:
        """Where it is submitted to."""
        return known_scheduler(self.config.scheduler)

    @property
    def request(self) -> JobRequest:
        """What the scheduler is asked for."""
        config = self.config
        return JobRequest(
            name=self.name,
            queue=config.queue or config.partition,
            account=config.account,
            n_nodes=self.n_nodes,
            n_tasks=1 if config.uses_torchrun else self.n_processes,
            n_cpus=self.n_cpus,
            n_gpus=self.n_gpus,
            megabytes=config.megabytes,
            seconds=config.seconds,
            time=config.time,
            log=self.scheduler_log,
            requeue=True,
            signal_seconds=config.signal_seconds,
            parallel_environment=config.parallel_environment,
            directives=config.directives,
        )

    @property
    def state(self) -> str:
        """What the files that a running job leaves beside its script begin with."""
        return str(PurePath(self.script).with_suffix(""))

    @property
    def scheduler_log(self) -> str:
        """What the scheduler itself writes, where that is not the log."""
        if self.scheduler.log_is_live:
            return self.log
        return str(PurePath(self.log).with_suffix(".scheduler.log"))

    @property
    def is_single(self) -> bool:
        """Whether the training is one process, which needs no launcher."""
        return self.n_nodes * self.n_processes == 1

    @property
    def submit_line(self) -> str:
        """What to type to submit the script."""
        return self.scheduler.submit_line(shlex.quote(self.script))
