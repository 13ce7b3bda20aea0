"""PBS Professional, OpenPBS and Torque: qstat and pbsnodes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from espnet3.parallel.clusters.schedulers.base import JobState, Phase
from espnet3.parallel.clusters.schedulers.command import ask, ask_json, unique

_PHASES: dict[str, Phase] = {
    "Q": "pending", "H": "pending", "W": "pending", "T": "pending",
    "R": "running", "E": "running", "S": "running", "U": "running", "B": "running",
    "F": "ended", "X": "ended", "C": "ended", "M": "unknown",
}  # fmt: skip
# Statuses below zero are PBS's own; those above 256 mean a signal.
_STATUSES = {
    "-29": "its walltime was over",
    "-20": "its node was lost",
    "-27": "it used more memory than it had asked for",
}


class PBS:
    """Jobs, nodes and queues of PBS."""

    status_command = "qstat"

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask qstat, with the jobs that have ended where it keeps them."""
        told = ask_json("qstat", "-x", "-f", "-F", "json", *job_ids, any_code=True)
        if isinstance(told, dict) and "Jobs" in told:
            found = parse_records(told["Jobs"])
        else:  # Torque has no JSON, and PBS none if it knows no job
            text = ask("qstat", "-f", *job_ids, any_code=True)
            if text is None and ask("qstat") is None:
                return {}
            found = parse_records(parse_text(text or ""))
        return {job: found.get(job, JobState("unknown", "")) for job in job_ids}

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return all nodes."""
        told = ask_json("pbsnodes", "-a", "-F", "json")
        if isinstance(told, dict) and isinstance(told.get("nodes"), dict):
            return unique([str(node.get("Mom", name)) for name, node in told["nodes"].items()])
        # Names stand at the beginning of a line, what is known of them does not.
        return unique(re.findall(r"^(\S+)$", ask("pbsnodes", "-a") or "", re.M))

    def queues(self) -> list[str] | None:
        """Return the queues."""
        told = ask("qstat", "-Q")
        return None if told is None else parse_queues(told)


def parse_records(records: Mapping[str, Any]) -> dict[str, JobState]:
    """Read the attributes of jobs; their names are like `12.server`."""
    states = {}
    for name, record in records.items():
        word = str(record.get("job_state", ""))
        phase = _PHASES.get(word, "unknown")
        comment = str(record.get("comment", "")).strip()
        reason = comment if phase == "pending" else ""
        if phase == "ended":
            reason = _describe_end(record, comment)
        states[name.split(".")[0]] = JobState(phase, word, reason)
    return states


def _describe_end(record: Mapping[str, Any], comment: str) -> str:
    status = str(record.get("Exit_status", record.get("exit_status", "")))
    words = _STATUSES.get(status, "")
    if status.isdecimal() and int(status) > 256:
        words = f"signal {int(status) - 256}"
    told = f"exit status {status}" if status else ""
    return ", ".join(part for part in (words, told, comment) if part)


def parse_text(text: str) -> dict[str, dict[str, str]]:
    """Read `qstat -f`: long values go on in the next line, after a tab."""
    records: dict[str, dict[str, str]] = {}
    for part in text.replace("\n\t", "").split("Job Id: ")[1:]:
        name, _, lines = part.partition("\n")
        records[name.strip()] = dict(re.findall(r"^\s+(\S+) = (.*)$", lines, re.M))
    return records


def parse_queues(text: str) -> list[str]:
    """Read the table of `qstat -Q`: two lines of heading."""
    return unique([line.split()[0] for line in text.splitlines()[2:] if line.strip()])
