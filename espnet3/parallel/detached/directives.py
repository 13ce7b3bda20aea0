"""What schedulers are told beside the user's options: after which job, and on which nodes not."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from espnet3.parallel.clusters.schedulers.slurm import TAG

Directives = list[str] | dict[str, Any]

_AFTER = {
    "slurm": "--dependency=afterany:{job}",
    "sge": "-hold_jid {job}",
    "pbs": "-W depend=afterany:{job}",
    "moab": "-l depend=afterany:{job}",  # msub does not know -W depend
    "lsf": '-w "ended({job})"',
    "oar": "-a {job}",
}
_WAITS = {
    "slurm": re.compile(r"--dependency\b|-d"),
    "sge": re.compile(r"-hold_jid\b"),
    "pbs": re.compile(r"-W ?depend="),
    "moab": re.compile(r"-l ?depend="),
    "lsf": re.compile(r"-w\b"),
    "oar": re.compile(r"-a\b"),
}
HAS_SUCCESSORS = tuple(_AFTER)
"""Schedulers that can hold a job back until another has ended, however that ends."""
AGAIN = 75
"""The exit code with which a worker asks HTCondor to start its job again: work remains."""

_SLURM_EXCLUDE = re.compile(r"(?:--exclude[= ]|-x ?)(\S+)")
_SLURM_COMMENT = re.compile(r"\s*--comment\b")
_SGE_HOSTS = re.compile(r"-l\s+(?:\S*,)?(?:h|hostname)=")


def with_dependency(env: str, directives: Directives, after: str) -> Directives:
    """Return directives with which a job begins when the job `after` has ended, however it did."""
    if not after or isinstance(directives, Mapping):
        return directives
    # What the user's job waits for is over by then, and most schedulers take one such option.
    users = [line for line in directives if not _WAITS[env].match(line.strip())]
    return [*users, _AFTER[env].format(job=after)]


def with_tag(env: str, directives: Directives, tag: str) -> Directives:
    """Return directives with which a job can be found by the tag of its submission, if one can ask.

    A comment of the user's stays, and then only the job itself knows its tag.
    """
    if env != "slurm" or not tag or isinstance(directives, Mapping):
        return directives
    if "SBATCH_COMMENT" in os.environ or any(map(_SLURM_COMMENT.match, directives)):
        return directives
    return [*directives, f"--comment={TAG}{tag}"]


def with_exclusion(env: str, directives: Directives, nodes: Sequence[str]) -> Directives:
    """Return directives with which a job begins on none of these nodes, if one can say so.

    What the user says of nodes goes on to hold.
    """
    nodes = [node for node in dict.fromkeys(nodes) if re.fullmatch(r"[\w.-]+", node, re.ASCII)]
    if not nodes:
        return directives
    if isinstance(directives, Mapping):
        return _with_requirements(dict(directives), nodes)
    if env == "slurm":
        # One line counts, so it must say all.
        users = [match[1] for line in directives if (match := _SLURM_EXCLUDE.match(line))]
        others = [line for line in directives if not _SLURM_EXCLUDE.match(line)]
        return [*others, f"--exclude={','.join([*users, *nodes])}"]
    if env == "sge" and not any(map(_SGE_HOSTS.match, directives)):
        return [*directives, f"-l h={'&'.join(f'!{node}' for node in nodes)}"]
    if env == "lsf":
        wanted = " && ".join(f"hname!='{node}'" for node in nodes)
        return [*directives, f'-R "select[{wanted}]"']
    return directives


def _with_requirements(settings: dict[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
    name = next((key for key in settings if key.lower() == "requirements"), "requirements")
    users = [f"({settings[name]})"] if name in settings else []
    mine = [f'(Machine != "{node}")' for node in nodes]
    return {**settings, name: " && ".join([*users, *mine])}


def with_restart(env: str, directives: Directives, max_successors: int | None) -> Directives:
    """Return directives with which HTCondor puts a job back into its queue while work remains.

    It has no way to hold a job back for another one; but a job can stay until it is content.
    """
    if env != "htcondor" or not isinstance(directives, Mapping):
        return directives
    is_over = f"(ExitBySignal == False) && (ExitCode != {AGAIN})"
    if max_successors is not None:
        is_over = f"({is_over}) || (NumJobStarts > {max_successors})"
    return {"on_exit_remove": is_over, **directives}
