"""Slurm."""

import getpass
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from espnet3.errors import ConfigError
from espnet3.schedulers.base import (
    Default,
    Directives,
    JobRequest,
    JobState,
    Made,
    NodeGpus,
    Option,
    Phase,
    Scheduler,
    WorkerRequest,
    read_number,
)
from espnet3.schedulers.command import ask, unique
from espnet3.schedulers.script import optional, plain, quoted

_PENDING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
# One that is completing may have ended, or be on its way back to the queue.
_RUNNING = {
    "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING",
    "STAGE_OUT",
}  # fmt: skip
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
_TAG = "espnet3:"  # what the comment of a job begins with, before the tag of its submission
_JOB = re.compile(r"\d+[\w.+\[\]%,-]*", re.ASCII)
_WORD = re.compile(r"[A-Z][A-Z_]+")
_EXCLUDE = re.compile(r"(?:--exclude[= ]|-x ?)(\S+)")
_COMMENT = re.compile(r"\s*--comment\b")
_GRES = re.compile(r"gpu(?::[A-Za-z][\w.-]*)?:(\d+)")
_GPU_OPTIONS = ("--gpus", "--gpus-per-node", "--gpus-per-task", "--gpus-per-socket")
_HETEROGENEOUS = re.compile(r"\b(?:het|pack)job\b")  # packjob in older versions
_CLOSED = {
    "down": "it takes jobs and starts none",
    "drain": "it takes no more jobs",
    "inact": "it takes no jobs and starts none",
}
"""What it means if a partition is not `up`, by how sinfo begins to say so."""
# Columns of fixed width: a reason may contain blanks.
_FIELDS = "JobID:40,State:40,Reason:80,exit_code:40,ReasonList:200"


class Slurm(Scheduler):
    """Slurm."""

    name = "slurm"
    title = "Slurm"
    dask_cluster = "SLURMCluster"
    old_names = {"account": "project"}
    settings = {
        "-p": "queue", "-A": "account", "-t": "walltime", "--cpus-per-task": "job_cpu",
        "--mem": "job_mem",
    }  # fmt: skip
    dask_defaults = {"walltime": "00:30:00", "job-cpu": None, "job-mem": None}
    worker_options = ("account", "job_cpu", "job_mem")

    submit = ("sbatch",)
    terse = ("--parsable",)
    cancel = ("scancel",)
    status_command = "squeue --me"
    job_status = "squeue --job"
    ping = ("sinfo", "--noheader", "--format", "%P")
    trial = ("sbatch", "--test-only")
    refusals = {
        "invalid partition": "Write under options: queue: NAME, one that sinfo lists",
        "node configuration is not available": (
            "Ask for less of one node, as `sinfo -N -o '%P %N %c %m %G'` shows it: cores, memory, "
            "or --gres under job_extra_directives"
        ),
        "time limit": (
            'Write under options: walltime: "HH:MM:SS", within what `sinfo -o "%P %l"` shows'
        ),
        "account": (
            "Write under options: account: NAME, one that `sacctmgr show associations` lists"
        ),
        "invalid generic resource": (
            "Write under options: job_extra_directives: [--gres=...] with what `sinfo -o '%P %G'` "
            "shows"
        ),
    }

    mark = "#SBATCH"
    # A job that Slurm starts again would come back when ours has been replaced already.
    defaults = (Default("--no-requeue", r"--(no-)?requeue\b"),)
    after = "--dependency=afterany:{job}"
    after_pattern = r"--dependency\b|-d"

    long_names = {
        "-p": "--partition", "-A": "--account", "-t": "--time", "-c": "--cpus-per-task",
        "-J": "--job-name", "-o": "--output", "-e": "--error", "-N": "--nodes", "-n": "--ntasks",
        "-x": "--exclude", "-w": "--nodelist", "-C": "--constraint", "-d": "--dependency",
        "-q": "--qos", "-G": "--gpus", "-L": "--licenses", "-D": "--chdir", "-a": "--array",
        "-b": "--begin", "-M": "--clusters", "-m": "--distribution",
    }  # fmt: skip
    glues_values = True
    rivals = {"--mem": ("--mem-per-cpu", "--mem-per-gpu")}
    needed = {"--cpus-per-task": "cores", "--mem": "memory"}

    job_variables = ("SLURM_JOB_ID",)
    node_variable = "SLURMD_NODENAME"
    own_variables = (
        "SLURM_CPU", "SLURM_MEM", "SLURM_JOB", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_NODE",
        "SLURM_TASK", "SLURM_STEP", "SLURM_TRES", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS",
        "SLURM_SUBMIT", "SLURM_TOPOLOGY", "SLURM_GPUS", "SLURM_EXPORT_ENV", "SLURM_DISTRIBUTION",
        "SLURM_THREADS", "SLURM_CORES", "SLURM_HINT",
    )  # fmt: skip

    gpu_options = (
        r"--gres[= ](?:\S*,)?gpu(?::[A-Za-z][\w.-]*)?(?::(\d+))?",
        r"(?:--gpus(?:-per-(?:node|task|socket))?[= ]|-G ?)(?:[A-Za-z][\w.-]*:)?(\d+)",
    )
    time_options = (r"(?:--time[= ]|-t ?)([\d:-]+)",)
    asks_for_time = r"--time\b|^-t"
    number_is_minutes = True

    waits = {
        "walltime": r"PartitionTimeLimit",
        "account": r"InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed",
        "size": r"BadConstraints|NodeLimit",
        "limit": r"QOSMax|AssocMax|MaxJobs",
        "share": r"AssocGrp|QOSGrp|Licenses",
        "down": r"ReqNodeNotAvail|PartitionInactive",
        "begin": r"BeginTime",
    }
    ends = {
        "memory": r"OUT_OF_MEMORY",
        "walltime": r"TIMEOUT|DEADLINE",
        "node": r"NODE_FAIL|BOOT_FAIL|LaunchFailed",
        # REVOKED: another cluster of the federation started the job.
        "preempted": r"PREEMPTED|REVOKED",
    }
    success = rf"COMPLETED|{Scheduler.success}"
    # Its daemons add what ended the job, when and why.
    in_log = r"^(?:slurmstepd|srun|slurmd)[^:]*: error: (.*CANCELLED AT.*|.*oom.*)$"

    fixed = {
        "--nodes": "n_nodes", "--ntasks": "n_tasks", "--ntasks-per-node": "n_tasks",
        "--cpus-per-task": "n_cpus",
    }  # fmt: skip
    starts_processes = True
    sends_signal = True
    log_is_live = True

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask squeue for all jobs, and sacct for those that are forgotten or were cancelled."""
        # The first one twice: of a single job that it has forgotten, squeue makes an error.
        wanted = ",".join([*job_ids, job_ids[0]])
        output = ask(
            "squeue", "--noheader", "--states=all", f"--jobs={wanted}", f"--Format={_FIELDS}"
        )
        if output is None:
            return {}
        found = parse_squeue(output)
        if output.strip() and not found:
            return {}  # what it printed is no list of jobs
        states = {job: found.get(job, JobState("unknown", "")) for job in job_ids}
        unclear = [job for job, state in states.items() if state.word in ("", "CANCELLED")]
        if unclear:
            # Only accounting knows which user cancelled a job; many clusters have it.
            command = ["sacct", "-n", "-X", "-P", "-o", "JobID,State,ExitCode", "-j"]
            known = parse_sacct(ask(*command, ",".join(unclear)) or "")
            states.update({job: state for job, state in known.items() if job in unclear})
        return states

    def find_tags(self, tags: Sequence[str]) -> dict[str, str] | None:
        """Ask squeue for the comments of this user's jobs, among which are the tags."""
        output = ask(
            # All states: a job that has ended already was submitted nonetheless.
            "squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}",
            "--Format=JobID:40,Comment:200",
        )  # fmt: skip
        if output is None:
            return None
        rows = [(line[:40].strip(), line[40:].strip()) for line in output.splitlines()]
        numbers = {comment: job for job, comment in rows if job.isdecimal()}
        return {tag: numbers[mark] for tag in tags if (mark := f"{_TAG}{tag}") in numbers}

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return the addresses of a partition's nodes, as Slurm itself uses them."""
        queue = options.get("queue")
        chosen = [f"--partition={queue}"] if queue else []
        output = ask("sinfo", "--noheader", "--Node", "--format=%o", *chosen)
        return unique((output or "").split())

    def queues(self) -> list[str] | None:
        """Return the partitions."""
        output = ask("sinfo", "--noheader", "--format=%R")
        # %R and not %P, which marks the default by a star.
        return None if output is None else unique(output.split())

    def longest_walltime(self, queue: str | None) -> str:
        """Read the time limit of a partition."""
        words = ["sinfo", "--noheader", "--format=%P %l"]
        output = ask(*words, *([f"--partition={queue}"] if queue else []))
        rows = [line.split() for line in (output or "").splitlines()]
        limits = [row[1] for row in rows if len(row) == 2 and (queue or row[0].endswith("*"))]
        return limits[0] if limits and self.parse_time(limits[0]) else ""

    def closed_queue(self, queue: str | None) -> str:
        """Read whether a partition is up."""
        words = ["sinfo", "--noheader", "--format=%P %a"]
        output = ask(*words, *([f"--partition={queue}"] if queue else []))
        rows = [line.split() for line in (output or "").splitlines()]
        wanted = [row for row in rows if len(row) == 2 and (queue or row[0].endswith("*"))]
        name, state = wanted[0] if wanted else ("", "")
        why = next((text for begin, text in _CLOSED.items() if state.startswith(begin)), "")
        return f"partition {name.rstrip('*')} is {state}: {why} (sinfo)" if why else ""

    def node_gpus(self, queue: str | None) -> NodeGpus | None:
        """Read the generic resources of each node."""
        words = ["sinfo", "--noheader", "--Node", "--format", "%N|%G|%P"]
        output = ask(*words, *(["--partition", queue] if queue else []))
        if output is None:
            return None
        by_node: dict[str, int] = {}
        spelled: dict[int, str] = {}
        for line in output.splitlines():
            node, gres, partition = [*line.split("|"), "", ""][:3]
            if queue is None and not partition.strip().endswith("*"):  # the mark of the default
                continue
            found = list(_GRES.finditer(gres))
            by_node[node] = sum(int(each[1]) for each in found)
            if found:
                spelled[by_node[node]] = found[0][0]
        most = max(by_node.values(), default=0)
        gres = spelled.get(most, "gpu:0")
        return NodeGpus(by_node, gres, f"--gres={gres}", "sinfo -o '%P %G'")

    def worker_directives(self, request: WorkerRequest) -> Iterator[str]:
        name = request.name
        yield f"-J {name}"
        yield from request.logs(f"-e {{}}/{name}-%J.err", f"-o {{}}/{name}-%J.out")
        yield from request.each(queue="-p {}", account="-A {}")
        yield "-n 1"
        yield f"--cpus-per-task={int(request.options.get('job_cpu') or request.n_cpus)}"
        yield f"--mem={request.options.get('job_mem', _memory(request.n_bytes))}"
        yield from request.each(walltime="-t {}")

    def directives(self, request: JobRequest) -> Iterator[Made]:
        yield Made(f"--job-name={quoted(request.name)}")
        yield from optional("--partition={}", request.queue, "queue")
        yield from optional("--account={}", request.account, "account")
        yield Made(f"--nodes={request.n_nodes}")
        yield Made(f"--ntasks-per-node={request.n_tasks}")
        yield Made(f"--cpus-per-task={request.n_cpus // request.n_tasks}")
        if request.n_gpus:
            yield Made(f"--gres=gpu:{request.n_gpus}")
        if request.megabytes is not None:
            yield Made(f"--mem={request.megabytes}M", "megabytes")
        yield from optional("--time={}", request.time, "time")
        if request.requeue:
            # To the processes of srun and not, as with B:, to the script.
            yield Made(f"--signal=USR1@{request.signal_seconds}")
            yield Made("--requeue")
        # A requeued job would otherwise truncate the log of its first start.
        yield Made("--open-mode=append")
        if request.log is not None:
            # Slurm would replace %j and the like.
            yield Made(f"--output={quoted(request.log.replace('%', '%%'))}")

    def start_lines(self, request: JobRequest, role: str) -> Iterator[str]:
        """Let srun start them."""
        if role == "node":
            role = 'node "$endpoint"'
            yield 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
            # A port that follows from the job: two trainings on one node must not meet.
            yield "endpoint=$head:$((20000 + SLURM_JOB_ID % 20000))"
        yield (
            f"srun --nodes={request.n_nodes} --ntasks-per-node={request.n_tasks} "
            # Said again, as srun 22.05 and later do not take --cpus-per-task from the job. And one
            # dead rank must end all, or the others wait in a collective.
            f"--cpus-per-task={request.n_cpus // request.n_tasks} --kill-on-bad-exit=1 \\"
        )
        yield f'  bash "$script" {role}'

    def requeue_lines(self) -> Sequence[str]:
        return (
            'scontrol requeue "$SLURM_JOB_ID" && exit 0',
            'sbatch "$script" && exit 0 # where requeueing is forbidden',
        )

    def with_tag(self, directives: Directives, tag: str) -> Directives:
        """Write the tag as a comment; one of the user's stays, and then only the job knows it."""
        if not tag or isinstance(directives, Mapping):
            return directives
        # sbatch prefers its variable to a directive, so ours would be lost without a word.
        if "SBATCH_COMMENT" in os.environ or any(map(_COMMENT.match, directives)):
            return directives
        return [*directives, f"--comment={_TAG}{tag}"]

    def _excluding(self, directives: Directives, nodes: list[str]) -> Directives:
        # One line counts, so it must say all.
        users = [match[1] for line in directives if (match := _EXCLUDE.match(line))]
        others = [line for line in directives if not _EXCLUDE.match(line)]
        return [*others, f"--exclude={','.join([*users, *nodes])}"]

    def has_parts(self, directives: Sequence[str]) -> bool:
        """Find heterogeneous jobs, whose parts have options of their own."""
        return any(map(_HETEROGENEOUS.search, directives))

    def merge(self, options: list[Option], where: str, notes: list[str]) -> list[Option]:
        """Put all of --gres on one line; the last one would count alone."""
        return _merge_gres(options, where)

    def count_hosts(self, environ: Mapping[str, str]) -> int | None:
        return read_number(environ, "SLURM_JOB_NUM_NODES") or read_number(environ, "SLURM_NNODES")

    def end_time(self, environ: Mapping[str, str]) -> float | None:
        """Read it from the variable of newer versions of Slurm, or else ask for it."""
        if end := environ.get("SLURM_JOB_END_TIME"):
            return float(end)
        if not (job := environ.get("SLURM_JOB_ID")):
            return None
        output = (ask("squeue", "--noheader", f"--jobs={job}", "--format=%e") or "").strip()
        # Of a job without a limit squeue prints a word instead of a time.
        return datetime.fromisoformat(output).timestamp() if output[:1].isdigit() else None

    def memory(self, environ: Mapping[str, str]) -> int | None:
        """Read it where the job asked for it by node."""
        megabytes = read_number(environ, "SLURM_MEM_PER_NODE")
        return None if megabytes is None else megabytes << 20


def _memory(n_bytes: int) -> str:
    """Spell an amount in the largest unit of which it has one, rounded up."""
    units = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))
    size, letter = next((each for each in units if n_bytes >= each[0]), units[-1])
    return f"{math.ceil(n_bytes / size)}{letter}"


def parse_squeue(text: str) -> dict[str, JobState]:
    """Read the columns that we asked for."""
    states = {}
    for line in text.splitlines():
        job, word, reason, code = (
            line[start : start + width].strip()
            for start, width in ((0, 40), (40, 40), (80, 80), (160, 40))
        )
        detail = line[200:].strip()
        # Any other line is a notice or an error, and says nothing of a job.
        if _JOB.fullmatch(job) and _WORD.fullmatch(word):
            states[job] = _state(word, reason, code, detail)
    return states


def _state(word: str, reason: str, code: str, detail: str) -> JobState:
    phase = _phase(word)
    if phase != "ended":
        # squeue shows either the nodes or, in parentheses, why there are none: more than a reason.
        output = detail.strip("()") if detail.startswith("(") else ""
        return JobState(phase, word, output or _none(reason))
    # squeue shows the status as wait() returns it, sacct as 3:0.
    status = int(code) if code.isdecimal() else 0
    return JobState(phase, word, describe_end(word, _none(reason), f"{status >> 8}:{status & 127}"))


def describe_end(word: str, reason: str, code: str) -> str:
    """Return how a job ended, in plain words."""
    status, _, number = code.partition(":")
    parts = [_ENDS.get(word.split()[0], "") if word else ""]
    # These only repeat what the state or the exit code says.
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
    # An unknown one, such as of a newer Slurm, is not taken for the end of a job.
    return "ended" if word in _ENDED else "unknown"


def _none(reason: str) -> str:
    return "" if reason in ("None", "N/A") else reason


def _merge_gres(options: list[Option], where: str) -> list[Option]:
    own = [o for o in options if o.name == "--gres" and o.made is None]
    made = [o for o in options if o.name == "--gres" and o.made is not None]
    if made and any(o.name in _GPU_OPTIONS and o.made is None for o in options):
        options = [o for o in options if o not in made]
        made = []
    if not own or len(own) + len(made) == 1:
        return options
    found = _own_gres(own, where)
    names = {kind.partition(":")[0] for kind in found}
    for option in made:
        items = [i for i in option.value.split(",") if i.partition(":")[0] not in names]
        found = {**{item: item for item in items}, **found} if "none" not in names else found
    value = ",".join(found.values())
    # -2 is no directive's number: `_write` must print this text, not the user's line.
    merged = Option("--gres", value, f"--gres={value}", line=-2)
    place = options.index(own[0])
    options = [*options[:place], merged, *options[place:]]
    return [o for o in options if o not in own and o not in made]


def _own_gres(own: Sequence[Option], where: str) -> dict[str, str]:
    """Return the generic resources of the user's directives, by their kind: `gpu:a100`."""
    found: dict[str, str] = {}
    for option in own:
        for item in filter(None, map(str.strip, plain(option.value).split(","))):
            kind = re.sub(r":\d+\w?$", "", item)
            if found.setdefault(kind, item) != item:
                raise ConfigError(
                    f"{where} has --gres={found[kind]} and --gres={item}, of which a job can have "
                    "one.",
                    fix="Delete the one that you do not mean",
                )
    for name in {kind.partition(":")[0] for kind in found} & found.keys():
        if other := next((kind for kind in found if kind.startswith(f"{name}:")), None):
            raise ConfigError(
                f"{where} has --gres={found[name]} and --gres={found[other]}, of which one counts.",
                fix="Delete the one that you do not mean",
            )
    return found
