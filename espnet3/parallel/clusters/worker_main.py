"""The program of a job with Dask workers: `python -m espnet3.parallel.clusters.worker_main ...`.

It takes the arguments of `dask worker`. A worker's nanny would start it as a new Python, which
imports Dask a second time. Here a process that is forked after the imports, and before there are
threads and an event loop, stands by and forks each worker, also those that replace dead ones.
"""

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing import connection, forkserver, resource_tracker
from typing import Any, NoReturn

if __name__ == "__main__":
    gc.disable()  # until all is imported, which stays: looking through it takes a tenth of the time
    # Dask uses them if they are there: numpy for buffers of messages, jinja2 for how things look in
    # a notebook. To import them takes a third of the time that Dask takes. What works with them
    # imports them later, as ever.
    spared: dict[str, Any] = dict.fromkeys({"numpy", "jinja2"} - sys.modules.keys())
    sys.modules.update(spared)  # None: such an import is refused

import dask
import distributed.utils
from distributed.cli.dask_worker import main as run_dask_worker

from espnet3.parallel.clusters.dask_config import quiet_settings

if __name__ == "__main__":
    for name in spared:
        del sys.modules[name]

# Under Dask's name, whose messages go into the job's log.
logger = logging.getLogger("distributed.espnet3")
_METHOD = "distributed.worker.multiprocessing-method"
_TRIM = "MALLOC_TRIM_THRESHOLD_"
_M_TRIM_THRESHOLD = -1  # of malloc.h


def main() -> None:
    """Prepare quick starts of workers, and become what `dask worker` is."""
    gc.freeze()  # so that no collection copies the pages that forked workers share
    gc.enable()
    dask.config.set(quiet_settings())
    variables = dask.config.get("distributed.nanny.pre-spawn-environ")
    if may_fork(dask.config.get(_METHOD), variables) and start_fork_server(variables.get(_TRIM)):
        dask.config.set({_METHOD: "forkserver"})
        # Else Dask would import all that its workers may ever use, into the nanny.
        vars(distributed.utils)["_forkserver_preload_set"] = True
    run_dask_worker()


def may_fork(method: str, variables: dict[str, Any]) -> bool:
    """Tell whether a forked worker is like one that Dask would start.

    Args:
        method: how it would do so, which the user may have set.
        variables: what it would set before, which some libraries read when they are loaded.
    """
    missing = [
        name for name, value in variables.items() if value is not None and name not in os.environ
    ]
    return method == "spawn" and set(missing) <= {_TRIM}


def start_fork_server(trim_threshold: Any) -> bool:
    """Fork the process that `multiprocessing` would start as its fork server.

    It ends with this process: a pipe tells it. If it dies, `multiprocessing` starts another.

    Returns:
        Whether there is one: its socket needs a folder for temporary files with a short name.
    """
    resource_tracker.ensure_running()
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
            listener.bind(address)
            os.chmod(address, 0o600)  # who can connect can run code
            listener.listen()
        except OSError as error:
            logger.warning("Workers are started, not forked: %s", error)
            return False
        is_over, is_alive = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(is_alive)
            _serve(listener.fileno(), is_over, trim_threshold)
        os.close(is_over)
    known: Any = forkserver._forkserver
    known._forkserver_address = address
    known._forkserver_alive_fd = is_alive
    known._forkserver_pid = pid
    return True


def _serve(listener: int, is_over: int, trim_threshold: Any) -> NoReturn:
    try:
        if trim_threshold is not None:
            # As the variable would, which glibc reads when a program starts.
            with suppress(AttributeError, ValueError):
                value = int(os.environ.get(_TRIM, trim_threshold))
                ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, value)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        forkserver.main(listener, is_over, [])
    finally:
        # Not sys.exit: what the nanny's process would do at its end is none of this one's.
        os._exit(0)


if __name__ == "__main__":
    main()
