"""OAR: oarstat and oarnodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from espnet3.parallel.clusters.schedulers.base import JobState, Phase
from espnet3.parallel.clusters.schedulers.command import ask_json, unique

_PHASES: dict[str, Phase] = {
    "Waiting": "pending", "Hold": "pending", "toAckReservation": "pending", "toLaunch": "pending",
    "Launching": "running", "Running": "running", "Suspended": "running", "Resuming": "running",
    "Finishing": "running", "toError": "ended", "Error": "ended", "Terminated": "ended",
}  # fmt: skip


class OAR:
    """Jobs and nodes of OAR."""

    status_command = "oarstat -u"

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask oarstat for all jobs of this user, and singly for those that are not among them."""
        told = ask_json("oarstat", "-u", "-J")
        if told is None and ask_json("oarstat", "-J") is None:
            return {}
        found = parse_jobs(told)
        for job in job_ids:
            if job not in found:
                found.update(parse_jobs(ask_json("oarstat", "-f", "-J", "-j", job)))
        return {job: found.get(job, JobState("unknown", "")) for job in job_ids}

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return all nodes."""
        told = ask_json("oarnodes", "-J")
        # Resources by number, or by node.
        rows = told.values() if isinstance(told, dict) else told or []
        return unique(
            [str(row.get("network_address", "")) for row in rows if isinstance(row, dict)]
        )

    def queues(self) -> list[str] | None:
        """Return None: only administrators are told."""
        return None


def parse_jobs(told: Any) -> dict[str, JobState]:
    """Read jobs by their number, as `oarstat -J` tells them."""
    states = {}
    for job, record in told.items() if isinstance(told, dict) else ():
        word = str(record.get("state", ""))
        phase = _PHASES.get(word, "unknown")
        reason = str(record.get("message") or "")
        if phase == "ended" and record.get("exit_code") is not None:
            status = int(record["exit_code"])  # as wait() returns it
            parts = [reason, f"exit code {status >> 8}"] if status >= 0 else [reason]
            reason = ", ".join(part for part in parts if part)
        states[str(job)] = JobState(phase, word, reason if phase != "running" else "")
    return states
