"""Compare the `trainer` block with the machine and with what launched this process.

A training with a process too few waits for ever, and one with a process too many trains two models
in one folder; so both are refused before anything starts.
"""

import logging
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from espnet3.config.resolve import resolved
from espnet3.config.sources import names_places, place_of
from espnet3.errors import ResourceError
from espnet3.findings import Finding, never_raises
from espnet3.schedulers import possible_schedulers
from espnet3.schedulers.base import read_number
from espnet3.text import count
from espnet3.trainer.launching.process_rank import LAUNCHED, process_rank
from espnet3.trainer.trainer_block import Wanted, check_names, count_gpus, find_wanted

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

INTERACTIVE = ("bash", "interactive")
"""Names of Slurm jobs that Lightning takes for a shell in which it starts processes itself."""

_WHAT = "trainer"
_PER_NODE = "SLURM_NTASKS_PER_NODE"
_FOREIGN = {
    "JSM_NAMESPACE_SIZE": "jsrun",
    "OMPI_COMM_WORLD_SIZE": "mpirun",
    "PMI_SIZE": "mpiexec",
}


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
            "own: only srun and torchrun are known here.",
            fix="Start torchrun with it, once on each "
            f"node: {launcher} ... {torchrun_line(wanted)}",
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
    gpus = f" and {count(n_gpus, 'GPU')} on this one" if wanted.on_gpus else ""
    has = f"{count(n_nodes, 'node')}{gpus}"
    way = ""
    if n_nodes > 1:
        way = (
            f", with srun before python in a script submitted with: {job.sbatch_line(all_of_it)}"
            if job.scheduler == "Slurm"
            else f", and start on each node: {torchrun_line(all_of_it)}"
        )
    logger.warning(
        "Job %s of %s has %s, but %s%s: the rest stays idle. To use all, write: trainer: "
        "{devices: %d, num_nodes: %d}%s",
        job.name, job.scheduler, has, wanted, place_of("trainer.devices"), all_of_it.n_devices,
        n_nodes, way,
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
        has = "" if job.n_hosts is None else f". The job has {count(job.n_hosts, 'node')}"
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


@dataclass(frozen=True)
class SchedulerJob:
    """The job that this process runs in."""

    scheduler: str
    name: str
    n_hosts: int | None
    """None where the environment does not say it."""
    environ: Mapping[str, str]

    def starts(self, wanted: Wanted) -> bool:
        """Tell whether srun in this job of Slurm starts the processes that are wanted."""
        nodes_fit = self.n_hosts in (None, wanted.n_nodes)
        per_node = read_number(self.environ, _PER_NODE)
        is_one = wanted.world_size == 1 and per_node is None
        return nodes_fit and (per_node == wanted.n_devices or is_one)

    def sbatch_line(self, wanted: Wanted) -> str:
        """Return how the same script would be submitted for the `trainer` block."""
        words = ["sbatch", f"--nodes={wanted.n_nodes}", f"--ntasks-per-node={wanted.n_devices}"]
        if wanted.on_gpus:
            words.append(f"--gres=gpu:{wanted.n_devices}")
        n_cpus = self.environ.get("SLURM_CPUS_PER_TASK")
        if n_cpus:
            words.append(f"--cpus-per-task={n_cpus}")
        # A job is called after its script unless its owner named it.
        script = self.environ.get("SLURM_JOB_NAME", "")
        words.append(shlex.quote(script) if script.endswith(".sh") else "SCRIPT")
        return " ".join(words)


def find_job(environ: Mapping[str, str]) -> SchedulerJob | None:
    """Return the job around this process, of a scheduler that can train."""
    for scheduler in possible_schedulers(environ=environ):
        if scheduler.launches and (job := scheduler.current_job(environ)):
            return SchedulerJob(job.scheduler, job.job_id, job.n_hosts, environ)
    return None


def foreign_launcher(environ: Mapping[str, str]) -> str:
    """Return the name of a launcher of several processes that we do not know; empty if none."""
    # A job that mpirun starts as one process is a training like any other.
    found = (name for key, name in _FOREIGN.items() if (read_number(environ, key) or 1) > 1)
    return next(found, "")


def is_by_hand(environ: Mapping[str, str]) -> bool:
    """Tell whether a user started the training on each node, or each process, himself."""
    return "LOCAL_RANK" in environ or ("MASTER_ADDR" in environ and "NODE_RANK" in environ)


def check_torchrun(wanted: Wanted, environ: Mapping[str, str]) -> None:
    """Compare what torchrun started with what is wanted.

    Raises:
        ResourceError: with the numbers to give to torchrun.
    """
    n_processes = read_number(environ, "WORLD_SIZE")
    n_local = read_number(environ, "LOCAL_WORLD_SIZE")
    if n_processes == wanted.world_size and n_local in (None, wanted.n_devices):
        return
    here = "" if n_local is None else f", {n_local} on this node"
    raise ResourceError(
        f"torchrun started {count(n_processes or 1, 'process')}{here}, but {wanted}",
        key=wanted.key,
        fix=f"Start it with: torchrun --nnodes={wanted.n_nodes} "
        f"--nproc-per-node={wanted.n_devices}{_or_block(environ)}",
    )


def _or_block(environ: Mapping[str, str]) -> str:
    """Return the block that fits what torchrun started, where its nodes are alike."""
    n_processes = read_number(environ, "WORLD_SIZE")
    n_local = read_number(environ, "LOCAL_WORLD_SIZE")
    if not n_processes or not n_local or n_processes % n_local:
        return ""
    return f" ; or write: trainer: {{devices: {n_local}, num_nodes: {n_processes // n_local}}}"


def check_slurm(wanted: Wanted, environ: Mapping[str, str]) -> None:
    """Compare what srun started with what is wanted.

    Raises:
        ResourceError: with the line to submit the job with.
    """
    n_tasks = read_number(environ, "SLURM_STEP_NUM_TASKS") or 1
    n_nodes = (
        read_number(environ, "SLURM_STEP_NUM_NODES") or read_number(environ, "SLURM_NNODES") or 1
    )
    if n_tasks == 1 and wanted.n_nodes == 1 and environ.get("SLURM_JOB_NAME") in INTERACTIVE:
        return
    job = find_job(environ) or SchedulerJob("Slurm", "", n_nodes, environ)
    if n_tasks == wanted.world_size and n_nodes == wanted.n_nodes:
        _check_even(wanted, environ, job, n_tasks)
        return
    raise ResourceError(
        f"srun started {count(n_tasks, 'process')} on {count(n_nodes, 'node')}"
        f"{_why(wanted, environ, n_tasks, n_nodes)}, but {wanted}",
        key=wanted.key,
        fix=f"Submit the job with: {job.sbatch_line(wanted)}"
        f"{_fitting(n_tasks, n_nodes, job, wanted)}",
    )


def _why(wanted: Wanted, environ: Mapping[str, str], n_tasks: int, n_nodes: int) -> str:
    """Say which options made the processes that differ from those of the block; nothing else."""
    reasons = list[str]()
    of_job = read_number(environ, "SLURM_JOB_NUM_NODES") or n_nodes
    if of_job != n_nodes:
        reasons.append(f"of the {of_job} that the job has (srun --nodes={n_nodes}?)")
    elif n_nodes != wanted.n_nodes:
        reasons.append(f"as the job has {count(n_nodes, 'node')} (sbatch --nodes={n_nodes})")
    per_node = read_number(environ, _PER_NODE)
    if n_tasks == n_nodes * wanted.n_devices:
        pass  # as many on each node as the block says
    elif per_node is not None and n_tasks == n_nodes * per_node:
        reasons.append(f"{per_node} on each (--ntasks-per-node={per_node})")
    elif n_tasks == n_nodes and per_node is None:
        reasons.append("because the job was submitted without --ntasks-per-node")
    else:
        reasons.append(f"because of --ntasks={n_tasks}")
    return "".join(f", {reason}" for reason in reasons).replace(", of the", " of the")


def _fitting(n_tasks: int, n_nodes: int, job: SchedulerJob, wanted: Wanted) -> str:
    """Return the blocks that fit the job: its processes as they are, and all of its GPUs."""
    if n_tasks % n_nodes:
        return ""
    here = replace(wanted, n_devices=n_tasks // n_nodes, n_nodes=n_nodes)
    n_gpus = read_number(job.environ, "SLURM_GPUS_ON_NODE") or 0
    ways = [here]
    if wanted.on_gpus and n_gpus > here.n_devices:
        ways.append(replace(here, n_devices=n_gpus))
    return "".join(
        f" ; or write: trainer: {{devices: {way.n_devices}, num_nodes: {way.n_nodes}}}"
        + ("" if job.starts(way) else f", submitted with: {job.sbatch_line(way)}")
        for way in ways
        if way != wanted
    )


def _check_even(
    wanted: Wanted, environ: Mapping[str, str], job: SchedulerJob, n_tasks: int
) -> None:
    """Refuse `--ntasks`, which lets Slurm spread the processes unevenly; so does Lightning."""
    if n_tasks > 1 and _PER_NODE not in environ:
        why = (
            "for the job was submitted without --ntasks-per-node, which Lightning requires"
            if n_tasks == wanted.n_nodes
            else f"because of --ntasks={n_tasks}, which does not say how many run on each node"
        )
        raise ResourceError(
            f"srun started {n_tasks} processes {why}.",
            fix=f"Submit the job with: {job.sbatch_line(wanted)}",
        )


def check_by_hand(wanted: Wanted, environ: Mapping[str, str]) -> None:
    """Compare ranks that a user set himself with what is wanted.

    Raises:
        ResourceError: naming the variable, and what to set or unset.
    """
    if "MASTER_ADDR" not in environ and wanted.world_size > 1:
        local = environ.get("LOCAL_RANK")
        raise ResourceError(
            f"LOCAL_RANK is {local!r} in the environment, so nothing is started here and this "
            f"process would wait for others; but MASTER_ADDR does not say where, and {wanted}",
            key=wanted.key,
            fix="Without a launcher: unset LOCAL_RANK",
        )
    limits = {
        "LOCAL_RANK": (wanted.n_devices, "trainer.devices"),
        "NODE_RANK": (wanted.n_nodes, "trainer.num_nodes"),
    }
    for name, (limit, key) in limits.items():
        rank = read_number(environ, name)
        if rank is not None and rank >= limit:
            raise ResourceError(
                f"{name} is {rank}, counted from 0, but {key} is {limit}",
                key=key,
                fix=f"Start {limit}, or write {key.rpartition('.')[2]}: {rank + 1}; if it is a "
                f"leftover: unset {name}",
            )
    n_processes = read_number(environ, "WORLD_SIZE")
    if n_processes not in (None, wanted.world_size):
        raise ResourceError(
            f"WORLD_SIZE is {n_processes}, but {wanted}",
            key=wanted.key,
            fix=f"Set WORLD_SIZE={wanted.world_size}, or unset it",
        )


@never_raises(_WHAT)
@names_places
def check_training(
    loaded: "LoadedConfig",
    environ: Mapping[str, str] = os.environ,
    *,
    recipe_dir: str = ".",
    trains_here: bool = True,
) -> list[Finding]:
    """Compare `trainer.devices x num_nodes` with the job around us, or with this machine.

    Args:
        loaded: the merged config; without a `trainer` block there is nothing to say.
        environ: of this process.
        recipe_dir: the folder of `run.py`.
        trains_here: whether the training is to run on this machine; a login node need not have
            the GPUs.
    """
    if not loaded.config.get("trainer"):
        return []
    if loaded.has("launch"):
        return _launched(loaded, recipe_dir)
    # The block alone: what else is open in the config is not for this check.
    block = resolved(loaded.config.get("trainer"), prefix="trainer", loaded=loaded)
    n_gpus = count_gpus()
    try:
        check_launch(block, environ, n_gpus)
    except ResourceError as error:
        error.locate(loaded)
        is_certain = trains_here or find_job(environ) is not None
        return [Finding.of(_WHAT, error, "problem" if is_certain else "warning")]
    wanted = find_wanted(block, n_gpus, environ)
    if wanted is None:
        return [Finding("ok", _WHAT, f"accelerator {block.get('accelerator')!r} is Lightning's")]
    job = find_job(environ)
    where = f"job {job.name} of {job.scheduler}" if job else "this machine"
    place = loaded.set_in(wanted.key)
    return [Finding("ok", _WHAT, f"{wanted}{place}, as {where} has them ({n_gpus} GPU(s) visible)")]


def _launched(loaded: "LoadedConfig", recipe_dir: str) -> list[Finding]:
    """Check the `launch` block, which brings its own allocation."""
    from espnet3.trainer.launching.job_script import render
    from espnet3.trainer.launching.launch import plan_job

    job = plan_job(loaded, (), recipe_dir=recipe_dir)
    render(job)  # refuses options that cannot be written
    text = (
        f"`espnet3 launch` would ask {job.config.scheduler} for {count(job.n_nodes, 'node')} x "
        f"{count(job.n_processes, 'process')}, {count(job.n_gpus, 'GPU')} on each node"
    )
    return [Finding("ok", _WHAT, text)]
