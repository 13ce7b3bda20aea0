"""Compare the `trainer` block with the machine and with what launched this process.

A training with a process too few waits for ever, and one with a process too many trains two models
in one folder; so both are refused before anything starts.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from espnet3.config.resolve import resolved
from espnet3.errors import ResourceError
from espnet3.trainer.launching.devices import Wanted, check_names, count_gpus, find_wanted
from espnet3.trainer.launching.launchers import (
    check_by_hand,
    check_slurm,
    check_torchrun,
    find_job,
    foreign_launcher,
    is_by_hand,
)
from espnet3.trainer.launching.process_rank import LAUNCHED, process_rank

logger = logging.getLogger(__name__)


def check_launch(
    trainer_block: Any,
    environ: Mapping[str, str] = os.environ,
    n_gpus: int | None = None,
) -> None:
    """Refuse a block that cannot train here as it is meant, before any process starts.

    Args:
        trainer_block: the `trainer` block, as mapping or config; None for an empty one.
        environ: of this process.
        n_gpus: how many are visible; counted if None.

    Raises:
        ConfigError: a word or number is wrong.
        ResourceError: the GPUs, or the processes that srun, torchrun or a scheduler started, are
            not those that the block describes; with the line that makes them so.
    """
    block = resolved(trainer_block, prefix="trainer") or {}
    check_names(block)
    visible = count_gpus() if n_gpus is None else n_gpus
    wanted = find_wanted(block, visible, environ)
    if wanted is not None:
        _check_launcher(wanted, environ)
        if LAUNCHED not in environ and process_rank(environ).is_first:
            _tell_what_is_idle(wanted, environ, visible)


def _check_launcher(wanted: Wanted, environ: Mapping[str, str]) -> None:
    if LAUNCHED in environ:  # Lightning started it from a process that was checked
        return
    # In this order Lightning decides as well: torchrun may run inside a job of Slurm.
    if "TORCHELASTIC_RUN_ID" in environ:
        check_torchrun(wanted, environ)
    elif "SLURM_STEP_NUM_TASKS" in environ:
        check_slurm(wanted, environ)
    elif launcher := foreign_launcher(environ):
        raise ResourceError(
            f"{launcher} started this process among others, and each would train a model of its "
            "own: only srun and torchrun are known here. Start torchrun with it, once on each "
            f"node: {launcher} ... {torchrun_line(wanted)}"
        )
    elif is_by_hand(environ):
        check_by_hand(wanted, environ)
    elif wanted.n_nodes > 1:
        raise _nothing_launched(wanted, environ)


def _tell_what_is_idle(wanted: Wanted, environ: Mapping[str, str], n_gpus: int) -> None:
    """Warn of nodes and GPUs that a scheduler gave to the job, and this training leaves unused."""
    job = find_job(environ)
    if job is None:
        return
    n_nodes = max(wanted.n_nodes, job.n_hosts or 1)
    all_of_it = replace(
        wanted, n_nodes=n_nodes, n_devices=max(wanted.n_devices, n_gpus if wanted.on_gpus else 1)
    )
    if all_of_it == wanted:
        return
    has = f"{n_nodes} node(s)" + (f" and {n_gpus} GPU(s) on this one" if wanted.on_gpus else "")
    way = ""
    if n_nodes > 1:
        way = (
            f", with srun before python in a script submitted with: {job.sbatch_line(all_of_it)}"
            if job.scheduler == "Slurm"
            else f", and start on each node: {torchrun_line(all_of_it)}"
        )
    logger.warning(
        "Job %s of %s has %s, but %s: the rest stays idle. To use all, write: trainer: "
        "{devices: %d, num_nodes: %d}%s",
        job.name, job.scheduler, has, wanted, all_of_it.n_devices, n_nodes, way,
    )  # fmt: skip


def _nothing_launched(wanted: Wanted, environ: Mapping[str, str]) -> ResourceError:
    job = find_job(environ)
    if job is None:
        problem = "runs alone on one machine, and would wait for the others for ever"
        way_out = (
            "On a cluster: espnet3 launch conf/training.yaml conf/launch_slurm.yaml ; or on each "
            f"node: {torchrun_line(wanted)} ; or on this one only: num_nodes: 1"
        )
    elif job.scheduler == "Slurm":
        line = job.sbatch_line(wanted)
        missing = "" if job.starts(wanted) else f", submitted with: {line}"
        problem = (
            f"runs alone in job {job.name} of Slurm: a job script runs on its first node only, "
            "and srun starts the others"
        )
        way_out = (
            f"Write srun before python in it{missing}. Or let the script be written: "
            "espnet3 launch conf/training.yaml conf/launch_slurm.yaml"
        )
    else:
        has = "" if job.n_hosts is None else f". The job has {job.n_hosts} node(s)"
        problem = (
            f"runs alone in job {job.name} of {job.scheduler}, whose script runs on its first node "
            f"only{has}"
        )
        way_out = (
            f"Start torchrun on each node: {torchrun_line(wanted)} ; or let the script be written: "
            f"espnet3 launch conf/training.yaml conf/launch_{job.scheduler.lower()}.yaml"
        )
    return ResourceError(
        str(wanted), key=wanted.key, problem=f"but this process {problem}", fix=way_out
    )


def torchrun_line(wanted: Wanted) -> str:
    """Return what to type on each node."""
    rendezvous = (
        " --rdzv-backend=c10d --rdzv-endpoint=FIRST_NODE:29500" if wanted.n_nodes > 1 else ""
    )
    return (
        f"torchrun --nnodes={wanted.n_nodes} --nproc-per-node={wanted.n_devices}{rendezvous} "
        "run.py --stages train --training_config conf/training.yaml"
    )
