"""Moab; the nodes, queues and directives are those of the PBS or Torque below it."""

import re
from collections.abc import Sequence
from typing import ClassVar

from espnet3.schedulers.base import FORGOTTEN, JobState, Phase
from espnet3.schedulers.command import ask, call
from espnet3.schedulers.pbs import PBS, TORQUE_STATUSES

_PHASES: dict[str, Phase] = {
    **dict.fromkeys(("Completed", "Removed", "Vacated"), "ended"),
    **dict.fromkeys(("Running", "Starting", "Suspended", "Canceling", "Unknown"), "running"),
    **dict.fromkeys(("Idle", "Deferred", "NotQueued", "NotRun", "Staging", "Staged"), "pending"),
    **dict.fromkeys(("Hold", "BatchHold", "UserHold", "SystemHold", "Blocked"), "pending"),
}
"""Of Unknown, the daemon of its node does not answer; the job is there."""
_INVALID = re.compile(r"invalid job specified|cannot locate job", re.IGNORECASE)


class Moab(PBS):
    """Moab."""

    name = "moab"
    title = "Moab"
    dask_cluster = "MoabCluster"
    submit = ("msub",)
    cancel = ("canceljob",)
    status_command = "showq"
    ping = ("showq", "--xml")  # -c, -i and -r are for administrators
    # Moab ends a job for whatever reason by cancelling it.
    ends = {"cancelled": r"Vacated"}
    after = "-l depend=afterany:{job}"  # msub does not know -W depend
    after_pattern = r"-l ?depend="
    schedules: ClassVar[bool] = False  # it does so itself, and the PBS below it may be set not to
    loose_resources: ClassVar[tuple[str, ...]] = ()  # Moab takes them beside a select
    # Its own number is not that of the PBS below it.
    job_variables: ClassVar[tuple[str, ...]] = ()
    job_word = '"$(j=${MOAB_JOBID:-$PBS_JOBID}; j=${j#Moab.}; echo "${j%%.*}")"'
    launches = False

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask showq for all jobs, and checkjob for those that it does not list any more."""
        found = parse_showq(ask("showq", "--xml") or "")
        if found is None:
            return {}
        states = {}
        for job in job_ids:
            state = found.get(job)
            if state is None:
                state = _look(job)
                # No answer is not "gone", and half an answer would look like a whole one.
                if state is None:
                    return {}
            # showq does not say why a job waits.
            elif state.phase == "pending":
                reason = parse_checkjob(ask("checkjob", job) or "").reason
                state = JobState(state.phase, state.word, reason)
            states[job] = state
        return states


def _look(job: str) -> JobState | None:
    """Ask checkjob for a job that showq does not list; None if it does not answer."""
    answer = call(["checkjob", job])
    state = parse_checkjob(answer.out)
    if state.phase != "unknown":
        return state
    # After a while (JOBCPURGETIME, minutes) Moab forgets a job, and says so with an error.
    return FORGOTTEN if _INVALID.search(answer.said) else None


def parse_showq(text: str) -> dict[str, JobState] | None:
    """Read `showq --xml`: a queue of active, one of eligible and one of blocked jobs.

    None if it is no list.
    """
    import xml.etree.ElementTree as ET  # not needed by the workers, which import this module

    try:
        root = ET.fromstring(text)
    except ET.ParseError:
        return None
    if root.tag != "Data":
        return None
    states = {}
    for queue in root.iter("queue"):
        phase: Phase = "running" if queue.get("option") == "active" else "pending"
        for job in queue.iter("job"):
            number = re.findall(r"\d+", job.get("JobID", ""))
            if number:
                word = job.get("State", "")
                # Even of a state that we do not know, the queue says whether the job runs.
                states[number[0]] = JobState(_PHASES.get(word, phase), word)
    return states


def parse_checkjob(text: str) -> JobState:
    """Read the state of one job, and why it waits or how it ended."""
    state = re.search(r"^State: +(\S+)", text, re.M)
    if state is None:
        return JobState("unknown", "")
    word = state[1]
    phase = _PHASES.get(word, "unknown")
    if phase == "ended":
        return JobState(phase, word, _describe_end(text))
    if phase == "running":
        return JobState(phase, word)
    reason = re.search(r"^(?:NOTE|BLOCK MSG|Holds):\s+(.*)$", text, re.M)
    return JobState(phase, word, reason[1].strip() if reason else "")


def _describe_end(text: str) -> str:
    code = re.search(r"^Completion Code: +(?:CNCLD\()?(-?\d+)", text, re.M)
    if code is None:
        return ""
    parts = [TORQUE_STATUSES.get(code[1], ""), f"exit code {code[1]}"]
    # The Torque below it reports a signal as 256 plus its number.
    if int(code[1]) > 256:
        parts.insert(0, f"signal {int(code[1]) - 256}")
    return ", ".join(part for part in parts if part)
