"""Submit the jobs of a run before Dask is imported, so that they start meanwhile.

The import takes as long as a job takes to start. Each script is written as dask-jobqueue will write
it a moment later, and compared with that: a job with another one is cancelled and submitted again.
"""

import importlib.util
import ipaddress
import logging
import os
import shlex
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from espnet3.errors import EspnetError
from espnet3.parallel.clusters.certificates import Certificates
from espnet3.parallel.clusters.dask_config import settings
from espnet3.parallel.clusters.job_header import parse_bytes, plain_header
from espnet3.parallel.clusters.job_options import interfaces, submission_environment
from espnet3.schedulers import Scheduler, known_scheduler

if TYPE_CHECKING:
    from espnet3.parallel.clusters.registry import Backend
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)

WORKER_MAIN = "-m espnet3.parallel.clusters.worker_main"
_COMMAND_OPTIONS = (
    "death_timeout", "local_directory", "worker_extra_args", "interface", "security",
    "scheduler_options", "shared_temp_directory",
)  # fmt: skip
"""What is no part of a job's header, but of its command, or of none."""
_LISTENING = {"host", "interface", "dashboard_address"}
_UNITS = {"Pi": 2**50, "Ti": 2**40, "Gi": 2**30, "Mi": 2**20, "ki": 2**10}


class EarlyJobs:
    """Jobs on their way to the scheduler, by the names of their workers.

    Args:
        scheduler: takes them.
        scripts: of each worker's job.
        security: the certificates that their scripts name; written before any is submitted.
        port: bound, not listening, so that no other program gets it, until `free_port`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        scripts: Mapping[str, str],
        security: Certificates,
        port: socket.socket,
    ) -> None:
        self._scheduler, self._scripts = scheduler, scripts
        self._security, self._port = security, port
        self._jobs: dict[str, Future[str]] = {}
        try:
            security.write()
            threads = ThreadPoolExecutor(len(scripts), thread_name_prefix="scheduler command")
            for name, script in scripts.items():
                self._jobs[name] = threads.submit(self._submit, script)
            threads.shutdown(wait=False)
        except BaseException:  # Ctrl-C as well
            self.undo()
            raise

    def _submit(self, script: str) -> str:
        # The file is removed after the block: schedulers copy the script when they accept it.
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
            file.write(script)
            file.flush()
            return self._scheduler.submit_script(file.name, environment=submission_environment())

    @property
    def port(self) -> int:
        """The port at which the driver is to listen."""
        number: int = self._port.getsockname()[1]
        return number

    def free_port(self) -> None:
        """Leave the port to the driver, which listens there by now."""
        self._port.close()

    def take(self, name: str, script: str, command: Sequence[str]) -> str | None:
        """Return the number of the job of a worker; None if it has to be submitted.

        Args:
            name: of the worker.
            script: that its job must have.
            command: with which it would be submitted.

        Raises:
            EspnetError: what the scheduler said.
        """
        job = self._jobs.pop(name, None)
        if job is None:
            return None
        if self._scripts[name] == script and list(command) == list(self._scheduler.submit):
            return job.result()
        logger.info("The job of %s is submitted again: its script was not the right one", name)
        self._cancel(job)
        return None

    def cancel_rest(self) -> None:
        """Cancel the jobs that no worker has taken."""
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            self._cancel(job)

    def undo(self) -> None:
        """Cancel those jobs, free the port, and remove the certificates."""
        self._port.close()
        self.cancel_rest()
        self._security.remove()

    def _cancel(self, job: Future[str]) -> None:
        try:
            self._scheduler.cancel_job(job.result(), self._scheduler.cancel)
        except (EspnetError, OSError) as error:  # refused, so that there is none
            logger.debug("An early job was not cancelled: %s", error)


def submit_early(
    config: "ParallelConfig", backend: "Backend", options: Mapping[str, Any]
) -> EarlyJobs | None:
    """Submit the first jobs, or return None where only dask-jobqueue knows their script.

    Args:
        config: with the number of workers.
        backend: of dask-jobqueue.
        options: the complete ones; `scheduler_options` get the port.
    """
    security, address = options.get("security"), _address(options)
    if not isinstance(security, Certificates) or address is None or not _is_installed(backend):
        return None
    if sys.platform != "linux":  # where two sockets cannot share a port as needed below
        return None
    scheduler = known_scheduler(config.env)
    of_header = {name: value for name, value in options.items() if name not in _COMMAND_OPTIONS}
    cluster = options.get("name") or backend.cluster
    names = [f"{cluster}-{number}" for number in range(config.n_workers)]
    # One each: LSF has the worker in the names of the logs.
    headers = {name: plain_header(scheduler, {**of_header, "name": name}) for name in names}
    if None in headers.values():
        return None
    if folder := options.get("log_directory"):
        os.makedirs(folder, exist_ok=True)
    port = socket.socket()
    # Dask sets it as well: Linux then lets it listen while this one keeps others away. To close
    # this one first would free the port too early, or too late: a command that is just being
    # started still has it.
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind((address, 0))
    where = f"tls://{address}:{port.getsockname()[1]}"
    scripts = {
        name: _script(config.env, options, header, where, name)
        for name, header in headers.items()
        if header is not None
    }
    return EarlyJobs(scheduler, scripts, security, port)


def _is_installed(backend: "Backend") -> bool:
    packages = (backend.package.partition(".")[0], "distributed")
    return all(importlib.util.find_spec(package) for package in packages)


def _address(options: Mapping[str, Any]) -> str | None:
    """Return the IPv4 address at which the driver will listen; None if only Dask can tell."""
    chosen = options["scheduler_options"]
    if not chosen.keys() <= _LISTENING:
        return None
    host = chosen.get("host")
    if host is None:
        interface = chosen.get("interface") or options.get("interface")
        return interfaces().get(str(interface))
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        return None


def _script(
    env: str, options: Mapping[str, Any], header: str, address: str, worker_name: str
) -> str:
    shebang = options.get("shebang") or settings(env)["shebang"]
    lines = "\n".join(filter(None, options["job_script_prologue"]))
    return f"{shebang}\n\n{header}\n{lines}\n{_command(options, address, worker_name)}\n"


def _command(options: Mapping[str, Any], address: str, worker_name: str) -> str:
    """Return the line that starts a worker, as dask-jobqueue writes it with our program."""
    words = [options["python"], WORKER_MAIN, address, "--name", worker_name]
    words += ["--nthreads", options["cores"]]
    words += ["--memory-limit", _readable(parse_bytes(options["memory"]) or 0)]
    words += ["--nanny", "--death-timeout", options["death_timeout"]]
    if options.get("local_directory") is not None:
        words += ["--local-directory", options["local_directory"]]
    words += options["worker_extra_args"]
    if options.get("interface"):
        words += ["--interface", options["interface"]]
    words += ["--protocol", "tls://"]
    files: Certificates = options["security"]
    for name, file in (("ca-file", files.certificate), ("cert", files.certificate)):
        words += [f"--tls-{name}", shlex.quote(str(file))]
    return " ".join(map(str, [*words, "--tls-key", shlex.quote(str(files.key))]))


def _readable(n_bytes: int) -> str:
    """Return a size as Dask writes it."""
    for prefix, unit in _UNITS.items():
        if n_bytes >= unit * 0.9:
            return f"{n_bytes / unit:.2f}{prefix}B"
    return f"{n_bytes}B"
