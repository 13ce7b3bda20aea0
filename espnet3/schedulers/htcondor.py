"""HTCondor."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from espnet3.schedulers.base import CONTINUE_CODE, Directives, JobState, Phase, Scheduler
from espnet3.schedulers.command import ask, ask_json, read_json, unique

_ATTRIBUTES = (
    "ClusterId,ProcId,JobStatus,HoldReason,RemoveReason,ExitCode,ExitBySignal,ExitSignal,"
    "NumJobStarts"
)
_STATUSES: dict[int, tuple[Phase, str]] = {
    1: ("pending", "IDLE"), 2: ("running", "RUNNING"), 3: ("ended", "REMOVED"),
    4: ("ended", "COMPLETED"), 5: ("pending", "HELD"), 6: ("running", "TRANSFERRING_OUTPUT"),
    7: ("running", "SUSPENDED"),
}  # fmt: skip


class HTCondor(Scheduler):
    """HTCondor, whose directives are settings with names, and whose jobs have no script."""

    name = "htcondor"
    title = "HTCondor"
    dask_cluster = "HTCondorCluster"
    needs = ("cores", "memory", "disk")

    submit = ("condor_submit",)
    job_id_pattern = r"submitted to cluster (\d+)"
    cancel = ("condor_rm",)
    status_command = "condor_q -better-analyze"
    ping = ("condor_q", "-totals")

    default_settings = {"getenv": "True"}
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
        if output is None:
            return {}
        found = parse_jobs(read_json(output))
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
        name = next((key for key in settings if key.lower() == "requirements"), "requirements")
        users = [f"({settings[name]})"] if name in settings else []
        mine = [f'(Machine != "{node}")' for node in nodes]
        return {**settings, name: " && ".join([*users, *mine])}

    def with_restart(self, directives: Directives, max_successors: int | None) -> Directives:
        """Let a job stay in the queue until it ends with another code than ours."""
        if not isinstance(directives, Mapping):
            return directives
        is_over = f"(ExitBySignal == False) && (ExitCode != {self.requeue_code})"
        if max_successors is not None:
            is_over = f"({is_over}) || (NumJobStarts > {max_successors})"
        return {"on_exit_remove": is_over, **directives}


def _plain_name(name: str) -> str:
    """Return a name that `RequestCpus` and `request_cpus` have in common."""
    return name.lower().replace("_", "")


def parse_jobs(output: Any) -> dict[str, JobState]:
    """Read the ads of jobs."""
    states = {}
    for ad in output if isinstance(output, list) else []:
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
