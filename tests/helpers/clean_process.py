"""Run a function in a process that has nothing of this one: no threads, no open files, no locks.

A test process has threads (of pytest-xdist, Dask, tqdm), and what is forked of it may wait for ever
for a lock that one of them held. So tests never fork it. They let a fork server do it, which is a
fresh process with one thread, and has imported what takes long.
"""

import multiprocessing
import os
import traceback
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch", "lightning.pytorch"])


def start(function, *args: Any, **options: Any) -> ForkServerProcess:
    """Start a process that calls a function of a module."""
    process = context.Process(target=function, args=args, kwargs=options)
    process.start()
    return process


def call(function, *args: Any, seconds: float = 120, **options: Any) -> Any:
    """Return what a function of a module returns in a process of its own, which may fork others."""
    receiver, sender = context.Pipe(duplex=False)
    process = start(_answer, sender, function, args, options)
    sender.close()
    try:
        assert receiver.poll(seconds), f"{function.__qualname__} gave no answer"
        is_fine, answer = receiver.recv()
    except EOFError:
        process.join(30)
        raise AssertionError(f"{function.__qualname__} died: {process.exitcode}") from None
    finally:
        receiver.close()
        process.join(30)
        process.kill()  # if it hangs; a second signal changes nothing
        process.join()
    assert is_fine, answer
    return answer


def exit_code(function, *args: Any, seconds: float = 60, **options: Any) -> int | None:
    """Return how a process ended that calls a function: below 0 for a signal."""
    process = start(function, *args, **options)
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode


def _answer(sender: Connection, function, args, options) -> None:
    own = os.getpid()
    try:
        answer = True, function(*args, **options)
    except BaseException:
        answer = False, traceback.format_exc()
    if os.getpid() == own:  # and not what the function forked
        sender.send(answer)
