"""This process as one of the ranks: its number, and its connection to the others."""

import os
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from espnet3.trainer.ranks.rank_failure import Failure, lost_server
from espnet3.trainer.ranks.rank_store import LEFT, RankStore, connect, outlives_rank_0

_FAREWELL_SECONDS = 5.0
"""Longest wait for the others when a rank ends."""


class RankLink:
    """What a rank says to the others, and when it may go.

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
        """Learn where rank 0 is, for the day when it is gone; after all have connected."""
        if self.rank and self.is_in_group and self.store is not None:
            self._server = self.store.place(0)

    def usable_store(self) -> RankStore | None:
        """Return the connection if its server is there."""
        is_usable = self.store is not None and not self.hangs and not self.store.is_gone()
        return self.store if is_usable else None

    def beat(self, store: RankStore, value: int) -> None:
        """Say that this rank lives, unless it has left."""
        with self._beating:
            if not self.has_left:
                store.beat(self.rank, str(value).encode())

    def leave(self) -> None:
        """Say that this rank has ended as it should."""
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

    def share(self, failure: Failure) -> Failure:
        """Tell the others of a failure; return the first one, of which all are to speak."""
        store = self.usable_store()
        try:
            if store is not None:
                store.post(failure)
                return store.failure() or failure
        except RuntimeError:
            pass
        return failure

    def await_others(self, store: RankStore, n_exceptions: int) -> None:
        """Wait until the others have read of a failure."""
        n_others = self.world_size - n_exceptions
        wait_for(lambda: store.n_acknowledged() >= n_others)

    def lost_server(self, what: str) -> Failure:
        """Describe the loss of the store."""
        return lost_server(what, self._server, outlives_rank_0())


def wait_for(condition: Callable[[], bool], seconds: float = _FAREWELL_SECONDS) -> bool:
    """Wait for a condition; tell whether it came to hold."""
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds
