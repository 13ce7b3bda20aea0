"""Environment variables that let a job run the driver's code."""

import os
import shlex
import string
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.parallel.clusters.gpu_pinning import REQUESTED, WORKERS
from espnet3.parallel.clusters.gpus import VARIABLE
from espnet3.parallel.clusters.requested import gpus_per_job
from espnet3.parallel.process_pool import THREAD_VARIABLES
from espnet3.schedulers import JOB_ID, NODE_NAME, OWN_SCHEDULERS, Scheduler
from espnet3.text import has_control_characters

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

_PLAIN = frozenset(string.ascii_letters + string.digits + "/._-%")


def prologue(config: "ParallelConfig", scheduler: Scheduler, *, n_workers: int) -> list[str]:
    """Return shell lines for the job script, to follow the user's own, which they respect.

    Args:
        config: of the workers.
        scheduler: of the job.
        n_workers: how many share a job.
    """
    lines = [f"cd {shell_folder(os.getcwd())}"] if scheduler.starts_elsewhere else []
    if folders := _module_folders():
        path = shlex.quote(os.pathsep.join(folders))
        lines.append(f"export PYTHONPATH=${{PYTHONPATH:+$PYTHONPATH:}}{path}")
    n_threads = _threads(config, n_workers)
    if n_threads:  # Dask's nanny would set them to 1, but leaves alone what it finds
        lines += [f"export {name}=${{{name}:-{n_threads}}}" for name in THREAD_VARIABLES]
    if scheduler.name not in OWN_SCHEDULERS:  # so that a worker need not look for its class
        lines.append(f"export {JOB_ID}={scheduler.number_word}")
        if scheduler.node_variable:
            lines.append(f'export {NODE_NAME}="${scheduler.node_variable}"')
    if n_workers > 1:
        lines.append(f"export {WORKERS}={n_workers}")
    if not scheduler.sets_gpus and (n_gpus := gpus_per_job(config)):
        lines.append(f"export {REQUESTED}={n_gpus}")
    return lines


def shell_folder(folder: str) -> str:
    r"""Return a folder as a word of a shell that stays on its line.

    Some schedulers look for their options in every line of a script, also inside quotes, and a
    submit file of HTCondor has one line for all.
    """
    if not has_control_characters(folder):
        return shlex.quote(folder)
    # With `/.`, because line breaks at the end would be dropped.
    data = (os.fsencode(folder) + b"/.").replace(b"%", b"%%")
    octal = (chr(c) if chr(c) in _PLAIN else f"\\{c:03o}" for c in data)
    return f"\"`printf '{''.join(octal)}'`\""  # $(...) would be a macro of HTCondor


def submission_environment() -> dict[str, str]:
    """Return the environment in which to submit jobs: it travels to the nodes.

    GPUs of this machine are none of theirs. Where the scheduler sets no others, all jobs would
    see the same ones.
    """
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


def _threads(config: "ParallelConfig", n_workers: int) -> int:
    cores = config.options.get("cores")
    return max(int(cores) // n_workers, 1) if isinstance(cores, int | float) else 0


def _module_folders() -> list[str]:
    """Return where this program finds modules that the interpreter alone would not find."""
    own = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    folders = [Path(entry).absolute() for entry in sys.path]
    folders.append(Path(__file__).parents[3])
    found = [
        str(folder)
        for folder in dict.fromkeys(folders)
        if folder.is_dir() and not any(folder.is_relative_to(prefix) for prefix in own)
    ]
    # The variable knows no way to write these; sys.path is sent again with the first shard.
    return [folder for folder in found if os.pathsep not in folder and "\n" not in folder]
