"""Grid Engine."""

import getpass
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError, Note
from espnet3.schedulers.base import (
    CurrentJob,
    Default,
    Directives,
    JobRequest,
    JobState,
    Made,
    Scheduler,
    WorkerRequest,
    count_lines,
    read_number,
)
from espnet3.schedulers.command import CommandResult, ask, unique
from espnet3.schedulers.script import no_colon, optional, quoted, safe_name

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_HOSTS = re.compile(r"-l\s+(?:\S*,)?(?:h|hostname)=")
_MEMORY = re.compile(r"\b(?:h_|s_)?(?:vmem|rss|mem\w*|ram\w*)=")
_REQUEUED = ("24", "25")
"""Values of `failed` in the record of a job that went back to the queue; see sge_status(5)."""
_BEFORE_JOB = ("1", "3", "4", "6", "7", "8", "9", "10", "11", "18", "19", "20", "21", "36", "38")
"""The same of one that its node could not start, or lost."""
_NO_FILES = ("26", "27", "28")
"""The same of one whose log, shell or folder its node does not have."""
_OVER_LIMIT = "37"
_QUEUE_STATES = {
    "d": "disabled", "D": "disabled by its calendar", "s": "suspended", "S": "suspended",
    "C": "suspended by its calendar", "u": "on hosts that do not answer", "E": "in error",
    "c": "wrongly configured", "o": "being removed",
}  # fmt: skip
"""States in which a queue starts no jobs; the others are of a load that passes."""
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class GridEngine(Scheduler):
    """Grid Engine."""

    name = "sge"
    title = "SGE"
    dask_cluster = "SGECluster"
    settings = {
        "-q": "queue", "-P": "project", "-l h_rt": "walltime", "-l": "resource_spec",
    }  # fmt: skip
    dask_defaults = {"walltime": "00:30:00", "project": None, "resource-spec": None}
    worker_options = ("project", "resource_spec")

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
    # Those of a parallel environment, and of the tasks of an array, too.
    log_globs = (*Scheduler.log_globs, "*.p[oe]{job}", "*.[oe]{job}.*")
    after = "-hold_jid {job}"
    after_pattern = r"-hold_jid\b"
    requeue_code = 99  # Grid Engine's own rule, unless the centre has FORBID_RESCHEDULE

    lists_resources = True
    repeatable = (
        "-q", "-v", "-m", "-M", "-hold_jid", "-ac", "-dc", "-sc", "-soft", "-hard", "-masterq",
    )  # fmt: skip
    rivals = {"-l h_rt": ("-l s_rt",)}

    job_variables = ("JOB_ID",)

    time_options = (r"\bh_rt=([\d:]+)",)
    asks_for_time = r"\b(?:h_rt|s_rt)="

    waits = {
        "size": r"no suitable queues",
        "held": r"^h[a-z]*qw",
        "down": r"because it is (disabled|suspended)",
        "error": r"Eqw",
    }

    no_memory = (
        "memory has no common name on SGE, and is counted by slot there. Instead of it, write what "
        'your cluster has, such as: directives: ["-l h_vmem=8G"]'
    )
    hosts = """awk '!seen[$1]++ {print $1}' "$PE_HOSTFILE\""""
    # -inherit: within the slots of the job, so that it also ends with the job.
    remote = 'qrsh -inherit -V -nostdin "$@"'
    number_in_shell = "JOB_ID"

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask qstat for all jobs of this user, and qacct for one that is not among them."""
        # Not `qstat -j`: if none of the jobs exists it fails, which looks like no answer.
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
                states[job] = gone if record is None else JobState("ended", "ended", record)
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

    def closed_queue(self, queue: str | None) -> str:
        """Look whether all instances of a queue are disabled, suspended, lost or in error."""
        if queue is None:
            return ""  # a job may run in any queue then
        states = parse_queue_states(ask("qstat", "-f", "-xml", "-q", queue) or "")
        reasons = [_why_closed(state) for state in states.values()]
        if not reasons or not all(reasons):
            return ""
        why = ", or ".join(unique(reasons))
        return f"queue {queue} starts no jobs: all its instances are {why} (qstat -f)"

    def accepts(self, answer: CommandResult) -> bool:
        """Read its words: the exit code does not always tell."""
        return answer.code == 0 and "no suitable queues" not in answer.said

    def worker_directives(self, request: WorkerRequest) -> Iterator[str]:
        yield f"-N {request.name}"
        yield from request.each(queue="-q {}", project="-P {}", resource_spec="-l {}")
        yield from request.each(walltime="-l h_rt={}")
        yield from request.logs("-e {}/", "-o {}/")
        yield from ("-cwd", "-j y")

    def directives(self, request: JobRequest) -> Iterator[Made]:
        """Ask for slots, which a parallel environment spreads over nodes.

        Raises:
            ConfigError: several slots are needed, and no parallel environment is named.
        """
        n_slots = request.n_nodes * request.n_cpus
        # -S: else the queue chooses the shell, often csh.
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
        # Centres name this resource as they like: a directive that mentions GPUs replaces ours.
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
    root = _read_xml(text)
    if root is None:
        return None
    jobs = root.iter("job_list")
    return {job.findtext("JB_job_number", ""): job.findtext("state", "") for job in jobs}


def parse_queue_states(text: str) -> dict[str, str]:
    """Return the state of each queue instance, such as `d`, from `qstat -f -xml`."""
    root = _read_xml(text)
    queues = [] if root is None else root.iter("Queue-List")
    return {queue.findtext("name", ""): queue.findtext("state") or "" for queue in queues}


def _why_closed(state: str) -> str:
    return next((why for letter, why in _QUEUE_STATES.items() if letter in state), "")


def _read_xml(text: str) -> "Element | None":
    import xml.etree.ElementTree as ET  # not needed by the workers, which import this module

    try:
        root = ET.fromstring(text)
    except ET.ParseError:
        return None
    return root if root.tag == "job_info" else None


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
        # A centre may switch these reasons off, and qstat says so in their place.
        elif words and "is turned off" not in words[1]:
            # Cut: it has a line for each queue that was not taken, and there may be hundreds.
            reasons[number[1]] = " ".join(words[1].split())[:200]
    return reasons


def parse_qacct(text: str) -> str | None:
    """Return how a job ended, from `qacct -j`; None if there is no record of its end."""
    # A job that was started several times has a record of each.
    last = re.split(r"^=+$", text, flags=re.M)[-1]
    lines = [line.split(None, 1) for line in last.splitlines()]
    record = {line[0]: line[1].strip() for line in lines if len(line) > 1}
    code, _, words = (part.strip() for part in record.get("failed", "").partition(":"))
    if "jobnumber" not in record or code in _REQUEUED:
        return None
    status = record.get("exit_status", "").split(" ")[0]
    parts = [_describe_failure(code, words, record)]
    # Only some versions have this line; 8.1.9 does not.
    if record.get("deleted_by", "NONE") != "NONE":
        parts.append(f"deleted by {record['deleted_by']}")
    if status and not (status == "0" and parts[0]):  # 0 also stands for: it did not run
        parts.append(f"exit status {status}")
    return ", ".join(part for part in parts if part)


def _describe_failure(code: str, words: str, record: Mapping[str, str]) -> str:
    if code == _OVER_LIMIT:
        return _describe_limit(record)
    if code in _BEFORE_JOB:
        return f"its node failed: {words}"
    if code in _NO_FILES:
        return f"No such file or folder on its node: {words}"
    if code != "0":
        return words or f"failed {code}"
    # What `qdel -f` leaves of a job on a host that does not answer is a record without its usage.
    is_blank = record.get("ru_wallclock") in ("0", "0s")
    if is_blank and record.get("start_time") != record.get("end_time"):
        return "its node was lost, and it was removed by force"
    return ""


def _describe_limit(record: Mapping[str, str]) -> str:
    """Tell which limit it was: Grid Engine has the same words for time and memory."""
    limit = re.search(r"\bh_vmem=([\d.]+)([KMGT]?)", record.get("category", ""), re.I)
    used = re.match(r"([\d.]+)([KMGT]?)", record.get("maxvmem", ""), re.I)
    # 0.9: usage is sampled, and the peak that ended the job may be missed.
    if limit and used and _size(used) >= 0.9 * _size(limit):
        return "it used more memory than it had asked for (h_vmem)"
    return "its walltime was over (h_rt)"


def _size(match: re.Match[str]) -> float:
    return float(match[1]) * _SIZES.get(match[2].upper(), 1)
