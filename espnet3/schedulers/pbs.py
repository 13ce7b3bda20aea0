"""PBS Professional, OpenPBS and Torque."""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from espnet3.errors import ConfigError
from espnet3.schedulers.base import (
    FORGOTTEN,
    Default,
    JobRequest,
    JobState,
    Made,
    Option,
    Phase,
    Scheduler,
    WorkerRequest,
    count_lines,
    read_number,
)
from espnet3.schedulers.command import ask, ask_json, call, unique
from espnet3.schedulers.script import (
    describe_unused,
    no_colon,
    note_less,
    optional,
    plain,
    quoted,
    safe_name,
)

_PHASES: dict[str, Phase] = {
    "Q": "pending", "H": "pending", "W": "pending", "T": "pending",
    # E is still exiting, and its output on the way back; B is an array that has begun.
    "R": "running", "E": "running", "S": "running", "U": "running", "B": "running",
    # C is Torque's word for F. M was moved to another server, which is not asked.
    "F": "ended", "X": "ended", "C": "ended", "M": "unknown",
}  # fmt: skip
# Statuses below zero are PBS's own, JOB_EXEC_... in its sources; those above 256 mean a signal.
_STATUSES = {
    **dict.fromkeys(("-1", "-2", "-3"), "it could not be started"),
    **dict.fromkeys(("-4", "-5", "-6"), "the PBS daemon of its node was restarted"),
    "-10": "its user is not known on its node",
    **dict.fromkeys(("-14", "-30"), "its other node was lost"),
    **dict.fromkeys(("-16", "-17"), "a hook of the cluster refused it"),
    **dict.fromkeys(("-18", "-19"), "a hook of the cluster ended it"),
    "-20": "its node was lost",
    "-22": "a hook of the cluster was late or broken",
    **dict.fromkeys(("-24", "-25"), "it used more cores than it had asked for"),
    **dict.fromkeys(("-26", "-27"), "it used more memory than it had asked for"),
    "-28": "its CPU time was over",
    "-29": "its walltime was over",
}
TORQUE_STATUSES = {
    "-11": "its walltime was over", "-12": "its walltime was over (of its CPUs)",
    "-10": "it used more memory than it had asked for",
    "-4": "its node failed", "-5": "its node failed", "-6": "its node failed",
    "-9": "No such file or folder for its log",
}  # fmt: skip
"""Those of Torque, for which the same numbers mean something else."""
_CHUNK = {"": "n_nodes", "ncpus": "n_cpus", "ngpus": "n_gpus", "mem": "megabytes"}
# Resources of a host, which PBS wants in the chunk as soon as there is a `select`.
_OF_A_CHUNK = ("ncpus", "mem", "vmem", "ngpus", "mpiprocs", "ompthreads", "host", "vnode", "arch")
_MAX_NAME = 15  # of older PBS
_DELETED = "91"  # substate of a job that was deleted
_N_SINGLE = 16  # jobs that are asked for one by one, where one answer did not have all
_DENIED = re.compile(r"Unknown Job Id(?: Error)? (\d+)")
_FINISHED = re.compile(r"(\d+)\S* Job has finished")
# What remains of the scheduler's comment on a job that ran; names of nodes are in it.
_RAN = re.compile(r"Job run at .*")


class PBS(Scheduler):
    """PBS Professional, OpenPBS and Torque."""

    name = "pbs"
    title = "PBS"
    dask_cluster = "PBSCluster"
    old_names = {"account": "project"}
    settings = {
        "-q": "queue", "-A": "account", "-l walltime": "walltime", "-l": "resource_spec",
    }  # fmt: skip
    dask_defaults = {"walltime": "00:30:00", "resource-spec": None}
    worker_options = ("account", "resource_spec")

    submit = ("qsub",)
    cancel = ("qdel",)
    status_command = "qstat"
    ping = ("qstat", "-B")
    refusals = {
        "resource limits": (
            "Ask for what the queue allows, as `qstat -Qf QUEUE` shows under resources_max and "
            "resources_min: walltime, cores, memory or GPUs"
        ),
        "unknown queue": "Set queue to one that `qstat -Q` lists",
        "queue is not enabled": "Set queue to one that takes jobs: Ena is yes in `qstat -Q`",
        "access to queue is denied": "Set queue to one that is open to you, or ask to be let in",
        "unknown resource": (
            "Ask for what your nodes have, as `pbsnodes -a` shows under resources_available"
        ),
        "would exceed": "You may not have more jobs: lower n_workers, or wait until some end",
        "invalid account": "Set account to one of yours",
    }

    mark = "#PBS"
    # A job that PBS starts again would come back when ours has been replaced already.
    defaults = (Default("-V", r"-V\b"), Default("-r n", r"-r ?[yn]\b"))
    starts_elsewhere = True
    sets_gpus = False  # not without its cgroups hook
    log_is_late = True
    # In a folder that -o and -e name, logs are called as in the spool: 12.server.OU.
    log_globs = (*Scheduler.log_globs, "{job}.*.OU", "{job}.*.ER")
    after = "-W depend=afterany:{job}"
    after_pattern = r"-W ?depend="

    glues_values = True
    lists_resources = True
    needed = {"ncpus": "cores", "ppn": "cores", "mem": "memory"}
    schedules: ClassVar[bool] = True
    """Whether jobs are started by a scheduler of PBS itself, which the server can switch off."""
    loose_resources: ClassVar[tuple[str, ...]] = _OF_A_CHUNK
    """Resources beside a `select` that PBS would refuse there; they are moved into it."""

    job_variables: ClassVar[tuple[str, ...]] = ("PBS_JOBID",)
    job_word = '"${PBS_JOBID%%.*}"'  # without the server, as `job_id` reads it from qsub

    time_options = (r"\bwalltime=([\d:]+)",)

    waits = {
        "down": r"dedicated time",
        "resources": r"too few free resources",
        "priority": r"starving job",
    }
    ends = {"walltime": r"CPU time was over", "node": r"daemon of its node was restarted"}

    hosts = """awk '!seen[$1]++ {print $1}' "$PBS_NODEFILE\""""
    # As a part of the job where PBS has a command for that.
    remote = (
        'if command -v pbs_tmrsh >/dev/null; then pbs_tmrsh "$@"; '
        # BatchMode: no user is there to answer a prompt, and the job would hang.
        'else ssh -o BatchMode=yes "$@"; fi'
    )
    number_in_shell = "${PBS_JOBID%%[!0-9]*}"  # also without the index of an array, 12[3]

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Ask qstat, and once more for jobs that have ended, where PBS keeps those.

        Not in JSON: it has the first job only (openpbs/openpbs#2672), or is none at all where a
        job's variables have quotes or leading zeros (#2541, #1255). A job on which PBS does not
        speak is left out; one of which it says that it does not exist is forgotten.
        """
        told = _ask_jobs(job_ids)
        if told is None:
            return {}
        told |= _ask_jobs(told.missing(job_ids), "-x") or _Told()
        # If qstat had no word on any job, asking for each of them would only add load.
        if told.has_words:
            for job in told.missing(job_ids)[:_N_SINGLE]:
                told |= _ask_jobs([job]) or _Told()
        # Finished, and how is not to be had: `-x` is an error where PBS keeps no history.
        ended = dict.fromkeys([*told.denied, *told.finished], FORGOTTEN)
        return {job: state for job, state in {**ended, **told.states}.items() if job in job_ids}

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return all nodes."""
        output = ask_json("pbsnodes", "-a", "-F", "json")
        if isinstance(output, dict) and isinstance(output.get("nodes"), dict):
            return unique([str(node.get("Mom", name)) for name, node in output["nodes"].items()])
        # Names stand at the beginning of a line, what is known of them does not.
        return unique(re.findall(r"^(\S+)$", ask("pbsnodes", "-a") or "", re.M))

    def queues(self) -> list[str] | None:
        """Return the queues."""
        output = ask("qstat", "-Q")
        return None if output is None else parse_queues(output)

    def closed_queue(self, queue: str | None) -> str:
        """Look whether the server lets jobs start, and whether the queue takes and starts them."""
        server = ask("qstat", "-Bf") or ""
        if self.schedules and re.search(r"^\s+scheduling = False", server, re.M):
            return "the server starts no jobs: its scheduling is off (qstat -Bf)"
        # An error on Torque, and on a PBS that is older than several schedulers.
        daemon = ask("qmgr", "-c", "list sched default") if self.schedules else None
        if re.search(r"^\s+state = down", daemon or "", re.M):
            return "the server starts no jobs: its scheduler does not run (qmgr -c 'list sched')"
        default = re.search(r"^\s+default_queue = (\S+)", server, re.M)
        # PBS takes queue@server, and the table has no servers.
        name = queue.partition("@")[0] if queue else default[1] if default else ""
        row = parse_queue_table(ask("qstat", "-Q") or "").get(name, {})
        if row.get("Ena") == "no":
            return f"queue {name} is disabled: it takes no jobs (Ena in qstat -Q)"
        if row.get("Str") == "no":
            return f"queue {name} is stopped: it starts no jobs (Str in qstat -Q)"
        return ""

    def worker_directives(self, request: WorkerRequest) -> Iterator[str]:
        account = os.environ.get("PBS_ACCOUNT")
        options = {**({"account": account} if account else {}), **request.options}
        request = replace(request, options=options)
        yield f"-N {request.name}"
        yield from request.each(queue="-q {}", account="-A {}")
        select = f"select=1:ncpus={request.n_cpus}:mem={_memory(request.n_bytes)}"
        yield f"-l {options.get('resource_spec', select)}"
        yield from request.each(walltime="-l walltime={}")
        yield from request.logs("-e {}/", "-o {}/")

    def directives(self, request: JobRequest) -> Iterator[Made]:
        """Ask for chunks, one on each node."""
        yield Made(f"-N {safe_name(request.name)[:_MAX_NAME]}")
        yield from optional("-q {}", request.queue, "queue")
        yield from optional("-A {}", request.account, "account")
        gpus = f":ngpus={request.n_gpus}" if request.n_gpus else ""
        memory = f":mem={request.megabytes}mb" if request.megabytes is not None else ""
        # mpiprocs=1: PBS_NODEFILE then has each node once.
        chunk = f"{request.n_nodes}:ncpus={request.n_cpus}{gpus}{memory}:mpiprocs=1"
        yield Made(f"-l select={chunk}", parts=_CHUNK)
        if request.n_nodes > 1:
            # Else PBS may put several chunks on one node.
            yield Made("-l place=scatter")
        if request.seconds is not None:
            yield Made(f"-l walltime={self.spell_time(request.seconds)}", "time")
        yield from (Made("-V"), Made("-r y" if request.requeue else "-r n"), Made("-j oe"))
        if request.log is not None:
            yield Made(f"-o {quoted(no_colon(request.log))}")

    def option_name(self, name: str, value: str) -> str:
        """Tell apart what `-W` is about."""
        return f"-W {value.partition('=')[0]}" if name == "-W" else name

    def merge(self, options: list[Option], where: str, notes: list[str]) -> list[Option]:
        """Put all of a select, or of Torque's nodes, on one line; the first would count alone."""
        return _Chunks(self, where, notes).merge(options)

    def count_hosts(self, environ: Mapping[str, str]) -> int | None:
        """Count the lines of the host file."""
        return count_lines(environ.get("PBS_NODEFILE")) or read_number(environ, "PBS_NUM_NODES")

    def granted_seconds(self, environ: Mapping[str, str]) -> float | None:
        """Read it where Torque has it, or else ask: a queue may have a default walltime."""
        if "PBS_WALLTIME" in environ:
            return float(environ["PBS_WALLTIME"])
        if not (job := environ.get("PBS_JOBID")):
            return None
        records = parse_text(ask("qstat", "-f", job) or "").values()
        limits = [record.get("Resource_List.walltime", "") for record in records]
        return self.parse_time(limits[0]) if limits else None


def _memory(n_bytes: int) -> str:
    """Spell an amount in the largest unit of which it has ten, rounded up."""
    units = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"), (1, "B"))
    size, unit = next((each for each in units if n_bytes >= 10 * each[0]), units[-1])
    return f"{math.ceil(n_bytes / size)}{unit}"


@dataclass(frozen=True)
class _Told:
    """Answer of qstat about jobs."""

    states: dict[str, JobState] = field(default_factory=dict)
    denied: frozenset[str] = frozenset()
    """Jobs of which it said that they do not exist."""
    finished: frozenset[str] = frozenset()
    """Jobs of which it said that they are over, and that the history has more of them."""

    def __or__(self, other: "_Told") -> "_Told":
        return _Told(
            {**self.states, **other.states},
            self.denied | other.denied,
            self.finished | other.finished,
        )

    @property
    def has_words(self) -> bool:
        """Tell whether it said anything of any job."""
        return bool(self.states or self.denied or self.finished)

    def missing(self, job_ids: Sequence[str]) -> list[str]:
        """Return the jobs of which it did not say what became of them."""
        return [job for job in job_ids if job not in self.states and job not in self.denied]


def _ask_jobs(job_ids: Sequence[str], *words: str) -> _Told | None:
    """Ask qstat; None if it does not answer. Its exit code is that of the last complaint."""
    if not job_ids:
        return _Told()
    answer = call(("qstat", *words, "-f", *job_ids))
    if answer.code is None:
        return None
    states = parse_records(parse_text(answer.out))
    denied, finished = (frozenset(p.findall(answer.error)) for p in (_DENIED, _FINISHED))
    return _Told(states, denied, finished)


def parse_records(records: Mapping[str, Any]) -> dict[str, JobState]:
    """Read the attributes of jobs; their names are like `12.server`."""
    states = {}
    for name, record in records.items():
        word = str(record.get("job_state", ""))
        phase = _PHASES.get(word, "unknown")
        comment = str(record.get("comment", "")).strip()
        reason = comment if phase == "pending" else ""
        if phase == "ended":
            reason = _describe_end(record, comment)
        states[name.split(".")[0]] = JobState(phase, word, reason)
    return states


def _describe_end(record: Mapping[str, Any], comment: str) -> str:
    # Torque spells the name in small letters.
    status, statuses = str(record.get("Exit_status", "")), _STATUSES
    if "exit_status" in record:
        status, statuses = str(record["exit_status"]), TORQUE_STATUSES
    words = statuses.get(status, "")
    if not words and str(record.get("substate")) == _DELETED:
        words, comment = "it was cancelled", ""  # the comment says why it waited
    elif status.isdecimal() and int(status) > 256:
        words = f"signal {int(status) - 256}"
    output = f"exit status {status}" if status else ""
    return ", ".join(part for part in (words, output, _RAN.sub("", comment)) if part)


def parse_text(text: str) -> dict[str, dict[str, str]]:
    """Read `qstat -f`: long values continue in the next line, after a tab."""
    records: dict[str, dict[str, str]] = {}
    for part in re.split(r"^Job Id: ", text.replace("\n\t", ""), flags=re.M)[1:]:
        name, _, lines = part.partition("\n")
        # The first of a name: the lines of a shell function may follow, in the list of variables.
        found = re.findall(r"^ {4}(\S+) = (.*)$", lines, re.M)
        records[name.strip()] = dict(reversed(found))
    return records


def parse_queues(text: str) -> list[str]:
    """Return the names in the table of `qstat -Q`."""
    return list(parse_queue_table(text))


def parse_queue_table(text: str) -> dict[str, dict[str, str]]:
    """Read the table of `qstat -Q`: two lines of heading, and a row for each queue."""
    lines = [line.split() for line in text.splitlines()]
    heading = lines[0] if lines else []
    return {row[0]: dict(zip(heading, row, strict=False)) for row in lines[2:] if row}


class _Chunks:
    """Merges what settings and directives ask for in chunks of resources."""

    def __init__(self, scheduler: PBS, where: str, notes: list[str]) -> None:
        self._scheduler, self._where, self._notes = scheduler, where, notes

    def merge(self, options: list[Option]) -> list[Option]:
        asked = [o for o in options if o.name in ("-l select", "-l nodes")]
        name = _spelling(asked)
        loose = [o for o in options if self._is_loose(name, o)]
        if not asked or (len(asked) == 1 and not loose):
            return options
        head, parts = "", dict[str, str]()
        from_settings = {key for o in asked if o.made is not None for key in _resources(o, name)}
        for option in asked:
            head = self._count(option, name, head) or head
            new = _resources(option, name)
            if option.made is None:
                self._refuse_other(parts, new, from_settings)
            parts |= new
        parts |= {o.name.removeprefix("-l "): o.value for o in loose}
        for option in asked:
            if option.made is not None:
                self._compare(option.made, _resources(option, name), parts)
        words = [f"{key}={value}" if value else key for key, value in parts.items()]
        value = ":".join([head or "1", *words])
        place = min(options.index(o) for o in asked)
        rest = [o for o in options if o not in asked and o not in loose]
        # -2 is no directive's number: `_write` must print this text, not the user's line.
        rest[place:place] = [Option(name, value, f"{name}={value}", line=-2)]
        if name == "-l nodes":
            rest[place + 1 : place + 1] = _memory_beside_nodes(asked, rest)
        return rest

    def _is_loose(self, name: str, option: Option) -> bool:
        """Tell whether an option belongs into the chunk: PBS refuses it beside a select."""
        in_chunk = name == "-l select" and option.made is None
        return in_chunk and option.name.removeprefix("-l ") in self._scheduler.loose_resources

    def _count(self, option: Option, name: str, known: str) -> str:
        """Return how many chunks, or which node, an option asks for; empty if it does not say.

        Raises:
            ConfigError: there are several chunks where one job has one worker.
        """
        first = plain(option.value).split(":")[0]
        if "+" in option.value:
            raise ConfigError(self._several(option))
        if first.isdigit():
            if option.made is None and first != (known or "1"):
                raise ConfigError(self._several(option))
            return first
        return first if name == option.name == "-l nodes" and "=" not in first else ""

    def _several(self, option: Option) -> str:
        if option.made is not None:
            return (
                f"{option.made.key} is {option.text!r}, of several chunks, and {self._where} asks "
                "for more, which cannot be merged. Write all of it in one of them"
            )
        words = plain(option.value).split("+")[0].split(":")
        one = ":".join(["1", *(words[1:] if words[0].isdigit() else words)])
        return (
            f"{self._where} has {option.text!r}: another number of chunks than the job has. Write "
            f"what one is to have: {option.name}={one}. For more workers set parallel.n_workers; "
            "for more nodes of a training, trainer.num_nodes"
        )

    def _refuse_other(
        self, parts: Mapping[str, str], new: Mapping[str, str], from_settings: set[str]
    ) -> None:
        for key, value in new.items():
            is_own = key in parts and key not in from_settings
            # 8gb and 8GB are the same to PBS.
            if is_own and parts[key].lower() != value.lower():
                raise ConfigError(
                    f"{self._where} has {key}={parts[key]} and {key}={value}, of which a job can "
                    "have one.",
                    fix="Delete the one that you do not mean",
                )

    def _compare(self, made: Made, new: Mapping[str, str], parts: Mapping[str, str]) -> None:
        for key, value in new.items():
            asked = parts[key]
            setting = made.setting(key)
            if setting and asked.lower() != value.lower():
                words = (setting, f"{key}={value}", f"{key}={asked}", self._where)
                self._notes.append(describe_unused(*words))
            elif not setting:
                by = f"{self._where} asks for {key}={asked}"
                note_less(self._scheduler.needed.get(key), value, asked, by, self._notes)


def _spelling(asked: Sequence[Option]) -> str:
    """Return how the user spells it: PBS takes no job that has both.

    Raises:
        ConfigError: the user has both.
    """
    said = {o.name: o for o in asked if o.made is None or o.made.key}
    if len(said) > 1:
        both = " and ".join(repr(o.text) for o in said.values())
        raise ConfigError(
            f"The options of a job have {both}, and PBS takes either select or nodes.",
            fix="Write all of it once: resource_spec: 'select=1:ncpus=4:mem=32gb:ngpus=1'",
        )
    return next(iter(said), asked[0].name if asked else "")


def _resources(option: Option, name: str) -> dict[str, str]:
    """Return what a chunk is asked for, in the words of `name`."""
    words = plain(option.value).split(":")
    if words[0].isdigit() or (option.name == "-l nodes" and "=" not in words[0]):
        words = words[1:]
    found = dict(word.partition("=")[::2] for word in words)
    if option.name == name:
        return found
    # Cores and memory of our settings, for nodes of the user's; memory stands beside those.
    return {"ppn": found["ncpus"]} if "ncpus" in found else {}


def _memory_beside_nodes(asked: Sequence[Option], rest: Sequence[Option]) -> list[Option]:
    """Return the memory of the settings, which is no part of a node's description."""
    if any(o.name in ("-l mem", "-l pmem", "-l vmem", "-l pvmem") for o in rest):
        return []
    for option in asked:
        if option.made is not None and (match := re.search(r":mem=([^:]+)", option.value)):
            return [Option("-l mem", match[1], f"-l mem={match[1]}", line=-2)]
    return []
