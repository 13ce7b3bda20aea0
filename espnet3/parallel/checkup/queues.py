"""Whether the partition or queue exists, and what GPUs its nodes have."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from espnet3.errors import suggest
from espnet3.findings import Finding, never_raises
from espnet3.parallel.checkup.commands import ask
from espnet3.parallel.clusters.requested import gpus_per_job
from espnet3.schedulers import scheduler_of

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

_GRES = re.compile(r"gpu(?::[A-Za-z][\w.-]*)?:(\d+)")


@dataclass(frozen=True)
class NodeGpus:
    """What `sinfo` says of the GPUs of a partition."""

    by_node: dict[str, int]
    spelled: str
    """As `sinfo` spells the largest: `gpu:a100:4`."""

    @property
    def most(self) -> int:
        """GPUs of the largest node."""
        return max(self.by_node.values(), default=0)

    @property
    def total(self) -> int:
        """GPUs of all nodes."""
        return sum(self.by_node.values())


@never_raises("queue")
def check_queue(config: "ParallelConfig") -> list[Finding]:
    """Look for `options.queue` among the scheduler's."""
    scheduler = scheduler_of(config.env)
    if scheduler is None:
        return []
    queue = config.options.get("queue")
    known = scheduler.queues()
    if known is None:
        if queue is None:
            return []
        return [Finding("ok", "queue", f"{queue}; this scheduler gives no list to compare with")]
    listed = ", ".join(known) or "none"
    if queue is None:
        return [Finding("ok", "queue", f"the scheduler's default; there are: {listed}")]
    names = str(queue).split(",")  # Slurm takes the first of several that has room
    wrong = [name for name in names if name.partition("@")[0] not in known]
    if not wrong:
        return [Finding("ok", "queue", f"{queue} exists; there are: {listed}")]
    close = suggest(wrong[0], known)
    best = close.split("'")[1] if close else "NAME"
    told = f"parallel.options.queue is {queue!r}, which does not exist.{close} There are: {listed}"
    return [Finding("problem", "queue", told, f"Write under options: queue: {best}")]


@never_raises("GPUs")
def check_node_gpus(config: "ParallelConfig") -> list[Finding]:
    """Compare the GPUs that a job asks for with those of the partition's nodes."""
    wanted = gpus_per_job(config)
    if config.env != "slurm" or not wanted:
        return []
    queue = config.options.get("queue")
    gpus = read_node_gpus(str(queue) if queue else None)
    if gpus is None:
        return []
    where = f"partition {queue}" if queue else "the default partition"
    if wanted > gpus.most:
        has = f"the largest of its nodes has {gpus.spelled}" if gpus.most else "no node has any"
        fix = f'Write under options: job_extra_directives: ["--gres={gpus.spelled}"]'
        other = "Write under options: queue: NAME, one whose nodes have GPUs (sinfo -o '%P %G')"
        told = f"a job asks for {wanted} GPU(s) of one node of {where}, but {has}"
        return [Finding("problem", "GPUs", told, fix if gpus.most else other)]
    at_once = sum(count // wanted for count in gpus.by_node.values())
    told = f"{wanted} for each job; {where} has {gpus.total} on {len(gpus.by_node)} node(s)"
    if config.n_workers > at_once:
        return [
            Finding(
                "warning",
                "GPUs",
                f"{told}: at most {at_once} of the {config.n_workers} jobs can run at once, the "
                "others wait",
                f"Write: n_workers: {at_once}",
            )
        ]
    return [Finding("ok", "GPUs", told)]


def read_node_gpus(queue: str | None) -> NodeGpus | None:
    """Ask Slurm for the GPUs of a partition's nodes; None if it does not tell."""
    words = ["sinfo", "--noheader", "--Node", "--format", "%N|%G|%P"]
    answer = ask([*words, "--partition", queue] if queue else words)
    if answer.code != 0:
        return None
    by_node: dict[str, int] = {}
    spelled: dict[int, str] = {}
    for line in answer.out.splitlines():
        node, gres, partition = [*line.split("|"), "", ""][:3]
        if queue is None and not partition.strip().endswith("*"):  # the mark of the default
            continue
        found = list(_GRES.finditer(gres))
        by_node[node] = sum(int(each[1]) for each in found)
        if found:
            spelled[by_node[node]] = found[0][0]
    most = max(by_node.values(), default=0)
    return NodeGpus(by_node, spelled.get(most, "gpu:0"))
