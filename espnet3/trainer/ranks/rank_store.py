"""What the ranks tell each other besides gradients, through the process group's own store.

The store is a small server of torch's, in rank 0 or in torchrun. Each rank has a connection of
its own here, so that it can speak while the process group hangs.
"""

import os
import select
import socket
from collections.abc import Mapping
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from espnet3.trainer.ranks.rank_failure import Failure

LEFT = b"left"
"""The heartbeat of a rank that has come to its end."""

_CONNECT_SECONDS = 10.0


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
        """Wait up to some seconds for the server to go; tell whether it went."""
        poll = select.poll()
        poll.register(self._wire, select.POLLIN)  # the server says nothing here, until it closes
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        """Let go of the silent connection."""
        self._wire.close()

    def post(self, failure: Failure) -> bool:
        """Tell the others of a failure; False if there was one already, which then stays."""
        text = failure.to_json()
        return self._store.compare_set("failure", "", text) == text.encode()

    def failure(self) -> Failure | None:
        """Return the first failure of any rank."""
        if not self._store.check(["failure"]):
            return None
        return Failure.from_json(self._store.get("failure"))

    def acknowledge(self) -> None:
        """Say that this rank has read of the failure and said so."""
        self._store.add("acknowledged", 1)

    def n_acknowledged(self) -> int:
        """Return how many ranks have read of the failure."""
        return self._store.add("acknowledged", 0)

    def suspect(self) -> None:
        """Say that a collective has failed here, so that somebody may be dead."""
        self._store.set("suspicion", "1")

    def is_suspicious(self) -> bool:
        """Tell whether a collective has failed on any rank."""
        return self._store.check(["suspicion"])

    def introduce(self, rank: int) -> None:
        """Say where this rank runs."""
        self._store.set(f"place/{rank}", f"{os.getpid()} {socket.gethostname()}")

    def place(self, rank: int) -> tuple[str, int]:
        """Return the host and process of a rank."""
        if not self._store.check([f"place/{rank}"]):
            return "unknown host", 0
        pid, _, host = self._store.get(f"place/{rank}").decode().partition(" ")
        return host, int(pid)

    def beat(self, rank: int, value: bytes) -> None:
        """Say that a rank lives, by a value that changes, or that it has left."""
        self._store.set(f"beat/{rank}", value.decode())

    def beats(self, ranks: list[int]) -> dict[int, bytes]:
        """Return the last heartbeats; empty ones of ranks that were never heard."""
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
