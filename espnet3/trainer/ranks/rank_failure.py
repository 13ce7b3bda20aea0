"""What became of a rank that failed, in words that reach the others."""

import json
import os
import socket
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from espnet3.errors import EspnetError

_TEXT_LIMIT = 20_000
"""Characters of a traceback that are kept, its end rather than its beginning."""


@dataclass(frozen=True)
class Failure:
    """Why a training on several ranks cannot go on."""

    rank: int
    host: str
    pid: int
    summary: str
    """The rest of a sentence that begins with the rank."""
    details: str = ""
    """A traceback, or what to look at."""
    exit_code: int = 1
    is_own: bool = False
    """Whether the rank itself tells of it, and prints it."""

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
    def from_json(cls, text: bytes) -> "Failure":
        """Read what another rank has written."""
        return cls(**json.loads(text))


def failure_of(error: BaseException, rank: int) -> Failure:
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


def _here(rank: int, summary: str, details: str = "", exit_code: int = 1) -> Failure:
    return Failure(
        rank, socket.gethostname(), os.getpid(), summary, details, exit_code, is_own=True
    )


def lost_server(what: str, place: tuple[str, int], is_torchrun: bool) -> Failure:
    """Describe the loss of the store through which the ranks find each other."""
    where = "torchrun's store" if is_torchrun else "its store"
    return Failure(0, *place, f"is out of reach: {where} {what}", advice(place[0]))


def silence_of(rank: int, place: tuple[str, int], seconds: float) -> Failure:
    """Describe a rank that has stopped to say that it lives."""
    since = datetime.now() - timedelta(seconds=seconds)
    what = f"has given no sign of life for {seconds:.0f} s, since {since:%H:%M:%S}."
    return Failure(rank, *place, what, advice(place[0]))


def advice(host: str) -> str:
    """Return what to look at after a rank has gone without a word."""
    text = (
        "Usual causes: out of memory, a cancelled job, kill -9, a lost machine or network. "
        f"See the end of its own log, `dmesg -T | grep -i 'killed process'` on {host}"
    )
    job = os.environ.get("SLURM_JOB_ID")
    text += f", and `sacct -j {job}` or `scontrol show job {job}`" if job else ""
    return f"{text}. The last checkpoint is whole: the same command goes on from it."


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
