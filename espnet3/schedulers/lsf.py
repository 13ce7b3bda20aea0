"""LSF."""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from espnet3.schedulers.base import (
    FORGOTTEN,
    Directives,
    JobRequest,
    JobState,
    Made,
    Phase,
    Scheduler,
    WorkerRequest,
)
from espnet3.schedulers.command import ask, ask_json, call, unique
from espnet3.schedulers.script import optional, quoted, safe_name

_FIELDS = "jobid stat exit_code exit_reason pend_reason"
_PHASES: dict[str, Phase] = {
    "PEND": "pending", "PSUSP": "pending", "WAIT": "pending", "FWD_PEND": "pending",
    "RUN": "running", "USUSP": "running", "SSUSP": "running", "PROV": "running",
    "UNKWN": "running",  # the host does not answer; LSF waits for it
    # ZOMBI was killed while its host did not answer: LSF has given it up.
    "DONE": "ended", "EXIT": "ended", "ZOMBI": "ended",
    "POST_DONE": "ended", "POST_ERR": "ended",  # what follows a job has ended, too
}  # fmt: skip
_SECTION = re.compile(r"\b(\w+)\[")
_NOT_FOUND = re.compile(r"\bis not found\b|no matching job found", re.IGNORECASE)
_CLOSED = {"Closed": "it takes no jobs", "Inact": "it starts no jobs"}
"""How the halves of a queue's status begin where they are not Open and Active."""
_FINISH = re.compile(
    r"(?P<done>Done successfully)|Exited by signal (?P<signal>\d+)"
    r"|Exited with exit code (?P<code>\d+)|Exited(?= *[;.])|Completed <exit>"
)
"""The last event of a job in its history."""


_LIMITS = re.compile(r"^\s*LSF_UNIT_FOR_LIMITS[^=\n]*=([kmgtpez])", re.MULTILINE | re.IGNORECASE)


class LSF(Scheduler):
    """LSF."""

    name = "lsf"
    title = "LSF"
    dask_cluster = "LSFCluster"
    settings = {
        "-q": "queue", "-P": "project", "-W": "walltime", "-n": "ncpus", "-M": "mem",
    }  # fmt: skip
    dask_defaults = {
        "walltime": "00:30", "project": None, "ncpus": None, "mem": None, "lsf-units": None,
        "use-stdin": True,
    }  # fmt: skip
    worker_options = ("project", "use_stdin")

    submit = ("bsub",)
    reads_stdin = True  # else it does not read the options in a script
    job_id_pattern = r"Job <(\d+)>"
    cancel = ("bkill",)
    status_command = "bjobs -p"
    ping = ("lsid",)

    mark = "#BSUB"
    log_is_late = True  # unless a centre sets LSB_STDOUT_DIRECT
    # ended() holds after any end; done() would wait for a success that may never come.
    after = '-w "ended({job})"'
    after_pattern = r"-w\b"
    requeue_code = 99

    repeatable = ("-R", "-E", "-Ep", "-f", "-a")
    needed = {"-n": "cores"}

    job_variables = ("LSB_JOBID",)

    gpu_options = (r"-gpu +\"?(?:\S*:)?num=(\d+)",)
    time_options = (r"^-W ?(\d+(?::\d+)?)\b",)
    asks_for_time = r"^-W"
    minutes_last = True
    example_time = "04:00"

    waits = {"walltime": r"RUNLIMIT"}
    # The keywords that bjobs, bhist and bacct have for how a job was ended.
    ends = {
        "memory": r"TERM_(MEMLIMIT|SWAP)",
        "walltime": r"TERM_(RUNLIMIT|CPULIMIT|DEADLINE)",
        "node": r"ZOMBI|TERM_(REMOVE_HUNG_JOB|PRE_EXEC_FAIL|SLURM)",
        "preempted": r"TERM_(PREEMPT|LOAD|WINDOW|RC|MC_RECALL)\b",
        "cancelled": r"TERM_((FORCE_)?(OWNER|ADMIN)|BUCKET_KILL|ORPHAN_SYSTEM)",
        "missing": r"TERM_CWD_NOTEXIST",
    }
    success = rf"^(POST_)?DONE\b|{Scheduler.success}"

    # The variable alternates names of hosts and numbers of slots.
    hosts = """awk '{for (i = 1; i < NF; i += 2) print $i}' <<<"$LSB_MCPU_HOSTS\""""
    remote = 'blaunch "$@"'
    number_in_shell = "LSB_JOBID"

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask bjobs, with the jobs that have ended, and bhist for those that it has forgotten."""
        # It ends with an error if it knows all jobs but one, and where a centre wants it so.
        output = ask_json("bjobs", "-a", "-json", "-o", _FIELDS, *job_ids, any_code=True)
        if not isinstance(output, dict) or "RECORDS" not in output:
            return {}
        records = output["RECORDS"]
        if any(not _NOT_FOUND.search(r["ERROR"]) for r in records if r.get("ERROR")):
            return {}  # it could not look
        found = parse_records(records)
        gone = [r["JOBID"] for r in records if r.get("ERROR") and r.get("JOBID") in job_ids]
        if gone:
            found |= self._history(gone)
        return {job: found.get(job, JobState("unknown", "")) for job in job_ids}

    def _history(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask for jobs of which bjobs says that there are none: ended, or so new that it is late.

        A job is in its history before bsub has said its number. So one that is in neither is over.
        """
        answer = call(["bhist", "-l", *job_ids])
        said = f"{answer.out}\n{answer.error}"
        # bhist reads event files and may be too slow; then the jobs stay unknown, not ended.
        if answer.code is None:
            return {}
        found = parse_bhist(said)
        # It does not name the jobs that it lacks: they are those that it does not describe.
        missing = dict.fromkeys(job_ids, FORGOTTEN) if _NOT_FOUND.search(said) else {}
        return {**missing, **found}

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return all hosts."""
        # -w: without it, long names are cut off.
        return parse_table(ask("bhosts", "-w") or "")

    def queues(self) -> list[str] | None:
        """Return the queues."""
        output = ask("bqueues", "-w")
        return None if output is None else parse_table(output)

    def closed_queue(self, queue: str | None) -> str:
        """Read the status of a queue, such as Closed:Inact; which one is the default is unknown."""
        if queue is None:
            return ""
        rows = map(str.split, (ask("bqueues", "-w", queue) or "").splitlines())
        status = next((row[2] for row in rows if len(row) > 2 and row[0] == queue), "")
        reasons = [why for begin, why in _CLOSED.items() if re.search(rf"\b{begin}", status)]
        why = " and ".join(reasons)
        return f"queue {queue} is {status}: {why} (bqueues)" if reasons else ""

    def worker_directives(self, request: WorkerRequest) -> Iterator[str]:
        yield f"-J {request.name}"
        # As everywhere in dask-jobqueue, a worker's name and not the job's.
        worker = request.options.get("name") or "worker"
        yield from request.logs(f"-e {{}}/{worker}-%J.err", f"-o {{}}/{worker}-%J.out")
        yield from request.each(queue="-q {}", project='-P "{}"')
        yield f"-n {request.n_cpus}"
        if request.n_cpus > 1:
            yield '-R "span[hosts=1]"'
        yield f"-M {math.ceil(request.n_bytes / 1000 ** _unit_of_limits())}"
        yield from request.each(walltime="-W {}")

    def directives(self, request: JobRequest) -> Iterator[Made]:
        """Ask for slots, as many on each node as it has cores of ours."""
        yield Made(f"-J {safe_name(request.name)}")
        yield from optional("-q {}", request.queue, "queue")
        yield from optional("-P {}", request.account, "account")
        yield Made(f"-n {request.n_nodes * request.n_cpus}")
        # Without it LSF may spread the slots over any number of hosts.
        yield Made(f'-R "span[ptile={request.n_cpus}]"')
        if request.n_gpus:
            yield Made(f'-gpu "num={request.n_gpus}"')
        if request.megabytes is not None:
            # With its unit: what a bare number counts is a setting of the centre.
            yield Made(f'-R "rusage[mem={request.megabytes}MB]"', "megabytes")
        if request.seconds is not None:
            yield Made(f"-W {self.spell_time(request.seconds)}", "time")
        if request.requeue:
            yield from (Made("-r"), Made(f"-Q {self.requeue_code}"))
        if request.log is not None:
            yield Made(f"-o {quoted(request.log)}")

    def option_name(self, name: str, value: str) -> str:
        """Return what a requirement is about; others of its kind may stand beside it."""
        if name != "-R":
            return name
        sections = _SECTION.findall(value)
        if "span" in sections:
            return "-R span"
        return "-R mem" if "rusage" in sections and "mem=" in value else "-R"

    def _excluding(self, directives: Directives, nodes: list[str]) -> Directives:
        wanted = " && ".join(f"hname!='{node}'" for node in nodes)
        # LSF honours several -R together, so the user's own stay as they are.
        return [*directives, f'-R "select[{wanted}]"']

    def spell_time(self, seconds: int) -> str:
        """Return hours and minutes."""
        # Rounded up, so that a job gets at least the time that was asked for.
        minutes = -(-seconds // 60)
        return f"{minutes // 60}:{minutes % 60:02d}"

    def count_hosts(self, environ: Mapping[str, str]) -> int | None:
        """Count the hosts of either variable."""
        pairs = environ.get("LSB_MCPU_HOSTS", "").split()
        # LSB_MCPU_HOSTS alternates hosts and slots; LSB_HOSTS repeats a host for each slot.
        return len(set(pairs[::2]) or set(environ.get("LSB_HOSTS", "").split())) or None


def _unit_of_limits() -> int:
    """Return the unit of memory that a cluster has set, as a power of 1000: kB if it says none."""
    folder = os.environ.get("LSF_ENVDIR") or os.environ.get("LSF_CONFDIR") or "/etc"
    lines: list[str] = []
    with suppress(OSError), open(os.path.join(folder, "lsf.conf"), errors="replace") as file:
        lines = _LIMITS.findall(file.read())
    # The last one counts.
    return "kmgtpez".index(lines[-1].lower()) + 1 if lines else 1


def parse_records(records: Sequence[Mapping[str, str]]) -> dict[str, JobState]:
    """Read the output of `bjobs -json`; a record of a forgotten job, with an ERROR, is left out."""
    states = {}
    for record in records:
        if record.get("ERROR"):
            continue
        word = record.get("STAT", "")
        phase = _PHASES.get(word, "unknown")
        reason = ""
        if phase == "pending":
            reason = " ".join(record.get("PEND_REASON", "").split())
        elif phase == "ended":
            # One that was killed before it began has no code.
            code = record.get("EXIT_CODE", "").strip(" -") or ("0" if word == "DONE" else "")
            parts = [record.get("EXIT_REASON", "").strip(), f"exit code {code}" if code else ""]
            reason = ", ".join(part for part in parts if part and part != "-")
        states[record.get("JOBID", "")] = JobState(phase, word, reason)
    return states


def parse_bhist(text: str) -> dict[str, JobState]:
    """Read how jobs ended from `bhist -l`; those that have not are `unknown`."""
    states = {}
    for part in re.split(r"^-{20,}$", text, flags=re.M):
        words = re.sub(r"\n +", "", part)  # long lines continue in the next, within a word
        number = re.search(r"^\s*Job <(\d+)(?:\[\d+\])?>,", words)
        ends = list(_FINISH.finditer(words))
        if number is None:
            continue
        # The last end: a job that was requeued has one for each time it ran.
        states[number[1]] = _of_history(ends[-1], words) if ends else JobState("unknown", "")
    return states


def _of_history(end: re.Match[str], words: str) -> JobState:
    if end["done"]:
        return JobState("ended", "DONE", "exit code 0")
    why = re.findall(r"TERM_\w+[^;.\n]*", words)
    parts = [why[-1] if why else "", f"exit code {end['code']}" if end["code"] else ""]
    parts.append(f"signal {end['signal']}" if end["signal"] else "")
    return JobState("ended", "EXIT", ", ".join(part for part in parts if part))


def parse_table(text: str) -> list[str]:
    """Return the first column of a table with one line of heading."""
    return unique([line.split()[0] for line in text.splitlines()[1:] if line.strip()])
