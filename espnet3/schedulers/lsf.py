"""LSF."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from espnet3.schedulers.base import Directives, JobRequest, JobState, Made, Phase, Scheduler
from espnet3.schedulers.command import ask, ask_json, unique
from espnet3.schedulers.script import optional, quoted, safe_name

_FIELDS = "jobid stat exit_code exit_reason pend_reason"
_PHASES: dict[str, Phase] = {
    "PEND": "pending", "PSUSP": "pending", "WAIT": "pending", "FWD_PEND": "pending",
    "RUN": "running", "USUSP": "running", "SSUSP": "running", "PROV": "running",
    "UNKWN": "running",  # the host does not answer; LSF waits for it
    "DONE": "ended", "EXIT": "ended", "ZOMBI": "ended",
}  # fmt: skip
_SECTION = re.compile(r"\b(\w+)\[")


class LSF(Scheduler):
    """LSF."""

    name = "lsf"
    title = "LSF"
    dask_cluster = "LSFCluster"
    settings = {
        "-q": "queue", "-P": "project", "-W": "walltime", "-n": "ncpus", "-M": "mem",
    }  # fmt: skip

    submit = ("bsub",)
    reads_stdin = True  # else it does not read the options in a script
    job_id_pattern = r"Job <(\d+)>"
    cancel = ("bkill",)
    status_command = "bjobs -p"
    ping = ("lsid",)

    mark = "#BSUB"
    log_is_late = True
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
    ends = {
        "memory": r"MEMLIMIT",
        "walltime": r"RUNLIMIT|CPULIMIT",
        "node": r"ZOMBI",
        "cancelled": r"TERM_OWNER|TERM_ADMIN",
    }
    success = rf"^DONE\b|{Scheduler.success}"

    hosts = """awk '{for (i = 1; i < NF; i += 2) print $i}' <<<"$LSB_MCPU_HOSTS\""""
    remote = 'blaunch "$@"'
    number_in_shell = "LSB_JOBID"

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask bjobs, with the jobs that have ended."""
        output = ask_json("bjobs", "-a", "-json", "-o", _FIELDS, *job_ids, any_code=True)
        if not isinstance(output, dict):
            return {}
        found = parse_records(output.get("RECORDS", []))
        return {job: found.get(job, JobState("unknown", "")) for job in job_ids}

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return all hosts."""
        return parse_table(ask("bhosts", "-w") or "")

    def queues(self) -> list[str] | None:
        """Return the queues."""
        output = ask("bqueues", "-w")
        return None if output is None else parse_table(output)

    def directives(self, request: JobRequest) -> Iterator[Made]:
        """Ask for slots, as many on each node as it has cores of ours."""
        yield Made(f"-J {safe_name(request.name)}")
        yield from optional("-q {}", request.queue, "queue")
        yield from optional("-P {}", request.account, "account")
        yield Made(f"-n {request.n_nodes * request.n_cpus}")
        yield Made(f'-R "span[ptile={request.n_cpus}]"')
        if request.n_gpus:
            yield Made(f'-gpu "num={request.n_gpus}"')
        if request.megabytes is not None:
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
        return [*directives, f'-R "select[{wanted}]"']

    def spell_time(self, seconds: int) -> str:
        """Return hours and minutes."""
        minutes = -(-seconds // 60)
        return f"{minutes // 60}:{minutes % 60:02d}"

    def count_hosts(self, environ: Mapping[str, str]) -> int | None:
        """Count the hosts of either variable."""
        pairs = environ.get("LSB_MCPU_HOSTS", "").split()
        return len(set(pairs[::2]) or set(environ.get("LSB_HOSTS", "").split())) or None


def parse_records(records: Sequence[Mapping[str, str]]) -> dict[str, JobState]:
    """Read the output of `bjobs -json`; a record of a forgotten job has an ERROR only."""
    states = {}
    for record in records:
        word = record.get("STAT", "")
        phase = _PHASES.get(word, "unknown")
        reason = ""
        if phase == "pending":
            reason = " ".join(record.get("PEND_REASON", "").split())
        elif phase == "ended":
            code = record.get("EXIT_CODE", "") or "0"
            parts = [record.get("EXIT_REASON", "").strip(), f"exit code {code}"]
            reason = ", ".join(part for part in parts if part and part != "-")
        states[record.get("JOBID", "")] = JobState(phase, word, reason)
    return states


def parse_table(text: str) -> list[str]:
    """Return the first column of a table with one line of heading."""
    return unique([line.split()[0] for line in text.splitlines()[1:] if line.strip()])
