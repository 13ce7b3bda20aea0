"""OAR."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from espnet3.errors import ConfigError
from espnet3.schedulers.base import JobState, Option, Phase, Scheduler, WorkerRequest
from espnet3.schedulers.command import ask_json, call, read_json, unique
from espnet3.schedulers.script import describe_unused, plain

_PHASES: dict[str, Phase] = {
    "Waiting": "pending", "Hold": "pending", "toAckReservation": "pending", "toLaunch": "pending",
    "Launching": "running", "Running": "running", "Suspended": "running", "Resuming": "running",
    "Finishing": "running", "toError": "running", "Error": "ended", "Terminated": "ended",
}  # fmt: skip
_N_SINGLE = 16  # questions for jobs that an answer left out; of more of them nothing is known
_NOT_ON_NODE = (
    "PING_CHECKER_NODE_SUSPECTED", "SSH_TRANSFER_TIMEOUT", "LAUNCHING_OAREXEC_TIMEOUT",
    "EXIT_VALUE_OAREXEC", "BAD_HASHTABLE_DUMP", "CANNOT_CREATE_TMP_DIRECTORY",
    "CAN_NOT_WRITE_NODE_FILE", "CANNOT_WRITE_NODE_FILE", "CAN_NOT_WRITE_PID_FILE",
    "CANNOT_WRITE_PID_FILE", "CPUSET_ERROR", "PROLOGUE_ERROR", "RESERVATION_NO_NODE",
)  # fmt: skip
"""Events of jobs that OAR could not start, or lost, because of their node."""
_NO_FILES = ("WORKING_DIRECTORY", "OUTPUT_FILES")
_FRAGGED = re.compile(r"User (\S+) requested")


class OAR(Scheduler):
    """OAR."""

    name = "oar"
    title = "OAR"
    dask_cluster = "OARCluster"
    settings = {"-q": "queue", "--project": "project", "-l": "resource_spec"}
    part_settings = {"walltime": "walltime"}  # a part of -l
    dask_defaults = {
        "walltime": "00:30:00", "project": None, "resource-spec": None,
        "memory-per-core-property-name": None,
    }  # fmt: skip
    worker_options = ("project", "resource_spec")

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

    ends = {"cancelled": r"killed by Leon"}
    success = rf"^Terminated *$|{Scheduler.success}"

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask oarstat for all of them, and singly for those that its answer leaves out."""
        found = _ask(job_ids)
        if found is None:
            return {}
        missing = [job for job in job_ids if job not in found]
        for job in missing[:_N_SINGLE] if len(job_ids) > 1 else ():
            # Not every version takes several numbers.
            alone = _ask([job])
            if alone is None:
                return {}
            found |= {job: JobState("unknown", ""), **alone}
        if len(job_ids) == 1:
            found |= dict.fromkeys(missing, JobState("unknown", ""))
        return {job: found[job] for job in job_ids if job in found}

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

    def worker_directives(self, request: WorkerRequest) -> Iterator[str]:
        yield f"-n {request.name}"
        yield from request.each(queue="-q {}", project="--project {}")
        # On one line: several would be alternatives.
        cores = request.options.get("resource_spec", f"/nodes=1/core={request.n_cpus}")
        yield ",".join([f"-l {cores}", *request.each(walltime="walltime={}")])

    def merge(self, options: list[Option], where: str, notes: list[str]) -> list[Option]:
        """Put all resources on one line: each `-l` is an alternative for OAR."""
        return _merge_alternatives(options, where, notes)

    def granted_seconds(self, environ: Mapping[str, str]) -> float | None:
        """Read the variable that has it."""
        name = "OAR_JOB_WALLTIME_SECONDS"
        return float(environ[name]) if name in environ else None


def _ask(job_ids: Sequence[str]) -> dict[str, JobState] | None:
    """Return what oarstat says of jobs, of which it leaves out those that it does not know.

    None if it does not answer, or not in its own words.
    """
    # -f: else there are no events, which tell how a job ended.
    answer = call(["oarstat", "-f", "-J", *(word for job in job_ids for word in ("-j", job))])
    # Of no job at all Perl makes null, and an older one an error.
    knows_none = answer.code == 0 and answer.out.strip() in ("", "null", "{}")
    if knows_none or "hash- or arrayref expected" in answer.error:
        return {}
    output = read_json(answer.out)
    if not isinstance(output, dict) or not all(map(_is_record, output.values())):
        return None
    return parse_jobs(output)


def _is_record(record: Any) -> bool:
    return isinstance(record, dict) and "state" in record


def parse_jobs(output: Any) -> dict[str, JobState]:
    """Read jobs by their number, from the output of `oarstat -J`."""
    states = {}
    for job, record in output.items() if isinstance(output, dict) else ():
        word = str(record.get("state", ""))
        phase = _PHASES.get(word, "unknown")
        reason = str(record.get("message") or "") if phase == "pending" else ""
        if phase == "ended":
            reason = _describe_end(word, record)
        states[str(job)] = JobState(phase, word, reason)
    return states


def _describe_end(word: str, record: Mapping[str, Any]) -> str:
    events = [event for event in record.get("events") or [] if isinstance(event, dict)]
    said = {str(event.get("type")): str(event.get("description", "")) for event in events}
    parts = [_cause(said)]
    message = str(record.get("message") or "")
    if not parts[0] and not message.startswith("R="):  # what it asked for, of a job that ran
        parts.append(message)
    if record.get("exit_code") is not None:
        status = int(record["exit_code"])  # as wait() returns it
        if status > 0 or (status == 0 and word != "Error"):
            parts.append(f"signal {status & 127}" if status & 127 else f"exit code {status >> 8}")
    return ", ".join(part for part in parts if part)


def _cause(events: Mapping[str, str]) -> str:
    """Return why OAR ended a job: for whatever reason it does, it also logs a request to do so."""
    if "BESTEFFORT_KILL" in events:
        return "preempted by a job of higher priority"
    if "WALLTIME" in events:
        if "EXTERMINATE_JOB" in events:
            return "its node was lost: it did not end the job when its time was over"
        return "its walltime was over"
    if found := next((name for name in _NOT_ON_NODE if name in events), ""):
        return f"its node failed: {found}, {events[found]}"
    if found := next((name for name in _NO_FILES if name in events), ""):
        return f"No such file or folder on its node: {found}, {events[found]}"
    if (asked := events.get("FRAG_JOB_REQUEST")) is not None:
        by = _FRAGGED.search(asked)
        return f"deleted by {by[1]}" if by else "cancelled"
    return ""


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
        # -2 is no directive's number: `_write` must print this text, not the user's line.
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
