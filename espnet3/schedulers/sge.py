"""Grid Engine."""

import getpass
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from espnet3.errors import ConfigError, Note
from espnet3.schedulers.base import (
    CurrentJob,
    Default,
    Directives,
    JobRequest,
    JobState,
    Made,
    Scheduler,
    count_lines,
    read_number,
)
from espnet3.schedulers.command import Answer, ask, unique
from espnet3.schedulers.script import no_colon, optional, quoted, safe_name

_HOSTS = re.compile(r"-l\s+(?:\S*,)?(?:h|hostname)=")
_MEMORY = re.compile(r"\b(?:h_|s_)?(?:vmem|rss|mem\w*|ram\w*)=")


class GridEngine(Scheduler):
    """Grid Engine."""

    name = "sge"
    title = "SGE"
    dask_cluster = "SGECluster"
    settings = {
        "-q": "queue", "-P": "project", "-l h_rt": "walltime", "-l": "resource_spec",
    }  # fmt: skip

    submit = ("qsub",)
    terse = ("-terse",)
    cancel = ("qdel",)
    status_command = "qstat"
    job_status = "qstat -j"
    ping = ("qstat", "-g", "c")
    trial = ("qsub", "-w", "v")
    refusals = {
        "no suitable queues": "Ask for what a queue has: qconf -sq QUEUE, qhost -F",
        "unknown resource": (
            "Write what `qconf -sc` lists, under resource_spec or job_extra_directives"
        ),
        "unknown queue": "Write under options: queue: NAME, one that qconf -sql lists",
    }

    mark = "#$"
    # A job that is started again comes back when ours has been replaced, or when the run is over.
    # On a dead host such a job stays `r` until the host is back: a line in qstat.
    defaults = (Default("-V", r"-V\b"), Default("-r n", r"-r ?[yn]\b"))
    sets_gpus = False
    after = "-hold_jid {job}"
    after_pattern = r"-hold_jid\b"
    requeue_code = 99

    lists_resources = True
    repeatable = (
        "-q", "-v", "-m", "-M", "-hold_jid", "-ac", "-dc", "-sc", "-soft", "-hard", "-masterq",
    )  # fmt: skip
    rivals = {"-l h_rt": ("-l s_rt",)}

    job_variables = ("JOB_ID",)

    time_options = (r"\bh_rt=([\d:]+)",)
    asks_for_time = r"\b(?:h_rt|s_rt)="

    waits = {"size": r"no suitable queues", "held": r"^h[a-z]*qw", "error": r"Eqw"}
    ends = {"memory": r"h_vmem", "walltime": r"h_rt"}

    no_memory = (
        "memory has no common name on SGE, and is counted by slot there. Instead of it, write what "
        'your cluster has, such as: directives: ["-l h_vmem=8G"]'
    )
    hosts = """awk '!seen[$1]++ {print $1}' "$PE_HOSTFILE\""""
    remote = 'qrsh -inherit -V -nostdin "$@"'
    number_in_shell = "JOB_ID"

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask qstat for all jobs of this user, and qacct for one that is not among them."""
        output = ask("qstat", "-xml", "-u", getpass.getuser())
        words = None if output is None else parse_qstat(output)
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
        output = ask("qconf", "-sql")
        return None if output is None else unique(output.split())

    def accepts(self, answer: Answer) -> bool:
        """Read its words: the exit code does not always tell."""
        return answer.code == 0 and "no suitable queues" not in answer.said

    def directives(self, request: JobRequest) -> Iterator[Made]:
        """Ask for slots, which a parallel environment spreads over nodes.

        Raises:
            ConfigError: several slots are needed, and no parallel environment is named.
        """
        n_slots = request.n_nodes * request.n_cpus
        yield from (Made(f"-N {safe_name(request.name)}"), Made("-S /bin/bash"))
        yield from optional("-q {}", request.queue, "queue")
        yield from optional("-P {}", request.account, "account")
        if request.parallel_environment:
            yield Made(f"-pe {request.parallel_environment} {n_slots}", "parallel_environment")
        elif n_slots > 1 and not any("-pe" in line.split() for line in request.directives):
            raise ConfigError(
                f"The job needs {n_slots} slots of SGE, and SGE gives more than one only in a "
                "parallel environment, which launch.parallel_environment does not name. See qconf "
                "-spl, and write under launch: parallel_environment: NAME"
            )
        if request.seconds is not None:
            yield Made(f"-l h_rt={self.spell_time(request.seconds)}", "time")
        if request.n_gpus and not any("gpu" in line for line in request.directives):
            yield Made(f"-l gpu={request.n_gpus}")
        yield from (Made("-V"), Made("-r y" if request.requeue else "-r n"), Made("-j y"))
        if request.log is not None:
            yield Made(f"-o {quoted(no_colon(request.log))}")

    def _excluding(self, directives: Directives, nodes: list[str]) -> Directives:
        if any(map(_HOSTS.match, directives)):
            return directives  # one request for a host counts, and the user's is not ours to change
        return [*directives, f"-l h={'&'.join(f'!{node}' for node in nodes)}"]

    def unasked(self, options: Mapping[str, Any], texts: Sequence[str]) -> list[str]:
        """Tell of cores and memory, which have names of the centre here."""
        notes: list[str] = []
        texts = [text for text in texts if not text.startswith(("memory =", "cores ="))]
        cores = options.get("cores")
        if isinstance(cores, int) and cores > 1 and not any("-pe " in text for text in texts):
            notes.append(
                Note(
                    f"parallel.options.cores is {cores}, which Grid Engine is not asked for: each "
                    "job has one slot.",
                    fix="Write, with the name that qconf -spl shows: job_extra_directives: "
                    f'["-pe smp {cores}"]',
                )
            )
        if options.get("memory") and not any(map(_MEMORY.search, texts)):
            notes.append(
                Note(
                    f"parallel.options.memory is {options['memory']}, which Grid Engine is not "
                    "asked for: it is what the worker may take.",
                    fix="If your centre counts memory, write such as: resource_spec: h_vmem=8G "
                    "(for each slot)",
                )
            )
        return notes

    def current_job(self, environ: Mapping[str, str]) -> CurrentJob | None:
        """Do not take the variable of another program for a job: `JOB_ID` is a plain name."""
        return super().current_job(environ) if environ.get("SGE_ROOT") else None

    def count_hosts(self, environ: Mapping[str, str]) -> int | None:
        """Count the lines of the host file."""
        return count_lines(environ.get("PE_HOSTFILE")) or read_number(environ, "NHOSTS")


def parse_qstat(text: str) -> dict[str, str] | None:
    """Return the state of each job, such as `qw`, from `qstat -xml`; None if it is no list."""
    import xml.etree.ElementTree as ET  # not needed by the workers, which import this module

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
            reasons[number[1]] = " ".join(words[1].split())[:200]
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
