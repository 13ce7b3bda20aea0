"""The options of a job at the head of its script, in the words of each scheduler."""

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from espnet3.errors import ConfigError
from espnet3.io.job_header import Made, merge_directives, option_names
from espnet3.text import has_control_characters, hms
from espnet3.trainer.launching.job import Job
from espnet3.trainer.launching.launch_config import LaunchConfig

logger = logging.getLogger(__name__)

RESTART_CODE = 99
"""With which a job of SGE or LSF asks to be queued again."""

_PLAIN = re.compile(r"[\w./+,@%=:-]+")
_WRITTEN_ONCE = {
    "--nodes": "trainer.num_nodes", "--ntasks": "trainer.devices",
    "--ntasks-per-node": "trainer.devices", "--cpus-per-task": "launch.cpus_per_task",
}  # fmt: skip
_SETTINGS = {
    "--partition": "queue", "--account": "account", "--time": "time", "--mem": "memory",
    "-q": "queue", "-A": "account", "-P": "account", "-l walltime": "time", "-l h_rt": "time",
    "-W": "time", "-R mem": "memory", "-pe": "parallel_environment",
}  # fmt: skip
_CHUNK = {
    "": "trainer.num_nodes", "ncpus": "launch.cpus_per_task", "ngpus": "launch.gpus",
    "mem": "launch.memory",
}  # fmt: skip
_WHERE = "launch.directives"
_MAX_NAME = 15  # of older PBS


@dataclass(frozen=True)
class _Scheduler:
    mark: str
    options: Callable[[Job], Iterator[str]]


def directive_lines(job: Job) -> list[str]:
    """Return the lines; what `launch.directives` has as well is taken from there.

    Raises:
        ConfigError: `launch.directives` repeats what the `trainer` block says, or a path cannot
            stand in such a line.
    """
    scheduler, env, own = _SCHEDULERS[job.config.scheduler], job.config.scheduler, job.config
    if env == "slurm":
        _refuse_repeated([name for line in own.directives for name in option_names(env, line)])
    made = [_made(env, line) for line in scheduler.options(job)]
    header = merge_directives(env, made, own.directives, _WHERE)
    for note in header.notes:
        _warn_once(note)
    return [f"{scheduler.mark} {line}" for line in header.lines]


@cache  # a script is rendered to be checked, and again to be written
def _warn_once(note: str) -> None:
    logger.warning("%s", note)


def _made(env: str, line: str) -> Made:
    """Return an option with the settings that it follows from."""
    name = option_names(env, line)[0]
    key = f"launch.{_SETTINGS[name]}" if name in _SETTINGS else ""
    return Made(line, key, _CHUNK if name == "-l select" else {})


def _refuse_repeated(names: list[str]) -> None:
    for name in names:
        if name in _WRITTEN_ONCE:
            key = _WRITTEN_ONCE[name]
            raise ConfigError(
                f"launch.directives has {name}, which follows from {key}. Delete it there, and "
                f"write the number once: {key}=N"
            )


def _slurm(job: Job) -> Iterator[str]:
    config = job.config
    per_node = 1 if config.uses_torchrun else job.n_processes
    yield f"--job-name={_word(job.name)}"
    yield from _optional("--partition={}", _queue(config))
    yield from _optional("--account={}", config.account)
    yield f"--nodes={job.n_nodes}"
    yield f"--ntasks-per-node={per_node}"
    yield f"--cpus-per-task={job.n_cpus // per_node}"
    if job.n_gpus:
        yield f"--gres=gpu:{job.n_gpus}"
    if config.megabytes is not None:
        yield f"--mem={config.megabytes}M"
    yield from _optional("--time={}", config.time)
    # To the processes of srun and not, as with B:, to the script.
    yield f"--signal=USR1@{config.signal_seconds}"
    yield "--requeue"
    yield "--open-mode=append"
    # Slurm would replace %j and the like.
    yield f"--output={_word(job.log.replace('%', '%%'))}"


def _pbs(job: Job) -> Iterator[str]:
    config = job.config
    yield f"-N {_safe_name(job.name)[:_MAX_NAME]}"
    yield from _optional("-q {}", _queue(config))
    yield from _optional("-A {}", config.account)
    gpus = f":ngpus={job.n_gpus}" if job.n_gpus else ""
    memory = f":mem={config.megabytes}mb" if config.megabytes is not None else ""
    yield f"-l select={job.n_nodes}:ncpus={job.n_cpus}{gpus}{memory}:mpiprocs=1"
    if job.n_nodes > 1:
        yield "-l place=scatter"
    if config.seconds is not None:
        yield f"-l walltime={hms(config.seconds)}"
    yield from ("-V", "-r y", "-j oe", f"-o {_word(_no_colon(job.scheduler_log))}")


def _sge(job: Job) -> Iterator[str]:
    config = job.config
    n_slots = job.n_nodes * job.n_cpus
    yield from (f"-N {_safe_name(job.name)}", "-S /bin/bash")
    yield from _optional("-q {}", _queue(config))
    yield from _optional("-P {}", config.account)
    if config.parallel_environment:
        yield f"-pe {config.parallel_environment} {n_slots}"
    elif n_slots > 1 and not any("-pe" in line.split() for line in config.directives):
        raise ConfigError(
            f"The job needs {n_slots} slots of SGE, and SGE gives more than one only in a parallel "
            "environment, which launch.parallel_environment does not name. See qconf -spl, and "
            "write under launch: parallel_environment: NAME"
        )
    if config.seconds is not None:
        yield f"-l h_rt={hms(config.seconds)}"
    if job.n_gpus and not any("gpu" in line for line in config.directives):
        yield f"-l gpu={job.n_gpus}"
    yield from ("-V", "-r y", "-j y", f"-o {_word(_no_colon(job.scheduler_log))}")


def _lsf(job: Job) -> Iterator[str]:
    config = job.config
    yield f"-J {_safe_name(job.name)}"
    yield from _optional("-q {}", _queue(config))
    yield from _optional("-P {}", config.account)
    yield f"-n {job.n_nodes * job.n_cpus}"
    yield f'-R "span[ptile={job.n_cpus}]"'
    if job.n_gpus:
        yield f'-gpu "num={job.n_gpus}"'
    if config.megabytes is not None:
        yield f'-R "rusage[mem={config.megabytes}MB]"'
    if config.seconds is not None:
        minutes = -(-config.seconds // 60)
        yield f"-W {minutes // 60}:{minutes % 60:02d}"
    yield from ("-r", f"-Q {RESTART_CODE}", f"-o {_word(job.scheduler_log)}")


_SCHEDULERS = {
    "slurm": _Scheduler("#SBATCH", _slurm),
    "pbs": _Scheduler("#PBS", _pbs),
    "sge": _Scheduler("#$", _sge),
    "lsf": _Scheduler("#BSUB", _lsf),
}


def _queue(config: LaunchConfig) -> str | None:
    return config.queue or config.partition


def _optional(form: str, value: str | None) -> Iterator[str]:
    if value:
        yield form.format(_word(value))


def _word(text: str) -> str:
    """Quote a value as all four read it in such a line: in double quotes.

    Raises:
        ConfigError: no quotes help.
    """
    if _PLAIN.fullmatch(text):
        return text
    if has_control_characters(text):
        raise ConfigError(
            f"{text!r} has a line break or another control character, which the options at the "
            "head of a job script cannot have. Write the logs elsewhere: launch.log_dir=FOLDER, "
            "and give a job_name"
        )
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _no_colon(path: str) -> str:
    if ":" in path:
        raise ConfigError(
            f"The log {path!r} has a colon, before which PBS and SGE expect the name of a host. "
            "Write the logs elsewhere: launch.log_dir=FOLDER"
        )
    return path


def _safe_name(name: str) -> str:
    """Return a name that all accept: letters first, and nothing but letters, digits, `_.+-`."""
    safe = re.sub(r"[^A-Za-z0-9_.+-]", "_", name)
    return safe if safe[:1].isalpha() else f"j{safe}"
