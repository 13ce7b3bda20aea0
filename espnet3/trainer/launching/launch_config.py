"""The `launch` block: scheduler and resources of a training job."""

import re
from typing import TYPE_CHECKING, Any, Literal

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    field_validator,
    model_validator,
)

from espnet3.config.schema import FrozenConfig, validate
from espnet3.errors import ConfigError, suggest
from espnet3.schedulers import known_scheduler, scheduler_names, scheduler_of
from espnet3.text import first_control_character, has_control_characters, hms
from espnet3.trainer.launching.launch_check import INTERACTIVE

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_TIME = re.compile(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)")
_MEMORY = re.compile(r"(\d+)([KMGT])B?", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_]\w*")

EXAMPLE = 'launch: {scheduler: slurm, queue: gpu, time: "24:00:00", cpus_per_task: 8}'


class LaunchConfig(FrozenConfig):
    """Resources of a training job; nodes and processes are those of the `trainer` block."""

    scheduler: str
    """Batch system of the cluster: slurm, pbs, sge, lsf, or one of another package."""
    queue: str | None = None
    """Queue, which Slurm calls a partition; the scheduler's default if left out."""
    partition: str | None = None
    """Another word for `queue`."""
    account: str | None = None
    """Account to charge; the project on SGE and LSF."""
    time: str | None = None
    """Walltime, "HH:MM:SS" or "D-HH:MM:SS"."""
    cpus_per_task: PositiveInt = 1
    """Cores of each training process, for it and its loader's workers."""
    memory: str | None = None
    """Of each node, such as 64G."""
    job_name: str | None = None
    """That of the folder of the experiment if left out."""
    gpus: NonNegativeInt | None = None
    """GPUs of each node; those of `trainer.devices` if left out."""
    launcher: Literal["srun", "torchrun"] | None = None
    """What starts the processes in the job: srun on Slurm, torchrun elsewhere, if left out."""
    parallel_environment: str | None = None
    """Of SGE, needed there for more than one core: one that fills nodes one after the other."""
    setup: tuple[str, ...] = ()
    """Lines of shell before the training, such as `module load cuda`."""
    directives: tuple[str, ...] = ()
    """Further options of the scheduler, verbatim, such as `--constraint=a100`."""
    environment: dict[str, str | int | float] = Field(default_factory=dict)
    """Variables of the training processes; the values are taken as they are."""
    signal_seconds: PositiveInt = 120
    """How long before the end of the walltime the training writes its last checkpoint."""
    max_restarts: NonNegativeInt = 10
    """How often the job is requeued when its walltime is over."""
    log_dir: str | None = None
    """Folder of the logs; that of the job script if left out."""

    @field_validator("scheduler")
    @classmethod
    def _is_known(cls, name: str) -> str:
        scheduler = scheduler_of(name)
        if scheduler is None or not scheduler.launches:
            known = [each for each in scheduler_names() if known_scheduler(each).launches]
            raise ValueError(f"is not known.{suggest(name, known)} Known: {', '.join(known)}")
        return name

    @field_validator("time", mode="before")
    @classmethod
    def _is_quoted(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            spelled = hms(int(value))
            raise ValueError(
                f"{value} may be seconds or minutes (and plain YAML reads an unquoted {spelled} as "
                f'such a number); spell it out, and quote it: time: "{spelled}"'
            )
        return value

    @field_validator("time")
    @classmethod
    def _is_time(cls, value: str | None) -> str | None:
        if value is not None and not _TIME.fullmatch(value):
            raise ValueError('must be "HH:MM:SS" or "D-HH:MM:SS". Write, for a day: "24:00:00"')
        return value

    @field_validator("memory", mode="before")
    @classmethod
    def _has_unit(cls, value: Any) -> Any:
        if value is not None and not _MEMORY.fullmatch(str(value)):
            raise ValueError("must be a whole number with its unit. Write, such as: memory: 64G")
        return value

    @field_validator("environment")
    @classmethod
    def _are_names(cls, variables: dict[str, Any]) -> dict[str, Any]:
        wrong = [name for name in variables if not _VARIABLE.fullmatch(name)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no name of a variable. Write: NAME: value")
        return variables

    @field_validator("job_name")
    @classmethod
    def _is_no_shell(cls, name: str | None) -> str | None:
        if name in INTERACTIVE:
            raise ValueError(
                "Lightning takes jobs of that name for a shell and ignores srun. Write another: "
                f"job_name: train_{name}"
            )
        return name

    @field_validator("directives", "setup")
    @classmethod
    def _are_lines(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        lines = tuple(line.strip() for line in lines)
        wrong = [line for line in lines if has_control_characters(line.replace("\t", " "))]
        if wrong:
            raise ValueError(
                f"{wrong[0]!r} is more than one line, or has the control character "
                f"{first_control_character(wrong[0])!r}. Make each a list item"
            )
        return lines

    @field_validator(
        "queue", "partition", "account", "time", "memory", "job_name", "parallel_environment",
        "log_dir",
    )  # fmt: skip
    @classmethod
    def _stays_on_its_line(cls, value: str | None) -> str | None:
        """Refuse what would become a directive of its own."""
        if value is not None and has_control_characters(value):
            raise ValueError(
                f"it has the control character {first_control_character(value)!r}, and what "
                "follows a line break would be an option of its own. Write it on one line"
            )
        return value

    @model_validator(mode="after")
    def _agrees(self) -> "LaunchConfig":
        if self.queue and self.partition:
            raise ValueError("queue and partition are the same. Delete one of them")
        scheduler = known_scheduler(self.scheduler)
        if self.launcher == "srun" and not scheduler.starts_processes:
            raise ValueError(
                f"launcher is srun, which only Slurm has, but scheduler is {self.scheduler}. "
                "Write: launcher: torchrun"
            )
        if self.memory and scheduler.no_memory:
            raise ValueError(scheduler.no_memory)
        if self.seconds is not None and self.seconds <= self.signal_seconds:
            raise ValueError(
                f"time is {self.time}, no longer than the {self.signal_seconds} s of "
                "signal_seconds, so no step would be trained. Give more time"
            )
        return self

    @property
    def seconds(self) -> int | None:
        """The walltime."""
        match = _TIME.fullmatch(self.time or "")
        if match is None:
            return None
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds

    @property
    def megabytes(self) -> int | None:
        """The memory of a node."""
        match = _MEMORY.fullmatch(self.memory or "")
        if match is None:
            return None
        number, exponent = int(match[1]), "KMGT".index(match[2].upper()) - 1
        return max(1, number // 1024) if exponent < 0 else number * 1024**exponent

    @property
    def uses_torchrun(self) -> bool:
        """Whether torchrun starts the processes."""
        if self.launcher is not None:
            return self.launcher == "torchrun"
        return not known_scheduler(self.scheduler).starts_processes


def load_launch_config(loaded: "LoadedConfig") -> LaunchConfig:
    """Read the block.

    Raises:
        ConfigError: it is missing, or one error that lists every problem.
    """
    if loaded.config.get("launch") is None:
        files = " ".join(loaded.files)
        raise ConfigError(
            f"No file of {files} has a launch block.",
            fix=f"Name one that has, such as conf/launch_slurm.yaml, with: {EXAMPLE}",
        )
    return validate(LaunchConfig, loaded.config.launch, prefix="launch", loaded=loaded)
