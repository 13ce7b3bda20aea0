r"""A training as a job of a scheduler: the `launch` block, and the script in bash.

The script runs in up to three roles: as the job itself; as `node`, which starts torchrun on one
node; and as `rank`, which is one process of the training. A rank whose training ends with 75, "a
checkpoint is written, continue", leaves a file and ends with 0: so srun and torchrun do not kill
the other ranks, and the job knows what to do whatever codes those two make of it.
"""

import logging
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePath
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
from espnet3.schedulers import (
    CONTINUE_CODE,
    Scheduler,
    known_scheduler,
    scheduler_names,
    scheduler_of,
)
from espnet3.schedulers.base import JobRequest
from espnet3.schedulers.script import option_names, render_header
from espnet3.text import count, first_control_character, has_control_characters, hms
from espnet3.trainer.launching.launch_check import INTERACTIVE

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

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

    # Before the type check, which would ask for quotes around 64 and not for its unit.
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
        """Tell whether torchrun starts the processes."""
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


_LINE_ENDS = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
_KEYS = {
    "queue": "launch.queue", "account": "launch.account", "time": "launch.time",
    "megabytes": "launch.memory", "parallel_environment": "launch.parallel_environment",
    "n_nodes": "trainer.num_nodes", "n_tasks": "trainer.devices",
    "n_cpus": "launch.cpus_per_task", "n_gpus": "launch.gpus",
}  # fmt: skip
"""The settings from which the fields of a `JobRequest` follow."""


@dataclass(frozen=True)
class TrainingJob:
    """A training job, as its script describes it; all paths are absolute."""

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
        """The scheduler to submit to."""
        return known_scheduler(self.config.scheduler)

    @property
    def request(self) -> JobRequest:
        """Resources asked of the scheduler."""
        config = self.config
        return JobRequest(
            name=self.name,
            queue=config.queue or config.partition,
            account=config.account,
            n_nodes=self.n_nodes,
            # torchrun is one task on each node, and starts the processes there itself.
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
        """Prefix of the files that a running job leaves beside its script."""
        return str(PurePath(self.script).with_suffix(""))

    @property
    def scheduler_log(self) -> str:
        """Log of the scheduler itself, where that is not the job's log."""
        if self.scheduler.log_is_live:
            return self.log
        return str(PurePath(self.log).with_suffix(".scheduler.log"))

    @property
    def is_single(self) -> bool:
        """Tell whether the training is one process, which needs no launcher."""
        return self.n_nodes * self.n_processes == 1

    @property
    def submit_line(self) -> str:
        """Command that submits the script."""
        return self.scheduler.submit_line(shlex.quote(self.script))


def render(job: TrainingJob) -> str:
    """Return the text of the script.

    Raises:
        ConfigError: the options of the scheduler cannot be written; see `directive_lines`.
    """
    parts = [
        ["#!/bin/bash", *directive_lines(job)],
        _head(job),
        _rank_role(job),
        _set_up(job),
        _node_role(job),
        _main(job),
        _restart(job),
        _rest(job),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def directive_lines(job: TrainingJob) -> list[str]:
    """Return the options of a job; what `launch.directives` has as well is taken from there.

    Raises:
        ConfigError: `launch.directives` repeats what the `trainer` block says, or a path cannot
            stand in such a line.
    """
    scheduler, request = job.scheduler, job.request
    _refuse_repeated(job)
    made = [
        replace(
            each, key=_KEYS.get(each.key, ""), parts={k: _KEYS[v] for k, v in each.parts.items()}
        )
        for each in scheduler.directives(request)
    ]
    if wrong := next((each.text for each in made if has_control_characters(each.text)), None):
        raise ConfigError(
            f"{wrong!r} has a line break or another control character, which the options at the "
            "head of a job script cannot have.",
            fix="Write the logs elsewhere: launch.log_dir=FOLDER, and give a job_name",
        )
    header = render_header(scheduler, made, request.directives, "launch.directives")
    for note in header.notes:
        _warn_once(note)
    return header.lines


def _refuse_repeated(job: TrainingJob) -> None:
    for line in job.config.directives:
        for name in option_names(job.scheduler, line):
            if name in job.scheduler.fixed:
                key = _KEYS[job.scheduler.fixed[name]]
                raise ConfigError(
                    f"launch.directives has {name}, which follows from {key}.",
                    fix=f"Delete it there, and write the number once: {key}=N",
                )


@cache  # a script is rendered to be checked, and again to be written
def _warn_once(note: str) -> None:
    logger.warning("%s", note)


def _head(job: TrainingJob) -> list[str]:
    submit = job.submit_line
    return [
        f"# Written by espnet3 launch; to submit it again: {_LINE_ENDS.sub(' ', submit)}",
        f"script={_quoted(job.script)}",
        f"state={_quoted(job.state)}",
        f"python={_quoted(job.python)}",
        f"arguments=({' '.join(map(_quoted, job.arguments))})",
        "# A restarted job resumes from last.ckpt, whatever the first one started from.",
        '[ ! -f "$state.restarts" ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ] ||',
        "  arguments+=(resume=auto fit.ckpt_path=null)",
    ]


def _rank_role(job: TrainingJob) -> list[str]:
    run = '"$python" run.py --stages train "${arguments[@]}"'
    if _has_timer(job):
        run = f'timeout --foreground --preserve-status --signal=USR1 "$left" {run}'
    return [
        'if [ "${1-}" = rank ]; then # one process of the training',
        "  trap '' USR1 # else the training would die of it before it listens",
        "  trap : TERM INT # wait for the training, which writes a checkpoint first",
        *(_time_left() if _has_timer(job) else ()),
        f"  {run}",
        "  code=$?",
        f'  [ "$code" = {CONTINUE_CODE} ] && : >"$state.continue" && exit 0',
        "  # If several fail, the first has the reason; srun ends the others, torchrun returns 1.",
        '  [ "$code" = 0 ] || (set -C; echo "$code" >"$state.failed") 2>/dev/null',
        '  exit "$code"',
        "fi",
    ]


def _time_left() -> Iterator[str]:
    yield "  left=$((ESPNET3_SIGNAL_AT - $(date +%s)))"
    yield '  [ "$left" -gt 0 ] || left=1'


def _set_up(job: TrainingJob) -> list[str]:
    variables: dict[str, object] = {
        "OMP_NUM_THREADS": job.n_threads,
        "PYTHONUNBUFFERED": 1,
        **job.config.environment,
    }
    to_log = '[ -n "${1-}" ] || exec >>' + f"{_quoted(job.log)} 2>&1"
    return [
        *([] if job.scheduler.log_is_live else [to_log]),
        f"cd {_quoted(job.recipe_dir)} || exit 1",
        *(f"export {name}={_quoted(str(value))}" for name, value in variables.items()),
        *job.config.setup,
    ]


def _node_role(job: TrainingJob) -> list[str]:
    if not job.config.uses_torchrun or job.is_single:
        return []
    rendezvous = ["--standalone"]
    if job.n_nodes > 1:
        rendezvous = ["--rdzv-backend=c10d", '--rdzv-endpoint="$2"', '--rdzv-id="$2"']
    return [
        'if [ "${1-}" = node ]; then # all processes of one node',
        "  trap '' USR1 # torchrun would die of it, and all its processes with it",
        *(['  export ESPNET3_SIGNAL_AT="$3"'] if _has_timer(job) else []),
        f'  exec "$python" -m torch.distributed.run --nnodes={job.n_nodes} '
        f"--nproc-per-node={job.n_processes} \\",
        f'    {" ".join(rendezvous)} --no-python bash "$script" rank',
        "fi",
    ]


def _main(job: TrainingJob) -> list[str]:
    position = job.stages.index("train")
    alone = 'alone() { "$python" run.py --stages "$1" "${arguments[@]}" || exit; }'
    return [
        "trap : TERM # as above",
        *([alone] if len(job.stages) > 1 else []),
        *(f"alone {_quoted(stage)}" for stage in job.stages[:position]),
        'rm -f "$state.continue" "$state.failed"',
        *(_run_by_scheduler(job) if job.scheduler.starts_processes else _run(job)),
        '[ "$code" = 0 ] || [ ! -s "$state.failed" ] || code=$(cat "$state.failed")',
    ]


def _run_by_scheduler(job: TrainingJob) -> Iterator[str]:
    role = "node" if job.config.uses_torchrun and not job.is_single else "rank"
    yield from job.scheduler.start_lines(job.request, role)
    yield "code=$?"


def _run(job: TrainingJob) -> Iterator[str]:
    if _has_timer(job):
        seconds = (job.config.seconds or 0) - job.config.signal_seconds
        yield f"export ESPNET3_SIGNAL_AT=$(($(date +%s) + {seconds}))"
    if job.n_nodes > 1:
        yield from _run_on_nodes(job)
        return
    role = "rank" if job.is_single else 'node "" "${ESPNET3_SIGNAL_AT-}"'
    yield f'bash "$script" {role}'
    yield "code=$?"


def _run_on_nodes(job: TrainingJob) -> Iterator[str]:
    scheduler = job.scheduler
    yield f"mapfile -t hosts < <({scheduler.hosts})"
    yield f'if [ "${{#hosts[@]}}" != {job.n_nodes} ]; then'
    yield (
        f'  echo "espnet3: trainer.num_nodes is {job.n_nodes}, but the number of '
        'nodes of the job is ${#hosts[@]}: ${hosts[*]}" >&2'
    )
    yield "  exit 1"
    yield "fi"
    yield f"remote() {{ {scheduler.remote}; }}"
    # A port by the number of the job, as two jobs may share their first node.
    yield f"endpoint=${{hosts[0]}}:$((20000 + {scheduler.number_in_shell} % 20000))"
    yield 'command=(bash "$script" node "$endpoint" "${ESPNET3_SIGNAL_AT-}")'
    yield '"${command[@]}" &'
    yield "processes=($!)"
    yield 'for host in "${hosts[@]:1}"; do'
    yield '  remote "$host" "${command[@]}" </dev/null &'
    yield "  processes+=($!)"
    yield "done"
    yield "code=0"
    yield 'for process in "${processes[@]}"; do'
    yield '  wait "$process"; status=$?'
    yield '  while kill -0 "$process" 2>/dev/null; do wait "$process"; status=$?; done # after TERM'
    yield '  [ "$code" != 0 ] || code=$status'
    yield "done"


def _restart(job: TrainingJob) -> list[str]:
    submit = job.submit_line
    limit = job.config.max_restarts
    return [
        f'if [ -f "$state.continue" ] || [ "$code" = {CONTINUE_CODE} ]; then',
        '  n=$(($(cat "$state.restarts" 2>/dev/null || echo 0) + 1))',
        f'  if [ "$n" -gt {limit} ]; then',
        '    echo 0 >"$state.restarts" # a new submission starts counting again',
        f"    echo {_quoted(_enough(limit, submit))} >&2",
        f"    exit {CONTINUE_CODE}",
        "  fi",
        f'  echo "$n" >"$state.restarts" || exit {CONTINUE_CODE} # else it would never end',
        f'  echo "espnet3: walltime reached; restart $n of {limit} resumes from the checkpoint"',
        *(f"  {line}" for line in _queue_again(job)),
        "fi",
        '[ "$code" != 0 ] || rm -f "$state.restarts"',
    ]


def _queue_again(job: TrainingJob) -> Iterator[str]:
    if (code := job.scheduler.requeue_code) is not None:
        yield f"exit {code} # {job.scheduler.title} then queues it again"
        return
    yield from job.scheduler.requeue_lines()
    stuck = (
        f"espnet3: the job could not be requeued. To resume from the checkpoint: {job.submit_line}"
    )
    yield f"echo {_quoted(stuck)} >&2"
    yield f"exit {CONTINUE_CODE}"


def _enough(limit: int, submit: str) -> str:
    return (
        f"espnet3: time is up, and the job was restarted {count(limit, 'time')}, which is "
        f"launch.max_restarts. A checkpoint is written; to continue: {submit}"
    )


def _rest(job: TrainingJob) -> list[str]:
    position = job.stages.index("train")
    after = [f"alone {_quoted(stage)}" for stage in job.stages[position + 1 :]]
    if not after:
        return ['exit "$code"']
    return ['[ "$code" = 0 ] || exit "$code"', *after]


def _has_timer(job: TrainingJob) -> bool:
    """Tell whether the script has to send the signal, in place of the scheduler."""
    return not job.scheduler.sends_signal and job.config.seconds is not None


def _quoted(text: str) -> str:
    """Return a word of bash that stays on its line.

    Grid Engine takes a line that begins with `#$` for an option wherever it is, also in quotes.
    """
    if not _LINE_ENDS.search(text):
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    # All three digits, or bash would take a digit that follows for a part of the number.
    return f"$'{_LINE_ENDS.sub(lambda match: f'{chr(92)}{ord(match[0]):03o}', escaped)}'"
