"""HTCondor."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from espnet3.schedulers.base import CONTINUE_CODE, Directives, JobState, Phase, Scheduler
from espnet3.schedulers.command import ask, ask_json, read_json, unique

_ATTRIBUTES = (
    "ClusterId,ProcId,JobStatus,HoldReason,HoldReasonCode,LastHoldReasonCode,RemoveReason,"
    "ExitCode,ExitBySignal,ExitSignal,JobDisconnectedDate"
)
_STATUSES: dict[int, tuple[Phase, str]] = {
    1: ("pending", "IDLE"), 2: ("running", "RUNNING"), 3: ("ended", "REMOVED"),
    # A held job (5) may be released, so it waits; `_OVER_LIMIT` has the holds that are final.
    4: ("ended", "COMPLETED"), 5: ("pending", "HELD"), 6: ("running", "TRANSFERRING_OUTPUT"),
    7: ("running", "SUSPENDED"),
}  # fmt: skip
_OVER_TIME = (46, 47)  # of allowed_job_duration and allowed_execute_duration
_OVER_LIMIT = {
    **dict.fromkeys(_OVER_TIME, "its walltime was over"),
    34: "it used more memory than it had asked for",
}
"""Codes of holds that are the end of a job: it has used up what it asked for."""
_IS_OVER_TIME = " || ".join(f"HoldReasonCode == {code}" for code in _OVER_TIME)


class HTCondor(Scheduler):
    """HTCondor, whose directives are settings with names, and whose jobs have no script."""

    name = "htcondor"
    title = "HTCondor"
    dask_cluster = "HTCondorCluster"
    needs = ("cores", "memory", "disk")
    dask_defaults = {
        "disk": None, "job-extra-directives": {}, "submit-command-extra": [],
        "cancel-command-extra": [], "shebang": "#!/usr/bin/env condor_submit",
    }  # fmt: skip

    submit = ("condor_submit",)
    # Not any number: the line begins with a count, `1 job(s) submitted to cluster 7`.
    job_id_pattern = r"submitted to cluster (\d+)"
    cancel = ("condor_rm",)
    status_command = "condor_q -better-analyze"
    ping = ("condor_q", "-totals")

    # One whose time is over is held; it would stay in the queue.
    default_settings = {
        "getenv": "True",
        "periodic_remove": f"(JobStatus == 5) && ({_IS_OVER_TIME})",
    }
    has_script = False
    starts_elsewhere = True
    # It has no way to hold a job back for another one; but a job can stay until it is content.
    requeue_code = CONTINUE_CODE

    job_word = "$(ClusterId).$(ProcId)"  # a macro of a submit file
    gpu_options = (r"\brequest_gpus *= *(\d+)",)
    time_options = (r"\ballowed_(?:job|execute)_duration *= *(\d+)",)
    launches = False

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask condor_q, and condor_history for those that have left the queue."""
        chosen = ["-json", "-attributes", _ATTRIBUTES]
        output = ask("condor_q", *job_ids, *chosen)
        ads = read_json(output)
        if output is None or (output.strip() and not isinstance(ads, list)):
            return {}
        found = parse_jobs(ads)  # of no job it prints nothing at all
        gone = [job for job in job_ids if job not in found]
        if gone:
            # A pool may keep no history; but it has said that they are not in the queue.
            # Without a limit, condor_history may read the whole file although it has found all.
            limit = ["-limit", str(len(gone))]
            found.update(parse_jobs(ask_json("condor_history", *gone, *chosen, *limit)))
        return {job: found.get(job, JobState("unknown", "")) for job in job_ids}

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return all machines of the pool."""
        return unique((ask("condor_status", "-startd", "-af", "Machine") or "").split())

    def queues(self) -> list[str] | None:
        """Return None: HTCondor has no queues."""
        return None

    def job_id(self, output: str) -> str:
        """Return the number of the first process of a cluster."""
        cluster = super().job_id(output)
        return f"{cluster}.0" if cluster else ""

    def asked(self, script: str) -> list[str]:
        """Return what is requested."""
        wanted = r"^(?:MY\.DaskWorker(?!Name)|[Rr]equest_?)\S+ = .*$"
        return re.findall(wanted, script, re.MULTILINE)

    def merge_settings(self, made: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """Know a setting in all the ways in which its name may be written."""
        said = {_plain_name(name) for name in own}
        return {**{k: v for k, v in made.items() if _plain_name(k) not in said}, **own}

    def _excluding(self, directives: Directives, nodes: list[str]) -> Directives:
        settings = dict(directives) if isinstance(directives, Mapping) else {}
        # Names of settings ignore case: a second spelling would replace the user's requirements.
        name = next((key for key in settings if key.lower() == "requirements"), "requirements")
        # In parentheses: && binds tighter than an || of the user's.
        users = [f"({settings[name]})"] if name in settings else []
        mine = [f'(Machine != "{node}")' for node in nodes]
        return {**settings, name: " && ".join([*users, *mine])}

    def with_restart(self, directives: Directives, max_successors: int | None) -> Directives:
        """Let a job stay in the queue until it ends with another code than ours."""
        if not isinstance(directives, Mapping):
            return directives
        # A job that was killed by a signal stays in the queue, too: its work is not done.
        is_over = f"(ExitBySignal == False) && (ExitCode != {self.requeue_code})"
        if max_successors is not None:
            is_over = f"({is_over}) || (NumJobStarts > {max_successors})"
        # Ours first, so that a user's own on_exit_remove wins.
        return {"on_exit_remove": is_over, **directives}


def _plain_name(name: str) -> str:
    """Return a name that `RequestCpus` and `request_cpus` have in common."""
    return name.lower().replace("_", "")


def parse_jobs(output: Any) -> dict[str, JobState]:
    """Read the ads of jobs."""
    ads = output if isinstance(output, list) else []
    return {f"{ad.get('ClusterId')}.{ad.get('ProcId')}": _state(ad) for ad in ads}


def _state(ad: Mapping[str, Any]) -> JobState:
    phase, word = _STATUSES.get(int(ad.get("JobStatus", 0)), ("unknown", ""))
    if word == "HELD":
        held = str(ad.get("HoldReason", ""))
        if over := _OVER_LIMIT.get(ad.get("HoldReasonCode", 0)):
            return JobState("ended", word, f"{over}: {held}")
        return JobState(phase, word, f"held: {held}")
    if phase == "ended":
        return JobState(phase, word, _describe_end(ad))
    is_lost = word == "RUNNING" and "JobDisconnectedDate" in ad  # for up to JobLeaseDuration
    return JobState(phase, word, "its node does not answer" if is_lost else "")


def _describe_end(ad: Mapping[str, Any]) -> str:
    reason = str(ad.get("RemoveReason", ""))
    over = _OVER_LIMIT.get(ad.get("LastHoldReasonCode", 0))
    if over and reason:  # removed by `periodic_remove`, or by a user who saw it held
        reason = f"{over}: {reason}"
    parts = [reason]
    if ad.get("ExitBySignal"):
        parts.append(f"signal {ad.get('ExitSignal')}")
    elif "ExitCode" in ad:
        parts.append(f"exit code {ad['ExitCode']}")
    return ", ".join(part for part in parts if part)
