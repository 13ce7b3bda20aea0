"""LSF: bjobs, bhosts and bqueues."""

from collections.abc import Mapping, Sequence
from typing import Any

from espnet3.parallel.clusters.schedulers.base import JobState, Phase
from espnet3.parallel.clusters.schedulers.command import ask, ask_json, unique
from espnet3.text import folded

_FIELDS = "jobid stat exit_code exit_reason pend_reason"
_PHASES: dict[str, Phase] = {
    "PEND": "pending", "PSUSP": "pending", "WAIT": "pending", "FWD_PEND": "pending",
    "RUN": "running", "USUSP": "running", "SSUSP": "running", "PROV": "running",
    "UNKWN": "running",  # the host does not answer; LSF waits for it
    "DONE": "ended", "EXIT": "ended", "ZOMBI": "ended",
}  # fmt: skip


class LSF:
    """Jobs, hosts and queues of LSF."""

    status_command = "bjobs -p"

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask bjobs, with the jobs that have ended."""
        told = ask_json("bjobs", "-a", "-json", "-o", _FIELDS, *job_ids, any_code=True)
        if not isinstance(told, dict):
            return {}
        found = parse_records(told.get("RECORDS", []))
        return {job: found.get(job, JobState("unknown", "")) for job in job_ids}

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return all hosts."""
        return parse_table(ask("bhosts", "-w") or "")

    def queues(self) -> list[str] | None:
        """Return the queues."""
        told = ask("bqueues", "-w")
        return None if told is None else parse_table(told)


def parse_records(records: Sequence[Mapping[str, str]]) -> dict[str, JobState]:
    """Read what `bjobs -json` tells; a record of a forgotten job has an ERROR only."""
    states = {}
    for record in records:
        word = record.get("STAT", "")
        phase = _PHASES.get(word, "unknown")
        reason = ""
        if phase == "pending":
            reason = folded(record.get("PEND_REASON", ""))
        elif phase == "ended":
            code = record.get("EXIT_CODE", "") or "0"
            parts = [record.get("EXIT_REASON", "").strip(), f"exit code {code}"]
            reason = ", ".join(part for part in parts if part and part != "-")
        states[record.get("JOBID", "")] = JobState(phase, word, reason)
    return states


def parse_table(text: str) -> list[str]:
    """Return the first column of a table with one line of heading."""
    return unique([line.split()[0] for line in text.splitlines()[1:] if line.strip()])
