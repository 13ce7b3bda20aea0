"""Backend `ssh`: hosts reached by SSH."""

import importlib
import itertools
import logging
import os
import shlex
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError, MissingExtraError, ResourceError, suggest
from espnet3.parallel.clusters.registry import Backend, start_within, warn_once
from espnet3.parallel.clusters.tls import RunSecurity
from espnet3.text import count, folded

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

OPTIONS = (
    "hosts",
    "connect_options",
    "worker_options",
    "scheduler_options",
    "worker_class",
    "remote_python",
)
_EXAMPLE = "options: {hosts: [head, node1, node2]} (the first one runs the scheduler)."
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
# A login without a terminal does not notice that its driver is gone, and never ends; what
# it does notice is the end of its input. `$$` stays the same number when Python takes over.
_REMOTE = (
    "cd {folder} || exit 1; exec 3<&0; {{ read _ <&3; kill $$; }} >/dev/null 2>&1 & {run} 3<&-"
)
# What is one file under this very name, spaces and all, is run; else it is a command of the shell.
_GIVEN = 'if command -v {word} >/dev/null 2>&1; then exec {word} "$@"; else eval {command}; fi'


def start(config: "ParallelConfig", backend: Backend) -> Any:
    """Start a scheduler on the first host and workers on the others, in turn.

    Raises:
        ConfigError: if the options are wrong.
        MissingExtraError: if asyncssh is not installed.
        ResourceError: if a host cannot be reached, or a process there does not start.
    """
    check(config)
    base = Path.cwd()
    if "\n" in str(base):  # Dask would take the path for the certificate itself
        base = Path.home() / ".espnet3" / "tls"
    security = RunSecurity(base)
    security.write()
    try:
        cluster = _start(config, security)
    except BaseException:
        security.remove()
        raise
    _remove_with(cluster, security)
    hosts = " ".join(dict.fromkeys(map(str, config.options["hosts"])))
    cluster.left_behind = lambda: (
        f"Processes may still run on {hosts}. See: for h in {hosts}; do ssh $h pgrep -af dask; done"
    )
    return cluster


def _remove_with(cluster: Any, security: RunSecurity) -> None:
    """Remove the certificates when the cluster is closed, or else at the end of the program."""
    remove = weakref.finalize(cluster, security.remove)
    close = cluster.close

    def close_and_remove(*args: Any, **kwargs: Any) -> Any:
        try:
            return close(*args, **kwargs)
        finally:
            remove()

    cluster.close = close_and_remove


def _start(config: "ParallelConfig", security: RunSecurity) -> Any:
    import dask
    from distributed import SSHCluster

    options = {**complete_options(config), "security": security}
    # Processes on the hosts get this configuration from Dask; the files are in a shared folder.
    with _heard() as lines, _quoted_specs(), dask.config.set(_tls_config(security)):
        try:
            return start_within(config.start_timeout, lambda: SSHCluster(**options))
        except ResourceError:
            raise
        except Exception as error:
            cause = error.__cause__ or error  # Dask says only that the cluster failed to start
            raise ResourceError(_describe(cause, config.options["hosts"], lines)) from error


def _tls_config(security: RunSecurity) -> dict[str, Any]:
    files = security.get_tls_config_for_role("scheduler")
    pair = {"cert": files["cert"], "key": files["key"]}
    tls = {"ca-file": files["ca_file"], "client": pair, "scheduler": pair, "worker": pair}
    return {"distributed.comm.tls": tls, "distributed.comm.require-encryption": True}


def check(config: "ParallelConfig") -> None:
    """Look at the options; no host is asked.

    Raises:
        ConfigError: if they are wrong.
        MissingExtraError: if asyncssh is not installed.
    """
    try:
        import asyncssh  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "parallel.env is 'ssh', which needs the package 'asyncssh', and that cannot be "
            f"imported ({error}).",
            fix="In your clone of ESPnet3: pip install -c constraints.txt -e '.[ssh]'",
        ) from error
    unknown = [name for name in config.options if name not in OPTIONS]
    if unknown:
        raise ConfigError(
            f"parallel.options.{unknown[0]} is no option of SSHCluster."
            f"{suggest(unknown[0], OPTIONS)} It takes: {', '.join(OPTIONS)}."
        )
    hosts = config.options.get("hosts")
    if not hosts or isinstance(hosts, str):
        problem = f"is {hosts!r}, not a list" if hosts else "is not set"
        raise ConfigError(
            f"parallel.env is 'ssh', but parallel.options.hosts {problem}.",
            fix=f"Write: {_EXAMPLE}",
        )
    if len(hosts) == 1:
        raise ConfigError(
            f"parallel.options.hosts is {hosts!r}: the first host runs the scheduler, and there is "
            f"none for workers. To have them there too, write: hosts: [{hosts[0]}, {hosts[0]}]"
        )
    idle = hosts[1 + config.n_workers :]
    if idle:
        n_hosts = len(hosts) - 1
        warn_once(
            f"{count(config.n_workers, 'worker')} for {n_hosts} hosts: {', '.join(map(str, idle))} "
            f"will stay idle. To use all, set parallel.n_workers: {n_hosts}"
        )


def complete_options(config: "ParallelConfig") -> dict[str, Any]:
    """Return what `SSHCluster` is given: as many hosts as workers, and right defaults."""
    options = config.options
    hosts = [str(host) for host in options["hosts"]]
    only_here = {"host": "127.0.0.1"} if set(hosts) <= _LOOPBACK else {}
    loopback = {"dashboard_address": "127.0.0.1:0"}
    worker_hosts = list(itertools.islice(itertools.cycle(hosts[1:]), config.n_workers))
    return {
        **options,
        "hosts": [hosts[0], *worker_hosts],
        "connect_options": _repeated(options.get("connect_options") or {}, config.n_workers),
        "scheduler_options": {
            # Any port: two runs may have their scheduler on the same host.
            "port": 0,
            "protocol": "tls",
            **loopback,
            **only_here,
            **(options.get("scheduler_options") or {}),
        },
        "worker_options": {
            "nthreads": 1,
            **loopback,
            **only_here,
            **(options.get("worker_options") or {}),
        },
        "remote_python": _commands(options.get("remote_python"), worker_hosts),
    }


def _repeated(values: Any, n_workers: int) -> Any:
    """Return a value per host for as many hosts as there are workers."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return values
    return [values[0], *itertools.islice(itertools.cycle(values[1:]), n_workers)]


def _commands(python: Any, worker_hosts: list[str]) -> list[str]:
    """Return what takes the place of Python on each host.

    It enters the driver's folder, so that relative paths mean the same there, ends with its driver,
    and distinguishes workers that share a machine, so that each takes a GPU of its own.
    """
    pythons = _repeated(python or [sys.executable] * 2, len(worker_hosts))
    if isinstance(pythons, str):
        pythons = [pythons] * (1 + len(worker_hosts))
    ranks = [worker_hosts[:i].count(host) for i, host in enumerate(worker_hosts)]
    folder = shlex.quote(os.getcwd())
    commands = []
    for rank, each in zip([0, *ranks], pythons, strict=True):
        script = _REMOTE.format(folder=folder, run=_run(str(each), is_file=not python))
        commands.append(f"LOCAL_RANK={rank} sh -c {shlex.quote(script)} sh")
    return commands


def _run(python: str, *, is_file: bool) -> str:
    """Return the line of shell that becomes Python, whatever letters its path has."""
    word = shlex.quote(python)
    if is_file:
        return f'exec {word} "$@"'
    command = shlex.quote(f'exec {python} "$@"')
    return f"{{ {_GIVEN.format(word=word, command=command)}; }}"


@contextmanager
def _quoted_specs() -> Iterator[None]:
    """Let Dask write options of workers so that they can stand in single quotes, as it puts them.

    An apostrophe in one, such as in the name of a folder, would end the word on the remote shell.
    """
    ssh: Any = importlib.import_module("distributed.deploy.ssh")
    dumps = ssh.dumps

    def quotable(value: Any) -> str:
        return str(dumps(value)).replace("'", "\\u0027")

    ssh.dumps = quotable
    try:
        yield
    finally:
        ssh.dumps = dumps


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Collect what the processes on the hosts say while they start; Dask only logs it."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    source = logging.getLogger("distributed.deploy.ssh")
    handler, level, propagate = Keep(), source.level, source.propagate
    source.addHandler(handler)
    source.setLevel(logging.INFO)
    # Kept for the error: printed as they come, they would be shown twice.
    source.propagate = False
    try:
        yield lines
    finally:
        source.removeHandler(handler)
        source.setLevel(level)
        source.propagate = propagate


def _describe(error: BaseException, hosts: Sequence[str], lines: Sequence[str]) -> str:
    import asyncssh

    host = next((host for host in hosts if host in str(error)), hosts[0])
    if isinstance(error, asyncssh.PermissionDenied):
        advice = f"Make this work without a question: ssh {host} true (ssh-copy-id {host})"
    elif isinstance(error, asyncssh.HostKeyNotVerifiable):
        advice = f"Its key is not known here. Log in once and accept it: ssh {host} true"
    elif isinstance(error, OSError):
        advice = f"See that this works: ssh {host} true; and that names and options.hosts are right"
    else:
        advice = (
            "The interpreter and the folder of this program must be there under the same paths; "
            "another interpreter is set by: remote_python: /path/to/python"
        )
    said = "".join(f"\n  {line}" for line in lines[-15:])
    return (
        f"parallel.env is 'ssh', but the cluster on {', '.join(map(str, hosts))} did not start: "
        f"{type(error).__name__}: {folded(error)}. {advice}."
        + (f"\nWhat the hosts said last:{said}" if said else "")
    )
