"""HTCondor: condor_q, condor_history and condor_status."""

from collections.abc import Mapping, Sequence
from typing import Any

from espnet3.parallel.clusters.schedulers.base import JobState, Phase
from espnet3.parallel.clusters.schedulers.command import ask, ask_json, read_json, unique

_ATTRIBUTES = (
    "ClusterId,ProcId,JobStatus,HoldReason,RemoveReason,ExitCode,ExitBySignal,ExitSignal,"
    "NumJobStarts"
)
_STATUSES: dict[int, tuple[Phase, str]] = {
    1: ("pending", "IDLE"), 2: ("running", "RUNNING"), 3: ("ended", "REMOVED"),
    4: ("ended", "COMPLETED"), 5: ("pending", "HELD"), 6: ("running", "TRANSFERRING_OUTPUT"),
    7: ("running", "SUSPENDED"),
}  # fmt: skip


class HTCondor:
    """Jobs and machines of HTCondor."""

    status_command = "condor_q -better-analyze"

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask condor_q, and condor_history for those that have left the queue."""
        chosen = ["-json", "-attributes", _ATTRIBUTES]
        told = ask("condor_q", *job_ids, *chosen)
        if told is None:
            return {}
        found = parse_jobs(read_json(told))
        gone = [job for job in job_ids if job not in found]
        if gone:
            limit = ["-limit", str(len(gone))]
            found.update(parse_jobs(ask_json("condor_history", *gone, *chosen, *limit)))
        return {job: found.get(job, JobState("unknown", "")) for job in job_ids}

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return all machines of the pool."""
        return unique((ask("condor_status", "-startd", "-af", "Machine") or "").split())

    def queues(self) -> list[str] | None:
        """Return None: HTCondor has no queues."""
        return None


def parse_jobs(told: Any) -> dict[str, JobState]:
    """Read the ads of jobs."""
    states = {}
    for ad in told if isinstance(told, list) else []:
        phase, word = _STATUSES.get(int(ad.get("JobStatus", 0)), ("unknown", ""))
        reason = ""
        if word == "HELD":
            reason = f"held: {ad.get('HoldReason', '')}"
        elif phase == "ended":
            reason = _describe_end(ad)
        states[f"{ad.get('ClusterId')}.{ad.get('ProcId')}"] = JobState(phase, word, reason)
    return states


def _describe_end(ad: Mapping[str, Any]) -> str:
    parts = [str(ad.get("RemoveReason", ""))]
    if ad.get("ExitBySignal"):
        parts.append(f"signal {ad.get('ExitSignal')}")
    elif "ExitCode" in ad:
        parts.append(f"exit code {ad['ExitCode']}")
    return ", ".join(part for part in parts if part)
