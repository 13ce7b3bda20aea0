"""Failures of ranks: what is reported of them, and child processes that die without a word.

Lightning's `ddp` starts rank 0, which starts the others by `Popen`. If one fails, a thread of
Lightning kills all, rank 0 included, with SIGKILL, and no message of ours would get out. So the
children are taken over here.
"""

import json
import os
import signal
import socket
import subprocess
import traceback
from collections.abc import Iterator, MutableMapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from espnet3.errors import EspnetError
from espnet3.trainer.lightning_internals import take_over_children

_PARENT = "ESPNET3_RANK_PARENT"
"""Process that is to be the parent of the ranks on its machine; theirs from their first moment."""
_TEXT_LIMIT = 20_000
"""Characters of a traceback that are kept, its end rather than its beginning."""


@dataclass(frozen=True)
class RankFailure:
    """Why a training on several ranks cannot continue."""

    rank: int
    host: str
    pid: int
    summary: str
    """The rest of a sentence that begins with the rank."""
    details: str = ""
    """A traceback, or what to look at."""
    exit_code: int = 1
    is_own: bool = False
    """Whether the rank itself reports it, and prints it."""

    @property
    def name(self) -> str:
        """The rank, as it is called in messages."""
        process = f", process {self.pid}" if self.pid else ""
        return f"rank {self.rank} ({self.host}{process})"

    @property
    def is_mine(self) -> bool:
        """Whether it is one of this process."""
        return (self.host, self.pid) == (socket.gethostname(), os.getpid())

    def in_a_line(self, rank: int) -> str:
        """Return why another rank ends as well, without the details."""
        return f"Rank {rank} ends, because {self.name} {self.summary}"

    def in_full(self) -> str:
        """Return it with the details, which come last."""
        name = self.name[0].upper() + self.name[1:]
        return f"{name} {self.summary}" + (f"\n{self.details}" if self.details else "")

    def to_json(self) -> str:
        """Return what `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: bytes) -> "RankFailure":
        """Read what another rank has written."""
        return cls(**json.loads(text))


def failure_of(error: BaseException, rank: int) -> RankFailure:
    """Describe an error of this process."""
    if isinstance(error, KeyboardInterrupt):
        code = getattr(error, "code", None)
        code = code if isinstance(code, int) else 130
        return _here(rank, f"was interrupted (exit code {code})", exit_code=code)
    if isinstance(error, EspnetError):  # says all itself
        return _here(rank, f"failed: {error}")
    lines = "".join(traceback.format_exception(error)).rstrip()
    if len(lines) > _TEXT_LIMIT:
        lines = "[...]\n" + lines[-_TEXT_LIMIT:]
    return _here(rank, f"failed with {type(error).__name__}.", lines)


def _here(rank: int, summary: str, details: str = "", exit_code: int = 1) -> RankFailure:
    return RankFailure(
        rank, socket.gethostname(), os.getpid(), summary, details, exit_code, is_own=True
    )


def lost_server(what: str, place: tuple[str, int], is_torchrun: bool) -> RankFailure:
    """Describe the loss of the store through which the ranks find each other."""
    where = "torchrun's store" if is_torchrun else "its store"
    return RankFailure(0, *place, f"is out of reach: {where} {what}", advice(place[0]))


def silence_of(rank: int, place: tuple[str, int], seconds: float) -> RankFailure:
    """Describe a rank that has stopped to say that it lives."""
    since = datetime.now() - timedelta(seconds=seconds)
    what = f"has given no sign of life for {seconds:.0f} s, since {since:%H:%M:%S}."
    return RankFailure(rank, *place, what, advice(place[0]))


def advice(host: str) -> str:
    """Return what to look at after a rank has gone without a word."""
    text = (
        "Usual causes: out of memory, a cancelled job, kill -9, a lost machine or network. "
        f"See the end of its own log, `dmesg -T | grep -i 'killed process'` on {host}"
    )
    job = os.environ.get("SLURM_JOB_ID")
    text += f", and `sacct -j {job}` or `scontrol show job {job}`" if job else ""
    return f"{text}. The last checkpoint is whole: the same command resumes from it."


def is_communication_error(error: BaseException) -> bool:
    """Tell whether an error is one that other ranks get when a rank goes."""
    return any(_is_from_a_collective(one) for one in _chain(error))


def _is_from_a_collective(error: BaseException) -> bool:
    from torch.distributed import DistError

    text = str(error)
    by_text = any(word in text for word in ("gloo", "NCCL", "c10d", "Connection closed by peer"))
    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and by_text)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def tell_torchrun(error: BaseException) -> None:
    """Leave the traceback where torchrun looks for it, which then prints it as the very last."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.path.exists(path):
        return
    # torchrun blames the earliest, in whole seconds, and of those the lowest rank.
    stamp = str(int(datetime.now().timestamp()) - 1)
    lines = "".join(traceback.format_exception(error))
    message = {
        "message": f"{type(error).__name__}: {error}",
        "extraInfo": {"py_callstack": lines, "timestamp": stamp},
    }
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"message": message}, file)
    except OSError:
        pass  # the error itself matters more


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

    def orphaned(self, rank: int) -> RankFailure:
        """Describe the end of the parent."""
        host, pid = socket.gethostname(), self._parent or 0
        if self.is_child:
            return RankFailure(0, host, pid, "is gone.", advice(host))
        what = f"was left alone: its launcher, process {pid}, is gone."
        return RankFailure(rank, host, os.getpid(), what, advice(host))

    def dead_child(self) -> RankFailure | None:
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


def _death(rank: int, child: subprocess.Popen[bytes]) -> RankFailure:
    host, code = socket.gethostname(), child.returncode
    if code > 0:
        what = f"ended with exit code {code} and left no message."
        return RankFailure(rank, host, child.pid, what, "Its own output, above, may say why.")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return RankFailure(rank, host, child.pid, f"was killed by {name}.", advice(host))
