"""Detect the launcher of this process, and compare it with the `trainer` block."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from espnet3.errors import ResourceError
from espnet3.schedulers import possible_schedulers
from espnet3.schedulers.base import read_number
from espnet3.text import count
from espnet3.trainer.launching.devices import Wanted

INTERACTIVE = ("bash", "interactive")
"""Names of Slurm jobs that Lightning takes for a shell in which it starts processes itself."""

_PER_NODE = "SLURM_NTASKS_PER_NODE"
_FOREIGN = {
    "JSM_NAMESPACE_SIZE": "jsrun",
    "OMPI_COMM_WORLD_SIZE": "mpirun",
    "PMI_SIZE": "mpiexec",
}


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
        f"torchrun started {n_processes} process(es){here}, but {wanted}",
        key=wanted.key,
        fix=f"Start it with: torchrun --nnodes={wanted.n_nodes} "
        f"--nproc-per-node={wanted.n_devices}{_or_block(environ)}",
    )


def _or_block(environ: Mapping[str, str]) -> str:
    """Return the block that fits what torchrun started, where its nodes are alike."""
    n_processes, n_local = (
        read_number(environ, "WORLD_SIZE"),
        read_number(environ, "LOCAL_WORLD_SIZE"),
    )
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
    if n_tasks == 1 and wanted.n_nodes == 1 and _is_interactive(environ):
        return
    job = find_job(environ) or SchedulerJob("Slurm", "", n_nodes, environ)
    if n_tasks == wanted.world_size and n_nodes == wanted.n_nodes:
        _check_even(wanted, environ, job, n_tasks)
        return
    raise ResourceError(
        f"srun started {n_tasks} process(es) on {n_nodes} node(s)"
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
        f" ; or write: {_block(way)}{_resubmitted(way, job)}" for way in ways if way != wanted
    )


def _block(wanted: Wanted) -> str:
    return f"trainer: {{devices: {wanted.n_devices}, num_nodes: {wanted.n_nodes}}}"


def _resubmitted(wanted: Wanted, job: SchedulerJob) -> str:
    """Return how a job must be submitted for a block; empty if it was."""
    if job.starts(wanted):
        return ""
    return f", submitted with: {job.sbatch_line(wanted)}"


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
            f"srun started {n_tasks} processes {why}. Submit the job with: "
            f"{job.sbatch_line(wanted)}"
        )


def _is_interactive(environ: Mapping[str, str]) -> bool:
    return environ.get("SLURM_JOB_NAME") in INTERACTIVE


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
