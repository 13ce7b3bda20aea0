"""Detect a dead rank and end the others within a minute, with its traceback printed last.

Without it the others wait in a collective, silently, for half an hour or forever.
"""

import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import NoReturn

import lightning.pytorch as pl
from typing_extensions import override

from espnet3.config.sources import add_place
from espnet3.errors import EspnetError, TrainingError
from espnet3.trainer.lightning_internals import take_over_children
from espnet3.trainer.ranks.preemption import TrainingStopped
from espnet3.trainer.ranks.rank_link import (
    RankFailure,
    RankLink,
    RankStore,
    SilenceMeter,
    advice,
    silence_of,
    wait_for,
)

logger = logging.getLogger(__name__)

_AFTER_ERROR_SECONDS = 10.0
"""Silence that is enough once a collective has failed."""
_CLEAN_UP_SECONDS = 20.0
"""For a rank that has failed itself to end by itself."""

_PARENT = "ESPNET3_RANK_PARENT"
"""Process that is to be the parent of the ranks on its machine; theirs from their first moment."""
_TEXT_LIMIT = 20_000
"""Characters of a traceback that are kept, its end rather than its beginning."""


class RankWatch(pl.Callback):
    """Watches the ranks for failures: a context around `fit`, and its first callback.

    Each rank has a heartbeat of a second. Rank 0 watches all, all watch rank 0. A rank that raises
    publishes its traceback first. The others, which may hang in a collective, are ended
    from a thread; it needs the GIL only now and then, so a step may take as long as it likes.

    Args:
        silence_seconds: after which a rank is given up.
        tick_seconds: between two looks.

    Example:
        with RankWatch() as watch:  # around the loading of the data as well
            trainer = pl.Trainer(callbacks=[watch, ...], ...)
            trainer.fit(...)
    """

    def __init__(self, silence_seconds: float = 45.0, tick_seconds: float = 1.0) -> None:
        self.silence_seconds = silence_seconds
        self.tick_seconds = tick_seconds
        self._link = RankLink()
        self._reported: BaseException | None = None
        self._closing = threading.Event()
        self._ending = threading.Lock()
        self._verdicts: queue.SimpleQueue[RankFailure] = queue.SimpleQueue()
        self._n_looks = 0
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "RankWatch":
        self._processes = LaunchedProcesses()
        # Two, because a call to the store hangs where the machine of its server is gone.
        for work in (self._watch_processes, self._watch_ranks):
            self._threads.append(threading.Thread(target=work, name="rank-watch", daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self.report(error)
            if self._reported is None:
                self._link.leave()
        finally:
            self._closing.set()
            for thread in self._threads:
                thread.join(2 * self.tick_seconds)  # one may hang in the store
            if self._link.store is not None:
                self._link.store.close()
            self._processes.close()

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if trainer.world_size == 1:
            self._closing.set()
        else:
            self._link.connect()

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._link.meet()

    @override
    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self.report(exception)

    def report(self, error: BaseException) -> None:
        """Publish an error of this rank, once.

        Raises:
            TrainingError: on rank 0, if the error only follows from the end of another rank; it
                reports that one. Other ranks then end here, with a line of log.
        """
        if isinstance(error, TrainingStopped) or self._reported or self._closing.is_set():
            return
        self._reported = error
        add_place(error)  # the other ranks print it before the border of the stage does
        self._link.connect()
        try:
            if is_communication_error(error):
                self._await_verdict()
            if store := self._link.usable_store():
                self._publish(store, error)
        except RuntimeError:  # the store is gone; what is left is the error itself
            logger.debug("The other ranks could not be notified.", exc_info=True)
        finally:
            self._processes.kill_children()

    def _await_verdict(self) -> None:
        """End here if another rank has failed, or is found to be dead in the next seconds."""
        store = self._link.usable_store()
        if store is not None:
            with suppress(RuntimeError):  # its server may be what has gone, which is a verdict too
                store.suspect()
        elif self._link.store is None:
            return
        patience = min(_AFTER_ERROR_SECONDS, self.silence_seconds) + 5 * self.tick_seconds
        try:
            failure = self._verdicts.get(timeout=patience)
        except queue.Empty:
            return
        if self._link.rank != 0:
            self._end_now(failure)
        if store is not None:
            self._link.await_others(store, 2)  # this rank, and the dead one
            store.acknowledge()
        raise TrainingError(failure.in_full()) from None

    def _publish(self, store: RankStore, error: BaseException) -> None:
        tell_torchrun(error)
        failure = failure_of(error, self._link.rank)
        if not store.post(failure):
            return  # another was first, and the rest know of it
        _flush()
        self._link.await_others(store, 1)
        # Rank 0 prints it; another copy would come after the prompt of the shell.
        if self._processes.is_child and wait_for(self._processes.has_lost_parent):
            os._exit(failure.exit_code)

    def _watch_processes(self) -> None:
        """Look at what needs no store, and whether the other thread hangs in it."""
        meter = SilenceMeter(2 * self.tick_seconds)
        while not self._closing.wait(self.tick_seconds):
            if self._processes.has_lost_parent():
                self._end(self._processes.orphaned(self._link.rank))
            failure = self._processes.dead_child()
            if failure and not self._link.saw_leave(failure.rank):
                self._end(failure)
            if self._link.store is not None:
                # The other thread counts its looks; the count stands still while the store hangs.
                meter.update({0: str(self._n_looks).encode()})
                seconds = meter.longest()[1]
                if seconds > self.silence_seconds:
                    self._link.hangs = True
                    self._end(self._link.lost_server(f"has not answered for {seconds:.0f} s."))

    def _watch_ranks(self) -> None:
        meter = SilenceMeter(2 * self.tick_seconds)
        while not self._closing.is_set():
            try:
                store = self._link.connect()
                if store is None:
                    self._closing.wait(self.tick_seconds)
                elif store.is_gone(self.tick_seconds):
                    self._end(self._link.lost_server("has closed its connections."))
                else:
                    self._look(store, meter)
                    self._n_looks += 1
            except (RuntimeError, OSError):  # closed between two lines, by us or by the server
                self._end(self._link.lost_server("has closed its connections."))

    def _look(self, store: RankStore, meter: SilenceMeter) -> None:
        if failure := store.failure():
            self._end(failure)
        if not self._link.is_in_group:
            return
        self._link.beat(store, self._n_looks)
        beats = self._link.others(store)
        if self._link.rank and not beats:  # rank 0 has left, and waits for this answer
            self._link.leave()
            self._closing.set()
            return
        meter.update(beats)
        rank, seconds = meter.longest()
        is_over = seconds > self.silence_seconds
        if is_over or (seconds > _AFTER_ERROR_SECONDS and store.is_suspicious()):
            self._end(silence_of(rank, store.place(rank), seconds))

    def _end(self, failure: RankFailure) -> None:
        """End this process because of another, from one of the threads."""
        if self._closing.is_set() or self._link.has_left or failure.is_mine:
            # The caller calls again at once, and would spin.
            self._closing.wait(self.tick_seconds)
            return
        failure = self._link.share(failure)
        if self._reported is not None:
            # An error of its own, or one that the other's end has caused, is on its way out.
            self._verdicts.put(failure)
            if self._closing.wait(_CLEAN_UP_SECONDS):
                return
        self._end_now(failure)

    def _end_now(self, failure: RankFailure) -> NoReturn:
        self._ending.acquire()  # never released: only one thread reports
        rank = self._link.rank
        # If rank 0 died without a message, rank 1 reports in its place.
        is_speaker = rank == 0 or (rank == 1 and failure.rank == 0 and not failure.is_own)
        store = self._link.usable_store()
        try:
            if is_speaker and store is not None:
                self._link.await_others(store, 2)
            logger.error("%s", failure.in_full() if is_speaker else failure.in_a_line(rank))
            _flush()
            if store is not None:
                store.acknowledge()
                time.sleep(0.2)  # the store may be in this process, and the others still read
        except RuntimeError:
            pass
        finally:
            self._processes.kill_children()
            # `sys.exit` ends only its own thread, and the main one may hang in a collective.
            os._exit(failure.exit_code)


def _flush() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


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


def is_communication_error(error: BaseException) -> bool:
    """Tell whether an error is one that other ranks get when a rank goes."""
    return any(_is_from_a_collective(one) for one in _chain(error))


def _is_from_a_collective(error: BaseException) -> bool:
    from torch.distributed import DistError

    text = str(error)
    # gloo and NCCL raise a plain RuntimeError in many places.
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
    # The first error is the cause, so a later one does not replace it.
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
    """Looks after the parent and the children of a rank.

    Lightning's `ddp` starts rank 0, which starts the others by `Popen`. If one fails, a thread of
    Lightning kills all, rank 0 included, with SIGKILL, and no message of ours would get out. So
    the children are taken over here.
    """

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
        # An orphan is adopted by another process, such as init.
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
        self._children = take_over_children() or self._children
        for number, child in enumerate(self._children, start=1):
            # Truthy only for a failure: 0 is a good end, and None still runs.
            if child.poll():
                # Each node has equally many ranks: the children, and the one that started them.
                first = int(self._environ.get("NODE_RANK") or 0) * (len(self._children) + 1)
                return _death(first + number, child)
        return None

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
