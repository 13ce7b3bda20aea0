"""OAR."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from espnet3.errors import ConfigError
from espnet3.schedulers.base import JobState, Option, Phase, Scheduler
from espnet3.schedulers.command import ask_json, unique
from espnet3.schedulers.script import describe_unused, plain

_PHASES: dict[str, Phase] = {
    "Waiting": "pending", "Hold": "pending", "toAckReservation": "pending", "toLaunch": "pending",
    "Launching": "running", "Running": "running", "Suspended": "running", "Resuming": "running",
    "Finishing": "running", "toError": "ended", "Error": "ended", "Terminated": "ended",
}  # fmt: skip


class OAR(Scheduler):
    """OAR."""

    name = "oar"
    title = "OAR"
    dask_cluster = "OARCluster"
    settings = {"-q": "queue", "--project": "project", "-l": "resource_spec"}
    part_settings = {"walltime": "walltime"}  # a part of -l

    submit = ("oarsub",)
    job_id_pattern = r"OAR_JOB_ID=(\d+)"
    cancel = ("oardel",)
    status_command = "oarstat -u"
    ping = ("oarstat", "--version")

    mark = "#OAR"
    sets_gpus = False
    after = "-a {job}"
    after_pattern = r"-a\b"
    repeatable = ("-l", "-t", "-a")

    job_variables = ("OAR_JOB_ID",)
    time_options = (r"\bwalltime=([\d:]+)",)
    launches = False

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask oarstat for all jobs of this user, and singly for those that are not among them."""
        output = ask_json("oarstat", "-u", "-J")
        if output is None and ask_json("oarstat", "-J") is None:
            return {}
        found = parse_jobs(output)
        for job in job_ids:
            if job not in found:
                found.update(parse_jobs(ask_json("oarstat", "-f", "-J", "-j", job)))
        return {job: found.get(job, JobState("unknown", "")) for job in job_ids}

    def submission(self, words: Sequence[str], script: str) -> tuple[list[str], str | None]:
        """Hand the script over as an argument: as a file it would have to be there on the node."""
        lines = Path(script).read_text(encoding="utf-8").splitlines(keepends=True)
        options = [line.removeprefix("#OAR ") for line in lines if line.startswith("#OAR ")]
        commands = [line for line in lines if not line.startswith("#")]
        return [*words, *shlex.split(" ".join(options)), "".join(commands)], None

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return all nodes."""
        output = ask_json("oarnodes", "-J")
        # Resources by number, or by node.
        rows = output.values() if isinstance(output, dict) else output or []
        return unique(
            [str(row.get("network_address", "")) for row in rows if isinstance(row, dict)]
        )

    def queues(self) -> list[str] | None:
        """Return None: only administrators can see it."""
        return None

    def merge(self, options: list[Option], where: str, notes: list[str]) -> list[Option]:
        """Put all resources on one line: each `-l` is an alternative for OAR."""
        return _merge_alternatives(options, where, notes)

    def granted_seconds(self, environ: Mapping[str, str]) -> float | None:
        """Read the variable that has it."""
        name = "OAR_JOB_WALLTIME_SECONDS"
        return float(environ[name]) if name in environ else None


def parse_jobs(output: Any) -> dict[str, JobState]:
    """Read jobs by their number, from the output of `oarstat -J`."""
    states = {}
    for job, record in output.items() if isinstance(output, dict) else ():
        word = str(record.get("state", ""))
        phase = _PHASES.get(word, "unknown")
        reason = str(record.get("message") or "")
        if phase == "ended" and record.get("exit_code") is not None:
            status = int(record["exit_code"])  # as wait() returns it
            parts = [reason, f"exit code {status >> 8}"] if status >= 0 else [reason]
            reason = ", ".join(part for part in parts if part)
        states[str(job)] = JobState(phase, word, reason if phase != "running" else "")
    return states


def _merge_alternatives(options: list[Option], where: str, notes: list[str]) -> list[Option]:
    own = [o for o in options if o.name in ("-l", "--resource") and o.made is None]
    made = next((o for o in options if o.name == "-l" and o.made is not None), None)
    if not own or made is None or made.made is None:
        return options
    resources, walltime = _split(made.value)
    lines = []
    for option in own:
        asked, time = _split(plain(option.value))
        if asked and (key := made.made.key):
            raise ConfigError(
                f"{key} is {resources!r}, and {where} has "
                f"{option.text!r}, which OAR takes for an alternative.",
                fix=f"Write one: resource_spec: {asked!r}",
            )
        key = made.made.parts.get("walltime", "")
        if key and time and walltime and time != walltime:
            notes.append(describe_unused(key, f"walltime={walltime}", option.text, where))
        if asked and resources and not re.search(r"\b(?:core|cpu)s?=", asked):
            notes.append(
                f"{where} has {option.text!r}, which is asked for in place of {resources!r}: the "
                "cores are those that come with it"
            )
        parts = [asked or resources]
        parts += [f"walltime={time or walltime}"] if time or walltime else []
        lines.append(replace(option, name="-l", text=f"-l {','.join(parts)}", line=-2))
    place = options.index(made)
    rest = [o for o in options if o not in own and o is not made]
    rest[place:place] = lines
    return rest


def _split(value: str) -> tuple[str, str]:
    """Return the resources and the walltime of a request."""
    items = value.split(",")
    times = [item.partition("=")[2] for item in items if item.startswith("walltime=")]
    return ",".join(i for i in items if not i.startswith("walltime=")), (times or [""])[-1]
