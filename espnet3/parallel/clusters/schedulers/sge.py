"""Grid Engine: qstat, qacct and qconf."""

import getpass
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Any

from espnet3.parallel.clusters.schedulers.base import JobState
from espnet3.parallel.clusters.schedulers.command import ask, unique
from espnet3.text import folded


class GridEngine:
    """Jobs, hosts and queues of Grid Engine."""

    status_command = "qstat"

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask qstat for all jobs of this user, and qacct for one that is not among them."""
        told = ask("qstat", "-xml", "-u", getpass.getuser())
        words = None if told is None else parse_qstat(told)
        if words is None:
            return {}
        waiting = [job for job in job_ids if "q" in words.get(job, "")]
        reasons = parse_details(ask("qstat", "-j", ",".join(waiting)) or "") if waiting else {}
        states = {}
        for job in job_ids:
            if job not in words:
                # Its record may come later, or never: then one list without it proves nothing.
                record = parse_qacct(ask("qacct", "-j", job) or "")
                gone = JobState("unknown", "", "it is not in qstat any more")
                states[job] = JobState("ended", "ended", record) if record else gone
            elif "q" in words[job]:  # qw, hqw, Eqw, and Rq for one that was rescheduled
                states[job] = JobState("pending", words[job], reasons.get(job, ""))
            else:
                states[job] = JobState("running", words[job])
        return states

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return all execution hosts."""
        return unique((ask("qconf", "-sel") or "").split())

    def queues(self) -> list[str] | None:
        """Return the queues."""
        told = ask("qconf", "-sql")
        return None if told is None else unique(told.split())


def parse_qstat(text: str) -> dict[str, str] | None:
    """Return the state of each job, such as `qw`, from `qstat -xml`; None if it is no list."""
    try:
        root = ET.fromstring(text)
    except ET.ParseError:
        return None
    if root.tag != "job_info":
        return None
    jobs = root.iter("job_list")
    return {job.findtext("JB_job_number", ""): job.findtext("state", "") for job in jobs}


def parse_details(text: str) -> dict[str, str]:
    """Return why each job waits, from `qstat -j`: its error, else what the scheduler says."""
    reasons: dict[str, str] = {}
    for part in re.split(r"^=+$", text, flags=re.M):
        number = re.search(r"^job_number:\s+(\d+)", part, re.M)
        if number is None:
            continue
        error = re.search(r"^error reason\s+\d+:\s+(.*)$", part, re.M)
        # The scheduler's words come last, for all jobs or for this one.
        words = re.search(r"^scheduling info:\s+(.*(?:\n\s{10,}.*)*)", part, re.M)
        if error:
            reasons[number[1]] = f"error: {error[1].strip()}"
        elif words and "is turned off" not in words[1]:
            reasons[number[1]] = folded(words[1])[:200]
    return reasons


def parse_qacct(text: str) -> str:
    """Return how a job ended, from `qacct -j`."""
    record = dict(line.split(None, 1) for line in text.splitlines() if len(line.split()) > 1)
    parts = []
    # `failed 37 : qmaster enforced h_rt, h_cpu, or h_vmem limit`
    failed = record.get("failed", "0").strip()
    if failed != "0":
        parts.append(failed.partition(":")[2].strip() or f"failed {failed}")
    if record.get("deleted_by", "NONE").strip() != "NONE":
        parts.append(f"deleted by {record['deleted_by'].strip()}")
    if "exit_status" in record:
        parts.append(f"exit status {record['exit_status'].split()[0]}")
    return ", ".join(parts)
