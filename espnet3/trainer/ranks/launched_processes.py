"""The processes above and below a rank: its launcher, and the ranks that Lightning starts from it.

Lightning's `ddp` starts rank 0, which starts the others by `Popen`. A thread of its own looks
after them: if one fails, it kills all, rank 0 included, with SIGKILL. No message of ours would
get out, so its children are taken over here.
"""

import os
import signal
import socket
import subprocess
from collections.abc import MutableMapping

from espnet3.trainer.lightning_internals import take_over_children
from espnet3.trainer.ranks.rank_failure import Failure, advice

_PARENT = "ESPNET3_RANK_PARENT"
"""Process that is to be the parent of the ranks on its machine; theirs from their first moment."""


class LaunchedProcesses:
    """Looks after the parent and the children of a rank."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._children: list[subprocess.Popen[bytes]] = []
        self._parent = _expected_parent(environ)
        self.is_child = self._parent is not None and "TORCHELASTIC_RUN_ID" not in environ
        """Whether rank 0 of this machine has started this process."""
        self._marks = _PARENT not in environ
        if self._marks:
            environ[_PARENT] = str(os.getpid())

    def close(self) -> None:
        """Leave the environment as it was."""
        if self._marks:
            self._environ.pop(_PARENT, None)

    def has_lost_parent(self) -> bool:
        """Tell whether the process that started this rank has ended."""
        return self._parent is not None and os.getppid() != self._parent

    def orphaned(self, rank: int) -> Failure:
        """Describe the end of the parent."""
        host, pid = socket.gethostname(), self._parent or 0
        if self.is_child:
            return Failure(0, host, pid, "is gone.", advice(host))
        what = f"was left alone: its launcher, process {pid}, is gone."
        return Failure(rank, host, os.getpid(), what, advice(host))

    def dead_child(self) -> Failure | None:
        """Return what became of the first child that has failed."""
        self._take_over()
        for number, child in enumerate(self._children, start=1):
            if child.poll():
                rank = _first_rank(self._environ, len(self._children)) + number
                return _death(rank, child)
        return None

    def _take_over(self) -> None:
        self._children = take_over_children() or self._children

    def kill_children(self) -> None:
        """End what is left of the children; they may hang in a collective."""
        for child in self._children:
            if child.poll() is None:
                child.kill()


def _expected_parent(environ: MutableMapping[str, str]) -> int | None:
    if "TORCHELASTIC_RUN_ID" in environ:
        return os.getppid()
    if environ.get("LOCAL_RANK", "0") != "0" and _PARENT in environ:
        return int(environ[_PARENT])
    return None  # a shell, whose end means nothing


def _first_rank(environ: MutableMapping[str, str], n_children: int) -> int:
    return int(environ.get("NODE_RANK") or 0) * (n_children + 1)


def _death(rank: int, child: subprocess.Popen[bytes]) -> Failure:
    host, code = socket.gethostname(), child.returncode
    if code > 0:
        what = f"ended with exit code {code} and left no message."
        return Failure(rank, host, child.pid, what, "Its own output, above, may tell why.")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return Failure(rank, host, child.pid, f"was killed by {name}.", advice(host))
