"""Slurm: squeue, sacct and sinfo."""

import getpass
import re
from collections.abc import Mapping, Sequence
from typing import Any

from espnet3.parallel.clusters.schedulers.base import JobState, Phase
from espnet3.parallel.clusters.schedulers.command import ask, unique

_PENDING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
# One that is completing may have ended, or be on its way back to the queue.
_RUNNING = {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING"}
# Slurm names the kind of the end in the state; these are words for people who do not know it.
_ENDS = {
    "TIMEOUT": "its walltime was over",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "it used more memory than it had asked for",
    "PREEMPTED": "a job of higher priority took its place",
    "BOOT_FAIL": "its node did not boot",
    "DEADLINE": "its deadline passed",
}
_ENDED = {*_ENDS, "COMPLETED", "FAILED", "CANCELLED", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"}
TAG = "espnet3:"
"""What the comment of a job begins with, before the tag of its submission."""
_JOB = re.compile(r"\d+[\w.+\[\]%,-]*", re.ASCII)
_WORD = re.compile(r"[A-Z][A-Z_]+")
_FIELDS = "JobID:40,State:40,Reason:80,exit_code:40,ReasonList:200"


class Slurm:
    """Jobs, nodes and partitions of Slurm."""

    status_command = "squeue --me"

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask squeue for all jobs, and sacct for those that are forgotten or were cancelled."""
        # The first one twice: of a single job that it has forgotten, squeue makes an error.
        wanted = ",".join([*job_ids, job_ids[0]])
        told = ask(
            "squeue", "--noheader", "--states=all", f"--jobs={wanted}", f"--Format={_FIELDS}"
        )
        if told is None:
            return {}
        found = parse_squeue(told)
        if told.strip() and not found:
            return {}  # what it printed is no list of jobs
        states = {job: found.get(job, JobState("unknown", "")) for job in job_ids}
        unclear = [job for job, state in states.items() if state.word in ("", "CANCELLED")]
        if unclear:
            # Only accounting knows who cancelled a job; many clusters have it.
            command = ["sacct", "-n", "-X", "-P", "-o", "JobID,State,ExitCode", "-j"]
            known = parse_sacct(ask(*command, ",".join(unclear)) or "")
            states.update({job: state for job, state in known.items() if job in unclear})
        return states

    def find_tags(self, tags: Sequence[str]) -> dict[str, str] | None:
        """Ask squeue for the comments of this user's jobs, among which are the tags."""
        told = ask(
            "squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}",
            "--Format=JobID:40,Comment:200",
        )  # fmt: skip
        if told is None:
            return None
        rows = [(line[:40].strip(), line[40:].strip()) for line in told.splitlines()]
        numbers = {comment: job for job, comment in rows if job.isdecimal()}
        return {tag: numbers[mark] for tag in tags if (mark := f"{TAG}{tag}") in numbers}

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return the addresses of a partition's nodes, as Slurm itself uses them."""
        queue = options.get("queue")
        chosen = [f"--partition={queue}"] if queue else []
        told = ask("sinfo", "--noheader", "--Node", "--format=%o", *chosen)
        return unique((told or "").split())

    def queues(self) -> list[str] | None:
        """Return the partitions."""
        told = ask("sinfo", "--noheader", "--format=%R")
        return None if told is None else unique(told.split())


def parse_squeue(text: str) -> dict[str, JobState]:
    """Read the columns that we asked for."""
    states = {}
    for line in text.splitlines():
        job, word, reason, code = (
            line[start : start + width].strip()
            for start, width in ((0, 40), (40, 40), (80, 80), (160, 40))
        )
        detail = line[200:].strip()
        if _JOB.fullmatch(job) and _WORD.fullmatch(word):
            states[job] = _state(word, reason, code, detail)
    return states


def _state(word: str, reason: str, code: str, detail: str) -> JobState:
    phase = _phase(word)
    if phase != "ended":
        # squeue tells either the nodes or, in parentheses, why there are none: more than a reason.
        told = detail.strip("()") if detail.startswith("(") else ""
        return JobState(phase, word, told or _none(reason))
    # squeue tells the status as wait() returns it, sacct as 3:0.
    status = int(code) if code.isdecimal() else 0
    return JobState(phase, word, describe_end(word, _none(reason), f"{status >> 8}:{status & 127}"))


def describe_end(word: str, reason: str, code: str) -> str:
    """Return how a job ended, in plain words."""
    status, _, number = code.partition(":")
    parts = [_ENDS.get(word.split()[0], "") if word else ""]
    if reason not in ("", "NonZeroExitCode", "TimeLimit", "NodeDown", "OutOfMemory"):
        parts.append(reason)
    if word.startswith(("FAILED", "COMPLETED")) or status not in ("", "0"):
        parts.append(f"exit code {status or 0}")
    if number not in ("", "0"):
        parts.append(f"signal {number}")
    return ", ".join(part for part in parts if part)


def parse_sacct(text: str) -> dict[str, JobState]:
    """Read JobID|State|ExitCode; the state may be `CANCELLED by 1000`."""
    states = {}
    for line in text.splitlines():
        job, word, code = [*line.split("|"), "", ""][:3]
        if _JOB.fullmatch(job) and _WORD.fullmatch(word.split(" ")[0]):
            phase = _phase(word.split()[0])
            states[job] = JobState(phase, word, describe_end(word, "", code))
    return states


def _phase(word: str) -> Phase:
    if word in _PENDING:
        return "pending"
    if word in _RUNNING:
        return "running"
    # One that nobody knows, such as of a newer Slurm, is not taken for the end of a job.
    return "ended" if word in _ENDED else "unknown"


def _none(reason: str) -> str:
    return "" if reason in ("None", "N/A") else reason
