"""Questions about jobs and workers, asked in a thread: answers may take long, the run goes on."""

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from espnet3.schedulers import JobState, Scheduler

_REACH_SECONDS = 3.0
_N_TRIES = 2
_N_AT_ONCE = 16


@dataclass(frozen=True)
class Answer:
    """What was found out."""

    asked: float
    states: dict[str, JobState] = field(default_factory=dict)
    unreachable: frozenset[str] = frozenset()


class Questions:
    """Asks a scheduler and the network, one question at a time."""

    def __init__(self, scheduler: Scheduler | None) -> None:
        self._scheduler = scheduler
        self._answer: Answer | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        """Whether an answer is still awaited."""
        return self._thread is not None and self._thread.is_alive()

    def ask(self, job_ids: Sequence[str], silent: Sequence[str]) -> None:
        """Begin to ask for jobs, and whether silent workers' machines are there."""
        self._thread = threading.Thread(
            target=self._find_out, args=(job_ids, silent), name="job questions", daemon=True
        )
        self._thread.start()

    def take(self) -> Answer | None:
        """Return an answer that has come, once."""
        answer, self._answer = self._answer, None
        return answer

    def _find_out(self, job_ids: Sequence[str], silent: Sequence[str]) -> None:
        asked = time.monotonic()
        states = self._scheduler.jobs(job_ids) if self._scheduler and job_ids else {}
        self._answer = Answer(asked, states, frozenset(_unreachable(silent)))


def _unreachable(addresses: Sequence[str]) -> list[str]:
    if not addresses:
        return []
    with ThreadPoolExecutor(min(len(addresses), _N_AT_ONCE)) as threads:
        reached = list(threads.map(is_reachable, addresses))
    return [address for address, is_there in zip(addresses, reached, strict=True) if not is_there]


def is_reachable(address: str) -> bool:
    """Tell whether a worker's machine and process are there, however busy they are.

    The kernel takes the connection, not the process: one that holds the interpreter lock for
    minutes is reachable, one behind a broken cable is not.
    """
    where = urlsplit(address)
    if where.hostname is None or where.port is None:
        return True  # an address of a kind that we cannot try
    for _ in range(_N_TRIES):
        try:
            socket.create_connection((where.hostname, where.port), _REACH_SECONDS).close()
        except ConnectionRefusedError:
            return True  # the machine answers; if the process is gone, Dask will notice
        except OSError:
            continue
        return True
    return False
