"""Messages between ranks: heartbeats, failures and farewells, over a store of torch.

It is beside the process group, so that it works while a collective hangs.
"""

import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

LEFT = b"left"
"""The heartbeat of a rank that has come to its end."""
_CONNECT_SECONDS = 10.0
_FAREWELL_SECONDS = 5.0
"""Longest wait for the others when a rank ends."""


@dataclass(frozen=True)
class RankFailure:
    """Failure that ends a training on several ranks."""

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
        """Tell whether it is one of this process."""
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


def lost_server(what: str, place: tuple[str, int], is_torchrun: bool) -> RankFailure:
    """Describe the loss of the store through which the ranks find each other."""
    where = "torchrun's store" if is_torchrun else "its store"
    return RankFailure(0, *place, f"is out of reach: {where} {what}", advice(place[0]))


def silence_of(rank: int, place: tuple[str, int], seconds: float) -> RankFailure:
    """Describe a rank whose heartbeat has stopped."""
    since = datetime.now() - timedelta(seconds=seconds)
    what = f"has given no sign of life for {seconds:.0f} s, since {since:%H:%M:%S}."
    return RankFailure(rank, *place, what, advice(place[0]))


def advice(host: str) -> str:
    """Return what to look at after a rank ended without a message."""
    text = (
        "Usual causes: out of memory, a cancelled job, kill -9, a lost machine or network. "
        f"See the end of its own log, `dmesg -T | grep -i 'killed process'` on {host}"
    )
    job = os.environ.get("SLURM_JOB_ID")
    text += f", and `sacct -j {job}` or `scontrol show job {job}`" if job else ""
    return f"{text}. The last checkpoint is whole: the same command resumes from it."


class RankStore:
    """A connection to the store.

    Calls take well under a millisecond. When the server is gone, they raise
    `torch.distributed.DistError`; when its machine is gone, they may hang.
    """

    def __init__(self, address: tuple[str, int], prefix: str) -> None:
        # A silent connection, only to see at once when the server is gone. The store's own would
        # print twenty lines of C++ frames.
        self._wire = socket.create_connection(address, timeout=1.0)
        try:
            store = TCPStore(
                *address,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=_CONNECT_SECONDS),
            )
        except BaseException:
            self._wire.close()
            raise
        self._store = PrefixStore(prefix, store)
        self._heard: set[int] = set()

    def is_gone(self, seconds: float = 0.0) -> bool:
        """Wait up to some seconds for the server to end; return whether it did."""
        poll = select.poll()
        poll.register(self._wire, select.POLLIN)  # the server says nothing here, until it closes
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        """Let go of the silent connection."""
        self._wire.close()

    def post(self, failure: RankFailure) -> bool:
        """Publish a failure; False if there was one already, which then stays."""
        text = failure.to_json()
        # An expected value of "" also stands for a missing key, so exactly one rank succeeds.
        return self._store.compare_set("failure", "", text) == text.encode()

    def failure(self) -> RankFailure | None:
        """Return the first failure of any rank."""
        # `get` would block until there is one.
        if not self._store.check(["failure"]):
            return None
        return RankFailure.from_json(self._store.get("failure"))

    def acknowledge(self) -> None:
        """Record that this rank has read the failure and logged it."""
        self._store.add("acknowledged", 1)

    def n_acknowledged(self) -> int:
        """Return how many ranks have read the failure."""
        # Adding 0 reads the counter without waiting until a rank has written it.
        return self._store.add("acknowledged", 0)

    def suspect(self) -> None:
        """Report that a collective has failed here: some rank may be dead."""
        self._store.set("suspicion", "1")

    def is_suspicious(self) -> bool:
        """Tell whether a collective has failed on any rank."""
        return self._store.check(["suspicion"])

    def introduce(self, rank: int) -> None:
        """Publish the host and process of this rank."""
        self._store.set(f"place/{rank}", f"{os.getpid()} {socket.gethostname()}")

    def place(self, rank: int) -> tuple[str, int]:
        """Return the host and process of a rank."""
        if not self._store.check([f"place/{rank}"]):
            return "unknown host", 0
        pid, _, host = self._store.get(f"place/{rank}").decode().partition(" ")
        return host, int(pid)

    def beat(self, rank: int, value: bytes) -> None:
        """Publish the heartbeat of a rank: a value that changes, or `LEFT`."""
        self._store.set(f"beat/{rank}", value.decode())

    def beats(self, ranks: list[int]) -> dict[int, bytes]:
        """Return the last heartbeats; empty ones of ranks that were never heard."""
        # `multi_get` blocks until all of its keys exist, so it gets only ranks that were heard.
        missing = [rank for rank in ranks if rank not in self._heard]
        self._heard.update(rank for rank in missing if self._store.check([f"beat/{rank}"]))
        known = [rank for rank in ranks if rank in self._heard]
        values = self._store.multi_get([f"beat/{rank}" for rank in known]) if known else []
        return dict.fromkeys(ranks, b"") | dict(zip(known, values, strict=True))


def connect(environ: Mapping[str, str] = os.environ) -> RankStore | None:
    """Return a connection, or None as long as there is no server."""
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT", "")
    if not host or not port.isdigit():
        return None
    # torchrun keeps its server when it starts failed workers again.
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        return RankStore((host, int(port)), f"espnet3/{attempt}")
    except (OSError, RuntimeError):  # not up yet; a DistError is a RuntimeError
        return None


def outlives_rank_0(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether the server is in torchrun rather than in rank 0."""
    return environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


class RankLink:
    """The connection of this rank to the others, and when it may end.

    There is a connection as soon as there is a server, which may be before the process group:
    while the data are loaded, ranks can fail as well.
    """

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)
        self.world_size = 1
        self.is_in_group = False
        self.has_left = False
        self.hangs = False
        """Whether a call to the store does not come back."""
        self.store: RankStore | None = None
        self._connecting = threading.Lock()
        self._beating = threading.Lock()
        self._server = (os.environ.get("MASTER_ADDR", ""), 0)

    def connect(self) -> RankStore | None:
        """Return the connection, or None as long as there is no server that answers."""
        with self._connecting:
            if not self.is_in_group:
                self._find_group()
            if self.store is None and self.world_size > 1:
                self.store = connect()
            return self.store

    def _find_group(self) -> None:
        self.world_size = int(os.environ.get("WORLD_SIZE") or 1)
        if not dist.is_initialized():
            return
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.store = self.store or connect()
        if self.store is not None:
            self.store.introduce(self.rank)
            self.is_in_group = True

    def meet(self) -> None:
        """Remember where rank 0 is, to name it when it is gone; after all have connected."""
        if self.rank and self.is_in_group and self.store is not None:
            self._server = self.store.place(0)

    def usable_store(self) -> RankStore | None:
        """Return the connection if its server is there."""
        is_usable = self.store is not None and not self.hangs and not self.store.is_gone()
        return self.store if is_usable else None

    def beat(self, store: RankStore, value: int) -> None:
        """Publish the heartbeat of this rank, unless it has left."""
        with self._beating:
            # Under the lock: a beat after LEFT would make this rank look dead soon after.
            if not self.has_left:
                store.beat(self.rank, str(value).encode())

    def leave(self) -> None:
        """Report that this rank has ended as it should."""
        with self._beating:
            is_first, self.has_left = not self.has_left, True
            store = self.usable_store()
            if store is None or not is_first:
                return
            try:
                store.beat(self.rank, LEFT)
                if self.rank == 0 and not outlives_rank_0():  # or they would miss the store
                    others = list(range(1, self.world_size))
                    wait_for(lambda: set(store.beats(others).values()) <= {LEFT})
            except RuntimeError:
                pass  # rank 0 was faster

    def others(self, store: RankStore) -> dict[int, bytes]:
        """Return the heartbeats to listen to: rank 0 listens to all, all listen to rank 0."""
        beats = store.beats([0] if self.rank else list(range(1, self.world_size)))
        return {rank: beat for rank, beat in beats.items() if beat != LEFT}

    def saw_leave(self, rank: int) -> bool:
        """Tell whether a rank has ended as it should, if with a code that is not 0."""
        store = self.usable_store()
        return store is not None and store.beats([rank])[rank] == LEFT

    def share(self, failure: RankFailure) -> RankFailure:
        """Publish a failure; return the first one of all, which is the one to log."""
        store = self.usable_store()
        try:
            if store is not None:
                store.post(failure)
                return store.failure() or failure
        except RuntimeError:
            pass
        return failure

    def await_others(self, store: RankStore, n_exceptions: int) -> None:
        """Wait until the others have read a failure."""
        n_others = self.world_size - n_exceptions
        wait_for(lambda: store.n_acknowledged() >= n_others)

    def lost_server(self, what: str) -> RankFailure:
        """Describe the loss of the store."""
        return lost_server(what, self._server, outlives_rank_0())


def wait_for(condition: Callable[[], bool], seconds: float = _FAREWELL_SECONDS) -> bool:
    """Wait for a condition; return whether it holds."""
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds


class SilenceMeter:
    """Adds up, for each rank, the time in which its heartbeat did not change.

    Clocks of other machines play no role. Time in which the listener itself stood still (Ctrl-Z, a
    suspended job) does not count: then all were silent.

    Args:
        longest_step: seconds that count at most between two calls of `update`.
        clock: for tests.
    """

    def __init__(self, longest_step: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_step = longest_step
        self._clock = clock
        self._last_call: float | None = None
        self._beats: dict[int, bytes] = {}
        self._seconds: dict[int, float] = {}

    def update(self, beats: Mapping[int, bytes]) -> None:
        """Take in the present heartbeats; a rank that is not among them is forgotten."""
        now = self._clock()
        since = 0.0 if self._last_call is None else now - self._last_call
        self._last_call = now
        seconds = {}
        for rank, beat in beats.items():
            is_new = self._beats.get(rank) != beat
            waited = self._seconds.get(rank, 0.0) + min(since, self._longest_step)
            seconds[rank] = 0.0 if is_new else waited
        self._beats, self._seconds = dict(beats), seconds

    def longest(self) -> tuple[int, float]:
        """Return the rank that has been silent for longest, and its seconds."""
        if not self._seconds:
            return 0, 0.0
        return max(self._seconds.items(), key=lambda item: item[1])
