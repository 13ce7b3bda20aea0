"""Write the job script of a training, and submit it."""

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import names_places, place_of
from espnet3.errors import ConfigError, ResourceError, RunFolderError
from espnet3.io.atomic import folder_trouble
from espnet3.schedulers import UnansweredError
from espnet3.trainer.config import n_loader_workers
from espnet3.trainer.launching.job_script import (
    LaunchConfig,
    TrainingJob,
    load_launch_config,
    render,
)
from espnet3.trainer.trainer_block import read_devices, read_nodes, trainer_block

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_ON_GPUS = ("gpu", "cuda", "auto", None)
_PLAIN_PATH = re.compile(r"[\w./+,@%=:-]+")


@dataclass(frozen=True)
class Follow:
    """Commands to look after a job."""

    log: str
    state: str
    cancel: str


@names_places
def plan_job(
    loaded: "LoadedConfig",
    arguments: tuple[str, ...],
    *,
    recipe_dir: str | Path,
    stages: tuple[str, ...] = ("train",),
    python: str = sys.executable,
) -> TrainingJob:
    """Return the job that trains what a config describes; nothing is written.

    Args:
        loaded: the training config with its `launch` block.
        arguments: of `run.py`, that give it the same config.
        recipe_dir: the folder of `run.py`.
        stages: to run; those beside `train` in one process.
        python: the interpreter, at the same path on all nodes.

    Raises:
        ConfigError: the `launch` and `trainer` blocks are wrong or do not fit.
    """
    config = load_launch_config(loaded)
    block = trainer_block(loaded)
    n_processes = _processes(block, config)
    exp_dir = Path(os.path.abspath(os.path.join(recipe_dir, str(loaded.config.exp_dir))))
    script = exp_dir / "launch" / f"{time.strftime('%Y%m%d-%H%M%S')}.sh"
    log_dir = os.path.join(recipe_dir, config.log_dir) if config.log_dir else script.parent
    job = TrainingJob(
        config=config,
        name=config.job_name or exp_dir.name,
        n_nodes=read_nodes(block),
        n_processes=n_processes,
        n_gpus=_gpus(block, config, n_processes),
        n_threads=max(1, config.cpus_per_task - n_loader_workers(loaded.config.get("dataloader"))),
        recipe_dir=os.path.abspath(recipe_dir),
        script=str(script),
        log=os.path.join(os.path.abspath(log_dir), f"{script.stem}.log"),
        python=python,
        arguments=arguments,
        stages=stages,
    )
    _check_paths(job)
    return job


def _processes(block: Mapping[str, Any], config: LaunchConfig) -> int:
    devices = read_devices(block)
    if isinstance(devices, list):
        if devices != list(range(len(devices))):
            raise ConfigError(
                key="trainer.devices",
                value=block["devices"],
                problem="but a job has GPUs of its own, counted from 0",
                fix=f"Write: devices: {len(devices)}",
            )
        return len(devices)
    if devices is None and block.get("accelerator") == "cpu":
        return 1
    if devices is None and config.gpus:
        return config.gpus
    if devices is None:
        raise ConfigError(
            key="trainer.devices",
            value=block.get("devices", "auto"),
            problem="but a job must say how many GPUs it needs on each node",
            fix="Write under trainer: devices: 4",
        )
    return devices


def _gpus(block: Mapping[str, Any], config: LaunchConfig, n_processes: int) -> int:
    accelerator = block.get("accelerator")
    if config.gpus is None:
        return n_processes if accelerator in _ON_GPUS else 0
    if accelerator in ("gpu", "cuda") and config.gpus < n_processes:
        raise ConfigError(
            key="launch.gpus",
            value=config.gpus,
            problem=f"but trainer.devices is {n_processes}{place_of('trainer.devices')}",
            fix="Delete launch.gpus: it follows from trainer.devices",
        )
    return config.gpus


def _check_paths(job: TrainingJob) -> None:
    if not Path(job.recipe_dir, "run.py").is_file():
        raise ConfigError(f"{job.recipe_dir} has no run.py.", fix="Name a config of a recipe")
    is_remote = not job.scheduler.starts_processes and job.n_nodes > 1
    if is_remote and not job.scheduler.hosts:
        raise ConfigError(
            f"trainer.num_nodes is {job.n_nodes}, but how a job of {job.scheduler.title} starts "
            "processes on other nodes is not known.",
            fix="Write under trainer: num_nodes: 1",
        )
    if is_remote and not _PLAIN_PATH.fullmatch(job.script):
        # ssh and qrsh hand words to a shell, blaunch does not: no quoting is right for all.
        raise ConfigError(
            f"The job script {job.script!r} is to be started on several nodes, and its path has "
            "characters that a shell would change.",
            fix="Choose another folder: exp_dir=FOLDER",
        )


def write_script(job: TrainingJob) -> TrainingJob:
    """Write the script, which only its owner may read: the environment may hold secrets.

    Returns:
        The job, with another name of its files if another script has that of the same second.

    Raises:
        RunFolderError: the folder of the experiment cannot be written to.
    """
    try:
        for folder in (Path(job.script).parent, Path(job.log).parent):
            folder.mkdir(parents=True, exist_ok=True)
        for candidate in _numbered(job):
            text = render(candidate)
            try:
                # Created, never replaced: a launch of the same second may have this name.
                descriptor = os.open(candidate.script, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
            except FileExistsError:
                continue
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            return candidate
    except OSError as error:
        raise RunFolderError(
            f"The job script cannot be written to {job.script}: {folder_trouble(error)}.",
            fix="Make room or choose another folder: exp_dir=FOLDER",
        ) from error
    raise AssertionError("the numbers are endless")


def _numbered(job: TrainingJob) -> Iterator[TrainingJob]:
    yield job
    number = 2
    while True:
        script, log = Path(job.script), Path(job.log)
        yield replace(
            job,
            script=str(script.with_stem(f"{script.stem}-{number}")),
            log=str(log.with_stem(f"{log.stem}-{number}")),
        )
        number += 1


def submit(job: TrainingJob) -> str:
    """Submit a written script.

    Returns:
        The id of the job.

    Raises:
        ResourceError: the scheduler's command is not here, or refuses the job.
    """
    scheduler, by_hand = job.scheduler, job.submit_line
    command = scheduler.submit[0]
    if shutil.which(command) is None:
        raise ResourceError(
            f"launch.scheduler is {job.config.scheduler!r}, but there is no {command} on this "
            f"machine. The script is written; where {command} works, type: {by_hand}"
        )
    try:
        return scheduler.submit_script(
            job.script, words=[*scheduler.submit, *scheduler.terse], folder=job.recipe_dir
        )
    # The scheduler may have taken it: submitted blindly again, two jobs would train in one folder.
    except UnansweredError as error:
        look = scheduler.status_command
        raise ResourceError(
            f"{error}. Look whether the job is there: {look} ; if it is not: {by_hand}"
        ) from error
    except ResourceError as error:
        advice = scheduler.advise_on_refusal(str(error))
        raise ResourceError(
            f"{error}\n{advice + '. ' if advice else ''}Mend the launch block and launch again; or "
            f"edit the script and type: {by_hand}"
        ) from error


def follow(job: TrainingJob, job_id: str) -> Follow:
    """Return the lines to type to look after a submitted job."""
    scheduler = job.scheduler
    tail = f"tail -F {shlex.quote(job.log)}"
    return Follow(tail, scheduler.status_line(job_id), scheduler.cancel_line(job_id))
