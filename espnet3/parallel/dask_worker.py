"""Run attempts inside a Dask worker, one at a time."""

import sys
import threading
from typing import Any

import cloudpickle

from espnet3.parallel.tasks import Failure, ShardResult, Stopped
from espnet3.parallel.worker import ShardServer, dump_result

BEAT_SECONDS = 1.0
_FIRST_BEAT_SECONDS = 0.1
NEEDS_SPEC = b""
Spec = tuple[list[str], bytes]
"""Where the driver finds its modules, and the pickled `RunSpec`."""

# One slot: a worker serves one run after the other, and two models may not fit on one GPU. The
# lock also keeps a worker with several threads to one attempt at a time.
_lock = threading.Lock()
_server: tuple[str, ShardServer] | None = None


def run_attempt(run_id: str, spec: Spec | None, task: bytes, topic: str) -> bytes:
    """Run an attempt in this worker.

    Returns:
        The pickled `ShardResult`, or `NEEDS_SPEC` if this process does not know the run yet.
    """
    with _lock:
        work = cloudpickle.loads(task)
        server = _find_server(run_id, spec, work)
        if server is None:
            return NEEDS_SPEC
        if isinstance(server, ShardResult):
            return dump_result(server)
        beat = _Beat(server, topic, work.shard, is_first=spec is not None)
        try:
            return dump_result(server.run(work))
        finally:
            beat.stop()


def _find_server(run_id: str, spec: Spec | None, task: Any) -> ShardServer | ShardResult | None:
    global _server
    if _server is not None and _server[0] == run_id:
        return _server[1]
    if spec is None:
        return None
    _server = None  # frees the environment of the run before
    sys_path, packed = spec
    # Before unpacking: the runner may be of a module that only the driver's folders have.
    sys.path += [entry for entry in sys_path if entry not in sys.path]
    try:
        _server = (run_id, ShardServer(cloudpickle.loads(packed)))
    except Exception as error:  # mostly a module that this worker cannot import
        failure = Failure.of(error, task.start, None, task.shard)
        return ShardResult(task, stopped=Stopped("provider", failure))
    return _server[1]


class _Beat:
    """Tells the driver every second how far the attempt is; the first of a run, soon for once.

    Because the driver gives the next one to workers of which it knows that they get on.
    """

    def __init__(self, server: ShardServer, topic: str, shard: int, *, is_first: bool) -> None:
        from distributed import get_worker

        self._worker = get_worker()
        self._server, self._topic, self._shard = server, topic, shard
        self._next = _FIRST_BEAT_SECONDS if is_first else BEAT_SECONDS
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="beat", daemon=True).start()

    def _run(self) -> None:
        while not self._stop.wait(self._next):
            self._next = BEAT_SECONDS
            message = [self._worker.address, self._shard, self._server.position()]
            self._worker.log_event(self._topic, message)

    def stop(self) -> None:
        """Say no more."""
        self._stop.set()
