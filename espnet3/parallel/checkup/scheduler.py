"""What the scheduler says: do its commands answer, is there the queue, does it take the script?"""

import re
import shlex
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from espnet3.errors import suggest
from espnet3.findings import Finding, never_raises
from espnet3.parallel.clusters.table import gpus_per_job
from espnet3.schedulers import scheduler_of
from espnet3.schedulers.command import call

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

_TIMEOUT = 30.0  # seconds; a busy scheduler answers late, and one that is away never does


@never_raises("commands")
def check_commands(config: "ParallelConfig") -> list[Finding]:
    """Find the scheduler's commands, and ask it something that costs nothing."""
    scheduler = scheduler_of(config.env)
    if scheduler is None:
        return []
    commands = scheduler.commands
    missing = [name for name in commands if shutil.which(name) is None]
    if missing:
        return [_missing(config.env, missing)]
    if not scheduler.ping:
        return [Finding("ok", "commands", f"{', '.join(commands)} are here")]
    question = shlex.join(scheduler.ping)
    answer = call(scheduler.ping, timeout=_TIMEOUT)
    if answer.code == 0:
        told = f"{', '.join(commands)} are here; {question.split()[0]} answered "
        return [Finding("ok", "commands", f"{told}in {answer.seconds:.1f} s")]
    return [
        Finding(
            "problem",
            "commands",
            f"{', '.join(commands)} are here, but the scheduler does not answer: `{question}` "
            f"said: {answer.said or f'exit code {answer.code}'}",
            "Run it yourself until it answers; on a machine that is no login node, log in to one.",
        )
    ]


def _missing(env: str, missing: Sequence[str]) -> Finding:
    first = missing[0]
    return Finding(
        "problem",
        "commands",
        f"parallel.env is {env!r}, but {', '.join(missing)} cannot be found on PATH",
        f"Run it where `{first}` works, such as a login node; or load it: module load {env}; or "
        "on this machine: parallel.env=local",
    )


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
    scheduler = scheduler_of(config.env)
    if scheduler is None or not wanted:
        return []
    queue = config.options.get("queue")
    gpus = scheduler.node_gpus(str(queue) if queue else None)
    if gpus is None:
        return []
    where = f"partition {queue}" if queue else "the default partition"
    if wanted > gpus.most:
        has = f"the largest of its nodes has {gpus.spelled}" if gpus.most else "no node has any"
        fix = f'Write under options: job_extra_directives: ["{gpus.directive}"]'
        other = f"Write under options: queue: NAME, one whose nodes have GPUs ({gpus.command})"
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


@never_raises("scheduler")
def try_script(config: "ParallelConfig", script: str | None) -> list[Finding]:
    """Let the scheduler judge the job script, where it has a way to; nothing is submitted."""
    scheduler = scheduler_of(config.env)
    if scheduler is None or not scheduler.trial or script is None:
        return []
    answer = call(scheduler.trial, text=script, timeout=_TIMEOUT)
    command, said = " ".join(scheduler.trial), _essence(answer.said, scheduler.submit[0])
    if scheduler.accepts(answer):
        return [Finding("ok", "scheduler", f"{command}: {said}")]
    told = f"{command} refuses the job script: {said}"
    heard = answer.said.lower()
    known = (advice for words, advice in scheduler.refusals.items() if words in heard)
    return [Finding("problem", "scheduler", told, next(known, "Change parallel.options."))]


def _essence(said: str, program: str) -> str:
    """Leave out which program says it."""
    return re.sub(rf"\b{re.escape(program)}: (?:error: )?", "", said) or "it said nothing"
