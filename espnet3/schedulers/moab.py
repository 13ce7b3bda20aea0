"""Moab; the nodes, queues and directives are those of the PBS or Torque below it."""

import re
from collections.abc import Sequence
from typing import ClassVar

from espnet3.schedulers.base import JobState, Phase
from espnet3.schedulers.command import ask
from espnet3.schedulers.pbs import PBS


class Moab(PBS):
    """Moab."""

    name = "moab"
    title = "Moab"
    dask_cluster = "MoabCluster"
    submit = ("msub",)
    cancel = ("canceljob",)
    status_command = "showq"
    ping = ("showq", "-c")
    after = "-l depend=afterany:{job}"  # msub does not know -W depend
    after_pattern = r"-l ?depend="
    loose_resources: ClassVar[tuple[str, ...]] = ()  # Moab takes them beside a select
    # Its own number is not that of the PBS below it.
    job_variables: ClassVar[tuple[str, ...]] = ()
    job_word = '"$(j=${MOAB_JOBID:-$PBS_JOBID}; j=${j#Moab.}; echo "${j%%.*}")"'
    launches = False

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask showq for all jobs, and checkjob for those that it does not list any more."""
        output = ask("showq", "--xml")
        if output is None:
            return {}
        found = parse_showq(output)
        states = {}
        for job in job_ids:
            state = found.get(job)
            if state is None:
                state = parse_checkjob(ask("checkjob", job) or "")
            elif state.phase == "pending" and not state.reason:
                reason = parse_checkjob(ask("checkjob", job) or "").reason
                state = JobState(state.phase, state.word, reason)
            states[job] = state
        return states


def parse_showq(text: str) -> dict[str, JobState]:
    """Read `showq --xml`: a queue of active, one of eligible and one of blocked jobs."""
    import xml.etree.ElementTree as ET  # not needed by the workers, which import this module

    states = {}
    try:
        queues = list(ET.fromstring(text).iter("queue"))
    except ET.ParseError:
        return {}
    for queue in queues:
        is_active = queue.get("option") == "active"
        for job in queue.iter("job"):
            number = re.findall(r"\d+", job.get("JobID", ""))
            if number:
                phase: Phase = "running" if is_active else "pending"
                states[number[0]] = JobState(phase, job.get("State", ""))
    return states


def parse_checkjob(text: str) -> JobState:
    """Read the state of one job, and why it waits or how it ended."""
    state = re.search(r"^State: (\S+)", text, re.M)
    if state is None:
        return JobState("unknown", "")
    word = state[1]
    code = re.search(r"^Completion Code: (-?\d+)", text, re.M)
    if code or word in ("Completed", "Removed", "Vacated"):
        return JobState("ended", word, f"exit code {code[1]}" if code else "")
    if word in ("Running", "Starting", "Suspended"):
        return JobState("running", word)
    reason = re.search(r"^(?:NOTE|BLOCK MSG|Holds):\s+(.*)$", text, re.M)
    return JobState("pending", word, reason[1].strip() if reason else "")
