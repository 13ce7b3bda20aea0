"""Start detached workers as local processes that outlive the terminal."""

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.errors import ResourceError
from espnet3.io.shared_files import folder_time
from espnet3.parallel.clusters.gpus import VARIABLE
from espnet3.parallel.process_pool import THREAD_VARIABLES
from espnet3.schedulers import JobState
from espnet3.shards.lease import machine_id, start_time
from espnet3.shards.records import JobRecord

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

_PROGRAM = "espnet3.parallel.detached.work"
# In the background of a shell that ends at once: the process has no parent that would have
# to wait for it, and in a session of its own, so no terminal takes it along.
_SHELL = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'


def start_process(
    config: "ParallelConfig",
    arguments: Sequence[str],
    logs: Path,
    variables: Mapping[str, str],
    *,
    generation: int = 0,
) -> JobRecord:
    """Start a worker that outlives this program, and return its record.

    Args:
        config: of the run.
        arguments: of `espnet3.parallel.detached.work`.
        logs: the folder for what the process writes before it has a log of its own.
        variables: what to add to its environment.
        generation: how many were there before it in its place.

    Raises:
        ResourceError: if it cannot be started.
    """
    # -P: the folder in which one types `espnet3 resume` may be one that others write into, and
    # their json.py is not to be imported.
    command = [sys.executable, "-P", "-m", _PROGRAM, *arguments]
    limits = dict.fromkeys(THREAD_VARIABLES, str(config.options.get("threads_per_worker", 1)))
    # Limits first: OMP_NUM_THREADS of the user's own wins. Unbuffered, or a killed worker's last
    # lines would be lost.
    environment = {**limits, **os.environ, "PYTHONUNBUFFERED": "1", **variables}
    environment["PYTHONPATH"] = os.pathsep.join(_python_path(environment.get("PYTHONPATH")))
    submitted = folder_time(logs)
    output = logs / f"detached-{config.env}.out"
    try:
        answer = subprocess.run(
            ["/bin/sh", "-c", _SHELL, "sh", str(output), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            check=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ResourceError(
            f"No worker process could be started on {socket.gethostname()}: {error}"
        ) from error
    pid = int(answer.stdout)
    return JobRecord(
        env=config.env,
        job_id=str(pid),
        submitted=submitted,
        host=socket.gethostname(),
        machine=machine_id(),
        # Pids are used again: number and start time together name a process.
        started=start_time(pid) or 0,
        generation=generation,
        log=os.path.join(logs.name, f"detached-{config.env}-{socket.gethostname()}-{pid}.log"),
        gpu=variables.get(VARIABLE, "").partition(",")[0],
    )


def _python_path(given: str | None) -> list[str]:
    """Return where the process finds ESPnet3 itself; the rest is in the run folder."""
    entries = given.split(os.pathsep) if given else []
    home = str(Path(__file__).parents[3])
    # Last: the user's modules of the same names keep their precedence.
    return entries if home in entries else [*entries, home]


def process_variables(config: "ParallelConfig", taken: Sequence[str]) -> list[dict[str, str]]:
    """Return what to add to the environment of workers: for GPUs, one entry per free place.

    Empty if they need nothing.

    Raises:
        ResourceError: if there are fewer visible GPUs than workers.
    """
    if config.env != "local_gpu":
        return []
    from espnet3.parallel.clusters.local_gpu import worker_variables

    living, free = Counter(taken), []
    for each in worker_variables(config):
        gpu = each[VARIABLE].partition(",")[0]
        if living[gpu]:
            living[gpu] -= 1
        else:
            free.append(each)
    return free


def process_state(record: JobRecord) -> JobState:
    """Tell whether a process is there; of another machine nothing is known."""
    # Others may write into a run folder, and kill(-1) would end all of a user's processes.
    if not record.job_id.isdecimal():
        return JobState("ended", "", f"{record.job_id!r} is no number of a process")
    # By machine, not host name: containers may share one, and pids differ between them.
    if record.machine != machine_id():
        return JobState("unknown", "", f"it is a process of {record.host}")
    started = start_time(int(record.job_id))
    if started is None or (started and record.started and started != record.started):
        return JobState("ended", "gone")
    return JobState("running", "running")


def end_process(record: JobRecord) -> str:
    """Ask a process to hand back its work and end; return what keeps it from being asked."""
    state = process_state(record)
    if state.phase == "ended":
        return ""
    if state.phase == "unknown":
        return f"process {record.job_id} runs on {record.host}: it ends when it sees the mark"
    if not _is_worker(int(record.job_id)):
        return f"process {record.job_id} on {record.host} is no worker of ESPnet3"
    try:
        os.kill(int(record.job_id), signal.SIGTERM)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return f"process {record.job_id} on {record.host} is another user's"
    return ""


def _is_worker(pid: int) -> bool:
    """Tell whether a process is what it should be: others may write into a run folder."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        # Without /proc there is nothing to compare with.
        return not Path("/proc/self/cmdline").exists()
    # The shell that is about to become it has the name among its words, too.
    return _PROGRAM.encode() in command.split(b"\0")
