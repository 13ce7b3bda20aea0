"""The base class of all schedulers: what one must know of a scheduler, with defaults.

Everything that differs between schedulers stands in their subclasses, one file each: Dask clusters,
detached workers, `espnet3 launch` and `espnet3 doctor` ask the class and know no scheduler by name.
A class of another package joins by an entry point, see docs/clusters/adding-a-scheduler.md.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from espnet3.errors import ResourceError
from espnet3.schedulers.command import CommandResult, call

Phase = Literal["pending", "running", "ended", "unknown"]
Directives = list[str] | dict[str, Any]
"""Options of a job: lines, or names and values where the scheduler has those."""

CONTINUE_CODE = 75
"""Exit code of a job that ends early while work remains, to be started again (EX_TEMPFAIL)."""

SUBMIT_SECONDS = 120.0
"""How long a submission may take; a busy scheduler answers late."""

CLOSED_ADVICE = (
    "Jobs start when your administrators open it again; or set another parallel.options.queue"
)
"""Remedy where `Scheduler.closed_queue` says something."""

# Not any word: `condor_rm anna` and `bkill 0` end all jobs of a user.
_JOB_ID = re.compile(r"(?:[A-Za-z]+\.)?[1-9][\w.\[\]-]*", re.ASCII)
_NODE = re.compile(r"[\w.-]+", re.ASCII)
# After the days, Slurm counts hours first: 1-12 is a day and a half.
_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?")
_CANCEL_SECONDS = 30.0
_UNITS = (3600.0, 60.0, 1.0)
_SCRIPT = '"$script"'  # as the script of a training calls itself


class UnansweredError(ResourceError):
    """A scheduler was given a job and did not say what became of it."""


@dataclass(frozen=True)
class JobState:
    """State of one job, as its scheduler reports it."""

    phase: Phase
    word: str
    """The scheduler's own: PENDING, qw, NODE_FAIL."""
    reason: str = ""
    """Why it waits, or how it ended."""


FORGOTTEN = JobState("ended", "forgotten", "the scheduler knows no such job any more")
"""Of a job that was submitted and of which the scheduler now says that it does not exist: it has
ended, and nothing tells how."""


@dataclass(frozen=True)
class CurrentJob:
    """The job around a process, as its environment says."""

    scheduler: str
    """Its name for people, such as Slurm."""
    job_id: str
    n_hosts: int | None = None
    """None where the environment does not say it."""


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of the nodes of a queue."""

    by_node: dict[str, int]
    spelled: str
    """As the scheduler spells the largest: `gpu:a100:4`."""
    directive: str
    """With which a job asks for those."""
    command: str
    """Command with which a user sees the GPUs of all queues."""

    @property
    def most(self) -> int:
        """GPUs of the largest node."""
        return max(self.by_node.values(), default=0)

    @property
    def total(self) -> int:
        """GPUs of all nodes."""
        return sum(self.by_node.values())


@dataclass(frozen=True)
class Default:
    """A directive that jobs of workers get unless the user's own say something of the kind."""

    text: str
    unless: str
    """Beginning of a directive of the user's that says so."""


@dataclass(frozen=True)
class JobRequest:
    """Resources that a job requests, whichever scheduler it is for."""

    name: str
    queue: str | None = None
    account: str | None = None
    n_nodes: int = 1
    n_tasks: int = 1
    """Processes that the scheduler starts on each node, where it does."""
    n_cpus: int = 1
    """Cores of each node."""
    n_gpus: int = 0
    """GPUs of each node."""
    megabytes: int | None = None
    """Memory of each node."""
    seconds: int | None = None
    """Walltime."""
    time: str | None = None
    """The same as the user spelled it."""
    log: str | None = None
    """The file for what the job prints."""
    requeue: bool = False
    """Whether the job may be started again, and continues from its checkpoint."""
    signal_seconds: int = 0
    """How long before its end the job gets a signal, where the scheduler can send one."""
    parallel_environment: str | None = None
    """Of Grid Engine."""
    directives: tuple[str, ...] = ()
    """The user's own, which are added and take precedence."""


@dataclass(frozen=True)
class WorkerRequest:
    """Resources that a worker's job requests, in the options of dask-jobqueue."""

    n_cpus: int
    n_bytes: int
    options: Mapping[str, Any]
    """All that have a value, the defaults of dask-jobqueue included."""

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.options["job_name"])

    def each(self, **forms: str) -> Iterator[str]:
        """Yield a directive for each option that has a value, with it in the place of `{}`."""
        for option, form in forms.items():
            if option in self.options:
                yield form.format(self.options[option])

    def logs(self, *forms: str) -> Iterator[str]:
        """Yield directives with the folder for logs in the place of `{}`, if there is one."""
        if folder := self.options.get("log_directory"):
            yield from (form.format(folder) for form in forms)


@dataclass(frozen=True)
class Made:
    """A directive that follows from settings; one of the user's may say otherwise."""

    text: str
    """As in a directive: `-l walltime=04:00:00`."""
    key: str = ""
    """The setting that says so: a field of `JobRequest`, later the user's key such as
    `parallel.options.queue`; empty for a default."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """The same for parts of it: the resources of a chunk, whose number is `""`."""

    def setting(self, part: str) -> str:
        """Return which setting a part follows from; empty for a default."""
        return self.parts.get(part, self.key)


@dataclass(frozen=True)
class Option:
    """One option of a job, read from a directive."""

    name: str
    value: str
    text: str
    made: Made | None = None
    """Setting that it follows from; None for one of the user's directives."""
    line: int = -1
    """Number of the directive that it stands in, which may hold several."""


@runtime_checkable
class FindsTags(Protocol):
    """A scheduler that can be asked for jobs by a mark that they were submitted with."""

    def find_tags(self, tags: Sequence[str]) -> dict[str, str] | None:
        """Return the numbers of the jobs that have one of these tags, by tag.

        None if the scheduler does not answer, or not in its own words.
        """


class Scheduler:
    """One scheduler: its commands, its words, and what its jobs must know.

    A subclass sets the attributes and overrides the methods in which its scheduler differs; `name`,
    `title`, `submit`, `cancel`, `status_command`, `mark`, `job_variables`, `jobs` and `directives`
    are needed, all others have defaults that are right for a plain scheduler.
    """

    # --- Names ---------------------------------------------------------------------------------
    name: ClassVar[str] = ""
    """Value of `parallel.env` and `launch.scheduler`."""
    title: ClassVar[str] = ""
    """Name for people."""
    dask_cluster: ClassVar[str] = ""
    """Cluster class of dask-jobqueue; empty if there is none: then one is made of this class."""
    needs: ClassVar[tuple[str, ...]] = ("cores", "memory")
    """Entries of `parallel.options` without which no job can be made."""
    old_names: ClassVar[Mapping[str, str]] = {}
    """Options of the cluster class that have an older name."""
    settings: ClassVar[Mapping[str, str]] = {}
    """Which option of the cluster class makes a directive, by how the directive begins."""

    part_settings: ClassVar[Mapping[str, str]] = {}
    """The same for parts of a directive."""
    dask_defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults that the cluster class has for options that are not set, beside the common ones."""
    worker_options: ClassVar[tuple[str, ...]] = ()
    """Options of its own that `worker_directives` knows; if empty, the cluster class is asked."""

    # --- Commands ------------------------------------------------------------------------------
    submit: ClassVar[tuple[str, ...]] = ()
    """Submits a job; the path of its script follows."""
    terse: ClassVar[tuple[str, ...]] = ()
    """Words with which that command prints nothing but the number of the job."""
    reads_stdin: ClassVar[bool] = False
    """Whether the script is handed over at the standard input, as in `bsub < SCRIPT`."""
    job_id_pattern: ClassVar[str] = r"(\d+)"
    """The number of the job in what it prints."""
    cancel: ClassVar[tuple[str, ...]] = ()
    """Cancels a job; its number follows."""
    status_command: ClassVar[str] = ""
    """Command with which a user sees the jobs."""
    job_status: ClassVar[str] = ""
    """The same for one job; its number follows. The first word of `status_command` if empty."""
    ping: ClassVar[tuple[str, ...]] = ()
    """A question that costs nothing, to see whether the scheduler answers."""
    trial: ClassVar[tuple[str, ...]] = ()
    """Judges a job script at its standard input and submits nothing, where there is such a way."""
    refusals: ClassVar[Mapping[str, str]] = {}
    """Remedies, by the words of a refusal in lower case."""

    # --- Job scripts ---------------------------------------------------------------------------
    mark: ClassVar[str] = ""
    """Beginning of a directive in a script, such as `#SBATCH`."""
    defaults: ClassVar[tuple[Default, ...]] = ()
    """Directives that make jobs of workers right."""
    default_settings: ClassVar[Mapping[str, str]] = {}
    """The same where directives have names; such a scheduler takes a mapping of directives."""
    has_script: ClassVar[bool] = True
    """Whether a job is a shell script; else it has one line for a shell."""
    starts_elsewhere: ClassVar[bool] = False
    """Whether jobs begin in another folder than the one they were submitted from."""
    sets_gpus: ClassVar[bool] = True
    """Whether `CUDA_VISIBLE_DEVICES` in a job says which GPUs it got."""
    number_in_path: ClassVar[str] = ""
    """Placeholder for the number of the job in the path of its log, such as `%j`."""
    log_is_late: ClassVar[bool] = False
    """Whether a job's log is brought to its place only when the job has ended."""
    log_globs: ClassVar[tuple[str, ...]] = ("*[-.]{job}", "*[-.]{job}.*", "*.[oe]{job}")
    """Names of files that may be the log of the job `{job}`, in the folder where its logs go."""
    after: ClassVar[str] = ""
    """Directive with which a job begins when the job `{job}` has ended, however that ended."""
    after_pattern: ClassVar[str] = ""
    """Beginning of a directive of that kind: a user's gives way to ours."""
    requeue_code: ClassVar[int | None] = None
    """Exit code with which a job asks to be queued again, where there is one."""

    # --- How directives are read (script.py) ---------------------------------------------------
    long_names: ClassVar[Mapping[str, str]] = {}
    """Long names of options that have a short one."""
    glues_values: ClassVar[bool] = False
    """Whether an option of one letter may have its value right behind it: `-lselect=1`."""
    lists_resources: ClassVar[bool] = False
    """Whether `-l` takes a list of resources, each of which counts as an option of its own."""
    repeatable: ClassVar[tuple[str, ...]] = ()
    """Options that may come several times."""
    rivals: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Directives that say the same in another way: of these the user's own stands alone."""
    needed: ClassVar[Mapping[str, str]] = {}
    """Resources that a Dask worker may use (cores, memory), by the option that asks for it."""

    # --- Environment of a job ------------------------------------------------------------------
    job_variables: ClassVar[tuple[str, ...]] = ()
    """Variables that hold the number of the job around a process; the first one that is set."""
    job_word: ClassVar[str] = ""
    """Shell word with the number as the submission printed it; by `job_variables` if empty.

    A worker is handed it: among its variables there may be those of another scheduler, from whose
    job this one was submitted."""
    node_variable: ClassVar[str] = ""
    """Variable with the name of the node as the scheduler calls it; the host name if empty."""
    own_variables: ClassVar[tuple[str, ...]] = ()
    """Beginnings of variables that say what a job has: a job that it submits would take them for
    wishes."""

    # --- Options of workers' jobs --------------------------------------------------------------
    gpu_options: ClassVar[tuple[str, ...]] = ()
    """Patterns of directives that ask for GPUs; the number may be left out where that means 1."""
    time_options: ClassVar[tuple[str, ...]] = ()
    """Patterns of directives that ask for a walltime."""
    asks_for_time: ClassVar[str] = r"\bwalltime="
    """Pattern of any directive that limits the time."""
    minutes_last: ClassVar[bool] = False
    """Whether the last part of a time counts minutes: `04:00` are four hours."""
    number_is_minutes: ClassVar[bool] = False
    """Whether a time of one number counts minutes."""
    example_time: ClassVar[str] = "04:00:00"
    """Four hours."""

    # --- Words of the scheduler ----------------------------------------------------------------
    waits: ClassVar[Mapping[str, str]] = {}
    """Patterns of reasons for waiting, by kind; see `_WAITS`."""
    ends: ClassVar[Mapping[str, str]] = {}
    """Patterns of ways to end, by kind; see `_ENDS`."""
    success: ClassVar[str] = r"exit (code|status) 0\b|^ *$"
    """Pattern of an end without an error. One without a word is a job that was not needed."""
    in_log: ClassVar[str] = ""
    """Pattern of what the scheduler itself adds to the log of a job that it ends."""

    # --- Training jobs (`espnet3 launch`) ------------------------------------------------------
    launches: ClassVar[bool] = True
    """Whether a training can be a job."""
    no_memory: ClassVar[str] = ""
    """Why `launch.memory` cannot be asked for, and what to write; empty if it can."""
    fixed: ClassVar[Mapping[str, str]] = {}
    """Options that a user may not repeat, with the field of `JobRequest` that they follow from."""
    starts_processes: ClassVar[bool] = False
    """Whether a command of the scheduler's own (srun) starts the processes of a job."""
    sends_signal: ClassVar[bool] = False
    """Whether the scheduler sends a signal before the walltime is over; else the script does."""
    log_is_live: ClassVar[bool] = False
    """Whether the scheduler writes the log while the job runs; else the script does."""
    hosts: ClassVar[str] = ""
    """Command of a shell that prints the nodes of a job, one per line; empty: one node only."""
    remote: ClassVar[str] = ""
    """Command of a shell that starts `"$@"`, a node and a command, as a part of the job."""
    number_in_shell: ClassVar[str] = ""
    """The number of the job in an arithmetic expression of a shell."""

    # --- Ask about jobs, nodes and queues ------------------------------------------------------

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """Return what is known of these jobs; one that is missing in an answer is `unknown`.

        One of which the scheduler says itself that there is no such job is `FORGOTTEN`. Empty if
        the scheduler does not answer: then nothing is known of any of them.
        """
        raise NotImplementedError

    def nodes(self, options: Mapping[str, Any]) -> list[str]:
        """Return names or addresses of nodes that a job with these options could get.

        Empty if unknown.
        """
        return []

    def queues(self) -> list[str] | None:
        """Return the names that `options.queue` may have; None if unknown."""
        return None

    def longest_walltime(self, queue: str | None) -> str:
        """Return the longest walltime of a queue, as an option spells it; empty if unknown."""
        return ""

    def closed_queue(self, queue: str | None) -> str:
        """Return why a queue, or the default, takes or starts no jobs; empty if it does.

        Empty also if that is not known.
        """
        return ""

    def node_gpus(self, queue: str | None) -> NodeGpus | None:
        """Return the GPUs of the nodes of a queue, or of the default; None if it is not known."""
        return None

    @property
    def commands(self) -> tuple[str, ...]:
        """The programs that must be there: to submit, to cancel, and to look."""
        return self.submit[0], self.cancel[0], self.status_command.split()[0]

    # --- Submit and cancel ---------------------------------------------------------------------

    def status_line(self, job_id: str) -> str:
        """Return what a user would type to see one job."""
        return f"{self.job_status or self.status_command.split()[0]} {job_id}"

    def cancel_line(self, job_id: str) -> str:
        """Return what a user would type to cancel a job."""
        return shlex.join([*self.cancel, job_id])

    def submission(self, words: Sequence[str], script: str) -> tuple[list[str], str | None]:
        """Return the command that submits a script, and its standard input.

        Args:
            words: the submit command with its options.
            script: path of the script.
        """
        if self.reads_stdin:
            return list(words), Path(script).read_text(encoding="utf-8")
        return [*words, script], None

    def submit_line(self, script: str) -> str:
        """Return what a user would type to submit a script, which is a word of a shell."""
        return f"{shlex.join(self.submit)}{' <' if self.reads_stdin else ''} {script}"

    def submit_script(
        self,
        script: str,
        *,
        words: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> str:
        """Submit a script and return the number of the job.

        Args:
            script: its path.
            words: in place of `submit`.
            environment: of the command, which travels to the job; this program's if None.
            folder: in which to submit it.

        Raises:
            UnansweredError: if the job may be there all the same.
            ResourceError: with the scheduler's words.
        """
        command, text = self.submission(words or self.submit, script)
        answer = call(
            command,
            text=text,
            timeout=SUBMIT_SECONDS,
            # Given explicitly: else `call` would set LC_ALL=C, and the job would inherit it.
            environment=os.environ if environment is None else environment,
            folder=folder,
        )
        program = command[0]
        # The job may be queued although the command was killed: a plain retry could make two.
        if answer.failure == "late":
            raise UnansweredError(f"{program} did not answer for {SUBMIT_SECONDS:g} s")
        if answer.failure == "missing":
            raise ResourceError(f"{program} is not there")
        if answer.code != 0:
            said = " ".join((answer.error.strip() or answer.out).split())
            said = said or f"exit code {answer.code}"
            raise ResourceError(f"{program} refused a job or could not be run: {said}")
        number = self.job_id(answer.out)
        # Exit code 0 without a number: a job may exist that could not be cancelled.
        if not number:
            raise UnansweredError(f"{program} did not tell the number of a job: {answer.said}")
        return number

    def job_id(self, output: str) -> str:
        """Return the number of a job from what its submission printed; empty if there is none."""
        match = re.search(self.job_id_pattern, output)
        return match[1] if match else ""

    def is_job_id(self, text: str) -> bool:
        """Tell whether a text can be the number of a job, and is safe in a command."""
        return _JOB_ID.fullmatch(text) is not None

    def cancel_job(self, job_id: str, words: Sequence[str] | None = None) -> CommandResult:
        """Cancel a job; with `words` in place of `cancel`."""
        return call([*(words or self.cancel), job_id], timeout=_CANCEL_SECONDS)

    def advise_on_refusal(self, said: str) -> str:
        """Return what to write where the scheduler refuses a job; empty if nothing is known."""
        heard = said.lower()
        return next((advice for words, advice in self.refusals.items() if words in heard), "")

    def accepts(self, answer: CommandResult) -> bool:
        """Tell whether the answer of `trial` means that the scheduler would take the job."""
        return answer.code == 0

    # --- Directives ----------------------------------------------------------------------------

    def worker_directives(self, request: WorkerRequest) -> Iterator[str]:
        """Yield what the cluster class of dask-jobqueue makes of its options, in its words."""
        raise NotImplementedError

    def directives(self, request: JobRequest) -> Iterator[Made]:
        """Yield the directives of a job, each with the field of `request` that it follows from."""
        raise NotImplementedError

    def asked(self, script: str) -> list[str]:
        """Return the directives of a job script."""
        return re.findall(rf"^{re.escape(self.mark)} (.*)$", script, re.MULTILINE)

    def option_name(self, name: str, value: str) -> str:
        """Return what an option is about, where its first word does not tell."""
        return name

    def merge(self, options: list[Option], where: str, notes: list[str]) -> list[Option]:
        """Join options of which a job can have one, but that ask for different things.

        Args:
            options: those that follow from settings, then the user's.
            where: the setting that has the user's, for messages.
            notes: gets what a user should know about it.

        Raises:
            ConfigError: it asks for what a job cannot have together.
        """
        return options

    def has_parts(self, directives: Sequence[str]) -> bool:
        """Tell whether directives describe a job of several parts, which cannot be merged."""
        return False

    def merge_settings(self, made: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """Do as `merge` does where directives have names."""
        return {**made, **own}

    def with_dependency(self, directives: Directives, after: str) -> Directives:
        """Return directives with which a job begins when the job `after` has ended."""
        # Settings with names have no dependency (HTCondor); `with_restart` is for those.
        if not after or not self.after or isinstance(directives, Mapping):
            return directives
        # What the user's job waits for is over by then, and most schedulers take one such option.
        users = directives
        if self.after_pattern:
            users = [line for line in users if not re.match(self.after_pattern, line.strip())]
        return [*users, self.after.format(job=after)]

    def with_exclusion(self, directives: Directives, nodes: Sequence[str]) -> Directives:
        """Return directives with which a job begins on none of these nodes, if one can say so.

        What the user says of nodes continues to hold.
        """
        # Others may write into a run folder: what is no name never gets into a script.
        named = [node for node in dict.fromkeys(nodes) if _NODE.fullmatch(node)]
        return self._excluding(directives, named) if named else directives

    def _excluding(self, directives: Directives, nodes: list[str]) -> Directives:
        return directives

    def with_tag(self, directives: Directives, tag: str) -> Directives:
        """Return directives with which `find_tags` finds the job, if the scheduler has a way."""
        return directives

    def with_restart(self, directives: Directives, max_successors: int | None) -> Directives:
        """Return directives with which a job is queued again while work remains.

        Only for a scheduler that cannot hold a job back for another one.
        """
        return directives

    @property
    def has_successors(self) -> bool:
        """Tell whether a job can be held back until another has ended, however that ends."""
        return bool(self.after)

    # --- Time and GPUs -------------------------------------------------------------------------

    def parse_time(self, text: str) -> float | None:
        """Read a time as the scheduler would; None if it is none."""
        if match := _DAYS.fullmatch(text):
            days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
            return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
        parts = text.split(":")
        in_minutes = self.minutes_last or (self.number_is_minutes and len(parts) == 1)
        units = _UNITS[:-1] if in_minutes else _UNITS
        # Three parts are no time where minutes come last: LSF has no seconds.
        if not all(part.isdigit() for part in parts) or len(parts) > len(units):
            return None
        # A short time lacks its largest units: 30:00 is half an hour, not thirty hours.
        pairs = zip(parts, units[-len(parts) :], strict=True)
        return sum(int(part) * unit for part, unit in pairs)

    def spell_time(self, seconds: int) -> str:
        """Return a walltime as the scheduler reads it."""
        return spell_time(seconds)

    def unasked(self, options: Mapping[str, Any], texts: Sequence[str]) -> list[str]:
        """Return what options do not ask for though it looks so, each with what to write.

        Args:
            options: `parallel.options`.
            texts: all texts in it, at any depth.
        """
        return []

    # --- Inside a job --------------------------------------------------------------------------

    def current_job(self, environ: Mapping[str, str]) -> CurrentJob | None:
        """Return the job around a process."""
        number = next((environ[name] for name in self.job_variables if environ.get(name)), "")
        return CurrentJob(self.title, number, self.count_hosts(environ)) if number else None

    def count_hosts(self, environ: Mapping[str, str]) -> int | None:
        """Return how many nodes the job around a process has; None if it is not known."""
        return None

    def end_time(self, environ: Mapping[str, str]) -> float | None:
        """Return when the job around a process will be ended, in seconds since 1970."""
        return None

    def granted_seconds(self, environ: Mapping[str, str]) -> float | None:
        """Return for how long the job around a process may run, where only that is known."""
        return None

    def memory(self, environ: Mapping[str, str]) -> int | None:
        """Return how many bytes the job around a process may use on its node."""
        return None

    @property
    def number_word(self) -> str:
        """Word of a shell that is the number of the job that runs it."""
        return self.job_word or f'"${self.job_variables[0]}"'

    def start_lines(self, request: JobRequest, role: str) -> Iterator[str]:
        """Yield lines of a shell that start the processes of a training; see `starts_processes`.

        Args:
            request: of the job.
            role: argument of the script: what each process is.
        """
        raise NotImplementedError

    def requeue_lines(self) -> Sequence[str]:
        """Return lines of a shell that queue the job again, and then end it."""
        return (f"{self.submit_line(_SCRIPT)} && exit 0",)

    # --- Words ---------------------------------------------------------------------------------

    def ended_well(self, state: JobState) -> bool:
        """Tell whether a job ended without an error, as far as the scheduler knows."""
        return re.search(self.success, f"{state.word} {state.reason}") is not None

    def kind_of_end(self, state: JobState) -> str:
        """Return how a job ended: a key of `_ENDS`; empty if that is not known."""
        return _first_kind(_ENDS, self.ends, f"{state.word} {state.reason}")

    def is_blameless(self, state: JobState) -> bool:
        """Tell whether an end says nothing about whether the next job would live."""
        return self.kind_of_end(state) in _BLAMELESS

    def was_cancelled(self, state: JobState) -> bool:
        """Tell whether a job was cancelled."""
        return self.kind_of_end(state) == "cancelled"

    def advice(self, reason: str) -> str:
        """Return what to try when jobs wait for a reason; empty if it is not a well-known one."""
        kind = self._kind_of_wait(reason)
        return _WAITS[kind][1].format(status=self.status_command) if kind else ""

    def never_starts(self, reason: str) -> bool:
        """Tell whether jobs that wait for a reason will wait in vain."""
        return self._kind_of_wait(reason) in _IN_VAIN

    def _kind_of_wait(self, reason: str) -> str:
        common = {kind: pattern for kind, (pattern, _) in _WAITS.items()}
        return _first_kind(common, self.waits, reason)


_ENDS = {
    "memory": r"more memory|oom|Cannot allocate memory",
    "walltime": r"walltime",
    "node": r"node (was lost|failed)|launch failed",
    "preempted": r"preempt",
    "cancelled": r"cancelled|deleted by|removed",
    # After memory and walltime, whose jobs also end with SIGKILL.
    "killed": r"signal 9\b|exit (code|status) 137|SIGKILL",
    "missing": r"exit (code|status) 127|command not found|No such file",
    "gone": r"^gone\b",
    "forgotten": r"^forgotten\b",
    # Last: its words also occur in ends that are more specific, as in "its node failed".
    "failed": r"Error|failed|exit (code|status) [1-9]|signal [1-9]",
}
"""Ways to end that schedulers say in plain English, by kind; the first that fits is taken."""

_BLAMELESS = ("node", "preempted")
"""Kinds of ends that are about the machine or about others' jobs."""

_WAITS = {
    "walltime": (
        r"exceeds.*(walltime|limit)",
        "These jobs will never start: set a shorter parallel.options.walltime",
    ),
    "account": (
        "",
        "These jobs will never start: set parallel.options.account to one of yours",
    ),
    "size": (
        r"can never run|cannot run in any",
        "These jobs will never start: ask for less cores, memory or GPUs per job",
    ),
    "closed": (
        r"queue (is )?not started|(takes|starts) no jobs|scheduling is off",
        CLOSED_ADVICE,
    ),
    "given up": (
        r"too many failed attempts|launch failed requeued held",
        "The scheduler could not start these jobs, and holds them until an administrator lets them "
        "go: see whether your account, your home and the logs' folder exist on the nodes, then "
        "start again",
    ),
    "held": (r"held|\bhold\b", "These jobs are held; see {status}"),
    "limit": (
        r"PerUser|PerAccount|slot limit reached|user.*limit",
        "You may not have more jobs at once: lower parallel.n_workers; the run continues with "
        "the jobs that start",
    ),
    "share": (
        "",
        "Your group has used up its share: wait, or set another parallel.options.account",
    ),
    "down": (
        r"DOWN|DRAINED|Reservation|maintenance|offline|unavailable",
        "Nodes are down, drained or reserved: a shorter parallel.options.walltime may fit before "
        "a reservation; or set another parallel.options.queue",
    ),
    "begin": (
        "",
        "They start by themselves; Slurm lets a requeued job wait for two minutes",
    ),
    "resources": (
        r"Resources|insufficient|not enough|offers only|resource requirement",
        "Nothing is free: ask for less (memory, cores, GPUs, walltime), or set another "
        "parallel.options.queue",
    ),
    "priority": (
        r"Priority",
        "Others are first: a shorter parallel.options.walltime may fit into a gap",
    ),
    # Last: a more specific reason may contain this word.
    "error": (
        r"error",
        "The scheduler could not start them: fix the reason, or look at {status}",
    ),
}
"""Reasons for waiting in plain English, by kind, and what a colleague would say; the first that
fits is taken."""

_IN_VAIN = ("walltime", "account", "size", "given up")
"""Kinds of reasons that no patience removes."""


def _first_kind(common: Mapping[str, str], own: Mapping[str, str], text: str) -> str:
    for kind, pattern in common.items():
        # An empty pattern would match every text.
        patterns = [each for each in (own.get(kind), pattern) if each]
        if any(re.search(each, text, re.IGNORECASE) for each in patterns):
            return kind
    return ""


def spell_time(seconds: int) -> str:
    """Return `HH:MM:SS`."""
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"


def read_number(environ: Mapping[str, str], name: str) -> int | None:
    """Return a variable that is a whole number; None if it is not there, or something else."""
    text = environ.get(name, "")
    return int(text) if text.isdigit() else None


def count_lines(path: str | None) -> int:
    """Return how many different first words the lines of a host file have; 0 if it is not there."""
    try:
        lines = Path(path).read_text().splitlines() if path else []
    except OSError:
        return 0
    # PBS repeats a node for each of its processes; Grid Engine adds slots and queue to the name.
    return len({line.split()[0] for line in lines if line.split()})
