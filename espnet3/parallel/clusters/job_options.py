"""Options of the dask-jobqueue class: the user's, with defaults filled in.

Among them the address at which the nodes reach this machine, and the shell lines with which a job
can run the driver's code.
"""

import hashlib
import logging
import os
import re
import shlex
import shutil
import socket
import string
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from espnet3.errors import ConfigError
from espnet3.parallel.clusters.certificates import Certificates
from espnet3.parallel.clusters.dask_config import settings
from espnet3.parallel.clusters.gpus import REQUESTED, VARIABLE, WORKERS
from espnet3.parallel.clusters.job_logs import OwnLogs
from espnet3.parallel.clusters.registry import BACKENDS, gpus_per_job, warn_once
from espnet3.parallel.config import SHELL_LINES, ParallelConfig, describe_control_characters
from espnet3.parallel.process_pool import THREAD_VARIABLES
from espnet3.schedulers import JOB_ID, NODE_NAME, OWN_SCHEDULERS, Scheduler, known_scheduler
from espnet3.schedulers.base import Directives
from espnet3.text import find_control_characters, has_control_characters

logger = logging.getLogger(__name__)

PRELOAD = "espnet3.parallel.clusters.worker_preload"
_LOOPBACK = "127.0.0.1:0"
_WORKER_COMMANDS = ("distributed.cli.dask_worker", "dask_cuda.cli")
# Seconds that a worker tries to reach the driver: a busy one is slow to answer.
_DEATH_SECONDS = 120
_BREAKS_WORDS = re.compile(r"""[\s'"`\\;&|<>()*?#!]""")
# What dask-jobqueue still takes under an older name, unless the newer one is there as well.
_OLD_NAMES = {
    "job_script_prologue": "env_extra",
    "job_extra_directives": "job_extra",
    "worker_extra_args": "extra",
    "job_directives_skip": "header_skip",
}
_MAPPINGS = {
    "job_extra_directives": "{request_gpus: 1}",
    "scheduler_options": "{host: 10.0.0.1}",
}
_OF_THIS_MACHINE = "threads_per_worker"
_ANY_PORT = 9
_N_NODES = 8
"""Enough to see how nodes are reached; each name that cannot be resolved may take seconds."""
_OUTSIDE = "192.0.2.1"
"""An address of no machine (RFC 5737), towards which the default route leads."""
_PLAIN = frozenset(string.ascii_letters + string.digits + "/._-%")


def complete_options(
    config: ParallelConfig, *, is_dry: bool = False, is_detached: bool = False
) -> dict[str, Any]:
    """Return the user's options, word for word, and what makes them right by default.

    Its `security` are `Certificates`, unless the user has chosen: Dask is not imported.

    Args:
        config: of a backend of dask-jobqueue.
        is_dry: only to look at the job script; then no scheduler is asked, and nothing logged.
        is_detached: for workers without a Dask scheduler, who need no certificates.

    Raises:
        ConfigError: for options that would be taken for something else.
    """
    given = _Given(config)
    scheduler = known_scheduler(config.env)
    _check_names(config, scheduler)
    _check_dask_config(config.env)
    _check_log_directory(given)
    options = {
        name: value
        for name, value in config.options.items()
        if name not in (*given.renamed, _OF_THIS_MACHINE)
    }
    if _OF_THIS_MACHINE in config.options:
        warn_once(
            f"parallel.options.{_OF_THIS_MACHINE} is for env: local and local_gpu, and is not "
            f"used: a worker of env: {config.env} has the threads of cores / processes"
        )
    _fill(options, given, "python", shlex.quote(sys.executable))
    for name in ("python", "local_directory"):  # they go into the command as they are
        if isinstance(options.get(name), str):
            options[name] = _shell_path(options[name])
    _fill(options, given, "processes", 1)
    # 60 is what dask-jobqueue says without being asked.
    if given.get("death_timeout") in (None, 60):
        options.setdefault("death_timeout", _DEATH_SECONDS)
    options["job_extra_directives"] = _directives(given, scheduler)
    options["job_script_prologue"] = given.list("job_script_prologue") + prologue(
        config,
        scheduler,
        n_workers=int(options.get("processes") or given.get("processes")),
    )
    options["worker_extra_args"] = _worker_arguments(given)
    options["scheduler_options"] = _scheduler_options(config, given, is_dry=is_dry)
    if not is_detached and not _has_own_protocol(given):
        options["security"] = _certificates(given, is_dry=is_dry)
    return options


def _check_names(config: ParallelConfig, scheduler: Scheduler) -> None:
    """Refuse an option under two names, of which dask-jobqueue would ignore one."""
    for new, old in {**_OLD_NAMES, **scheduler.old_names}.items():
        if config.options.get(new) and config.options.get(old):
            raise ConfigError(
                f"parallel.options has {new} and {old}, which is the older name of the same.",
                fix=f"Write all of it under {new}",
            )


def _check_dask_config(env: str) -> None:
    """Refuse in Dask's own configuration what is refused in the options."""
    found = dict(settings(env))
    allowed = [name.replace("_", "-") for name in SHELL_LINES]
    for key, text in find_control_characters(found, allowed=[*allowed, *SHELL_LINES]):
        wrong = describe_control_characters(f"jobqueue.{env}.{key}", text)
        raise ConfigError(f"In Dask's own configuration (such as ~/.config/dask), {wrong}.")


def _check_log_directory(given: "_Given") -> None:
    """Refuse a folder whose name dask-jobqueue would break into several words of a directive."""
    folder = given.get("log_directory")
    if folder is not None and _BREAKS_WORDS.search(str(folder)):
        raise ConfigError(
            f"parallel.options.log_directory is {str(folder)!r}, with a character that ends a word "
            "in the options of a job.",
            fix="Name a folder without spaces, quotes and the like: log_directory: logs/jobs",
        )


def _shell_path(value: str) -> str:
    """Return a path, or a command, as words of a shell.

    What is there under this very name is one word. Else variables in it are meant.
    """
    if os.path.exists(value):
        return shlex.quote(value)
    if not value.startswith(("/", "~", "$")) or not _BREAKS_WORDS.search(value):
        return value
    first, *rest = value.split()
    if shutil.which(os.path.expandvars(os.path.expanduser(first))) and rest:
        return value  # a program with arguments, such as a container's
    # A shell expands no ~ inside of quotes.
    value = re.sub(r"^~(?=/)", "$HOME", value)
    escaped = re.sub(r'(["`\\])', r"\\\1", value)
    return f'"{escaped}"'


def with_log_folder(config: ParallelConfig, folder: Path | None) -> ParallelConfig:
    """Return a config whose jobs write their logs into a folder, unless it says where."""
    is_job = BACKENDS[config.env].module == "jobqueue"
    if folder is None or not is_job or _Given(config).get("log_directory") is not None:
        return config
    options = {**config.options, "log_directory": str(_plain_folder(folder.resolve()))}
    return config.model_copy(update={"options": options})


def with_own_logs(config: ParallelConfig) -> tuple[ParallelConfig, OwnLogs | None]:
    """Return a config whose jobs write their logs into a folder of their own, if none is named."""
    logs = OwnLogs.below(Path.cwd(), config.env)
    changed = with_log_folder(config, logs.folder)
    if changed is config:
        return config, None
    folder = Path(changed.options["log_directory"])
    return changed, logs if folder == logs.folder else replace(logs, folder=folder, made=(folder,))


class _Given:
    """Options that the user set: in the options, or in Dask's own configuration files."""

    def __init__(self, config: ParallelConfig) -> None:
        self._options, self._env = config.options, config.env
        self.renamed = {
            old for new, old in _OLD_NAMES.items() if old in config.options and not self._has(new)
        }

    def _has(self, name: str) -> bool:
        return bool(self._options.get(name))

    def get(self, name: str) -> Any:
        value = self._options.get(name)
        if value is None and (old := _OLD_NAMES.get(name)) in self.renamed:
            value = self._options[old]
        if value is not None:
            return value
        return settings(self._env).get(name.replace("_", "-"))

    def list(self, name: str) -> "list[str]":
        value = self.get(name) or []
        if isinstance(value, str):
            raise ConfigError(
                f"parallel.options.{name} is the text {value!r}, but must be a list.",
                fix=f"Write: {name}: [{value!r}]",
            )
        if isinstance(value, Mapping):
            lines = [f"{key}={each}" for key, each in value.items()]
            raise ConfigError(
                f"parallel.options.{name} is {dict(value)!r}, but must be a list.",
                fix=f"Write: {name}: {lines!r}",
            )
        return [str(each) for each in value]

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.get(name) or {}
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"parallel.options.{name} is {value!r}, but must be a mapping.",
                fix=f"Write such as: {name}: {_MAPPINGS.get(name, '{NAME: VALUE}')}",
            )
        return dict(value)


def _fill(options: dict[str, Any], given: _Given, name: str, value: Any) -> None:
    if given.get(name) is None:
        options[name] = value


def _directives(given: _Given, scheduler: Scheduler) -> Directives:
    skipped = given.list("job_directives_skip")
    if settings := scheduler.default_settings:
        mine = {key: value for key, value in settings.items() if key not in skipped}
        return scheduler.merge_settings(mine, given.mapping("job_extra_directives"))
    users = given.list("job_extra_directives")
    return users + [
        each.text
        for each in scheduler.defaults
        if not any(re.match(each.unless, line.strip()) for line in users)
        and not any(skip in each.text for skip in skipped)
    ]


def _worker_arguments(given: _Given) -> list[str]:
    users = given.list("worker_extra_args")
    if given.get("worker_command") not in (None, *_WORKER_COMMANDS):
        return users  # it may not know these arguments
    words = " ".join(users)
    # Loopback: dashboards have neither TLS nor a password.
    mine = [] if "--dashboard-address" in words else ["--dashboard-address", _LOOPBACK]
    if given.get("nanny") is not False:
        mine += ["--preload-nanny", PRELOAD]
    return [*users, *mine, "--preload", PRELOAD]


def _scheduler_options(config: ParallelConfig, given: _Given, *, is_dry: bool) -> dict[str, Any]:
    options = given.mapping("scheduler_options")
    # Any port: a second cluster on this machine would find 8787 taken.
    options.setdefault("dashboard_address", _LOOPBACK)
    for place, name in _interfaces_of(given, options):
        if name not in interfaces() and not is_dry:
            raise ConfigError(
                f"parallel.options.{place} is {name!r}, but this machine has no such network: it "
                f"has {describe_interfaces()}. If the one that it shares with the nodes has "
                "another name here than there: scheduler_options: {interface: eth0}"
            )
    if is_dry or "host" in options or _interfaces_of(given, options):
        return options
    return {**options, "host": _choose_host(config)}


def _interfaces_of(given: _Given, options: dict[str, Any]) -> list[tuple[str, str]]:
    """Return by which interface the driver listens, with the option that says so."""
    if options.get("interface"):
        return [("scheduler_options.interface", options["interface"])]
    return [("interface", given.get("interface"))] if given.get("interface") else []


def _choose_host(config: ParallelConfig) -> str:
    reach = find_reach(known_scheduler(config.env).nodes(config.options))
    if reach.is_known:
        logger.info("Workers connect to this program at %s (%s)", reach.host, reach.why)
        return reach.host
    logger.warning(
        "The address for nodes cannot be determined (%s); listening at %s. If workers do not "
        "connect, say which network they share with it (here: %s), such as: "
        "parallel.options.interface: ib0, or, if it has another name there: "
        "parallel.options.scheduler_options: {host: %s}",
        reach.why, reach.host, describe_interfaces(), reach.host,
    )  # fmt: skip
    return reach.host


def _has_own_protocol(given: _Given) -> bool:
    chosen = given.mapping("scheduler_options")
    return any(
        where.get(name) is not None
        for where in (given, chosen)
        for name in ("protocol", "security")
    )


def _certificates(given: _Given, *, is_dry: bool) -> Certificates:
    # Nodes must read the certificates, as they must write the logs.
    shared = given.get("shared_temp_directory") or given.get("log_directory") or "."
    base = _expanded(shared)
    if "\n" in str(base):  # Dask would take the path for the certificate itself
        base = Path.home() / ".espnet3" / "tls"
    return Certificates(base, name=".espnet3-tls" if is_dry else None)


def _expanded(folder: str) -> Path:
    return Path(os.path.expandvars(folder)).expanduser().absolute()


def _plain_folder(folder: Path) -> Path:
    """Return a folder whose name fits into a directive: dask-jobqueue does not quote it."""
    if re.fullmatch(r"[\w./@+,:=-]+", str(folder), re.ASCII):
        return folder
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    plain = Path.home() / ".espnet3" / "job-logs" / digest
    logger.info("Logs of the jobs are in %s: the name of %s has letters that no scheduler takes",
                plain, folder)  # fmt: skip
    return plain


def prologue(config: ParallelConfig, scheduler: Scheduler, *, n_workers: int) -> list[str]:
    """Return shell lines for the job script, to follow the user's own, which they respect.

    Args:
        config: of the workers.
        scheduler: of the job.
        n_workers: how many share a job.
    """
    lines = [f"cd {shell_folder(os.getcwd())}"] if scheduler.starts_elsewhere else []
    if folders := _module_folders():
        path = shlex.quote(os.pathsep.join(folders))
        # `:+` leaves out an empty entry, which Python would take for the current folder.
        lines.append(f"export PYTHONPATH=${{PYTHONPATH:+$PYTHONPATH:}}{path}")
    n_threads = _threads(config, n_workers)
    if n_threads:  # Dask's nanny would set them to 1, but leaves alone what it finds
        lines += [f"export {name}=${{{name}:-{n_threads}}}" for name in THREAD_VARIABLES]
    if scheduler.name not in OWN_SCHEDULERS:  # so that a worker need not look for its class
        lines.append(f"export {JOB_ID}={scheduler.number_word}")
        if scheduler.node_variable:
            lines.append(f'export {NODE_NAME}="${scheduler.node_variable}"')
    if n_workers > 1:
        lines.append(f"export {WORKERS}={n_workers}")
    if not scheduler.sets_gpus and (n_gpus := gpus_per_job(config)):
        lines.append(f"export {REQUESTED}={n_gpus}")
    return lines


def shell_folder(folder: str) -> str:
    r"""Return a folder as a word of a shell that stays on its line.

    Some schedulers look for their options in every line of a script, also inside quotes, and a
    submit file of HTCondor has one line for all.
    """
    if not has_control_characters(folder):
        return shlex.quote(folder)
    # With `/.`, because line breaks at the end would be dropped.
    # And %% because printf takes % for a format.
    data = (os.fsencode(folder) + b"/.").replace(b"%", b"%%")
    octal = (chr(c) if chr(c) in _PLAIN else f"\\{c:03o}" for c in data)
    return f"\"`printf '{''.join(octal)}'`\""  # $(...) would be a macro of HTCondor


def submission_environment() -> dict[str, str]:
    """Return the environment in which to submit jobs: it travels to the nodes.

    GPUs of this machine are none of theirs. Where the scheduler sets no others, all jobs would
    see the same ones.
    """
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


def _threads(config: ParallelConfig, n_workers: int) -> int:
    cores = config.options.get("cores")
    return max(int(cores) // n_workers, 1) if isinstance(cores, int | float) else 0


def _module_folders() -> list[str]:
    """Return where this program finds modules that the interpreter alone would not find."""
    own = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    folders = [Path(entry).absolute() for entry in sys.path]
    folders.append(Path(__file__).parents[3])
    found = [
        str(folder)
        for folder in dict.fromkeys(folders)
        if folder.is_dir() and not any(folder.is_relative_to(prefix) for prefix in own)
    ]
    # The variable knows no way to write these; sys.path is sent again with the first shard.
    return [folder for folder in found if os.pathsep not in folder and "\n" not in folder]


@dataclass(frozen=True)
class Reach:
    """An address to listen on, and what is known of it."""

    host: str
    why: str
    is_known: bool
    """Whether nodes were found behind it; else it is a guess."""


def find_reach(nodes: Sequence[str]) -> Reach:
    """Return the address that nodes reach, from which they would be reached.

    No packet is sent: the routes of this machine tell.
    """
    addresses: Counter[str] = Counter()
    example: dict[str, str] = {}
    problem = "the scheduler does not tell its nodes"
    for node in nodes[:_N_NODES]:
        try:
            address = local_address_towards(node)
        except OSError as error:
            problem = f"node {node} is not found from here: {error.strerror or error}"
            continue
        addresses[address] += 1
        example.setdefault(address, node)
    if not addresses:
        return Reach(_default_address(), problem, is_known=False)
    # A machine's own name often means loopback, also where the other nodes are elsewhere.
    outside = Counter({a: n for a, n in addresses.items() if not _is_loopback(a)})
    if not outside:
        return Reach("127.0.0.1", "all nodes are this machine", is_known=True)
    host = outside.most_common(1)[0][0]
    return Reach(host, f"the way to {example[host]}", is_known=True)


def local_address_towards(node: str) -> str:
    """Return the address of this machine that a node by this name or address sees.

    Raises:
        OSError: if the name cannot be resolved or there is no way to it.
    """
    found = socket.getaddrinfo(node, _ANY_PORT, socket.AF_INET, socket.SOCK_DGRAM)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Of a datagram socket, connecting only chooses the route.
        probe.connect(found[0][4])
        address: str = probe.getsockname()[0]
    return address


def interfaces() -> dict[str, str]:
    """Return the IPv4 address of each network interface of this machine."""
    import psutil

    return {
        name: each.address
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET
    }


def describe_interfaces() -> str:
    """Return names and addresses of the interfaces, for messages."""
    return ", ".join(f"{name} ({address})" for name, address in interfaces().items())


def _default_address() -> str:
    try:
        return local_address_towards(_OUTSIDE)
    except OSError:  # no way out, as on many clusters; but perhaps one network inside
        return next((each for each in interfaces().values() if not _is_loopback(each)), "127.0.0.1")


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")
