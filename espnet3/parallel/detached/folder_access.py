"""Handle run folders that cannot be read from this machine.

The folder is on a file server, as a rule, and others may move or remove it at any time. The run
does not depend on which user looks at it.
"""

import errno
import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from espnet3.errors import EspnetError, RunFolderError
from espnet3.io.atomic import in_the_way
from espnet3.schedulers import node_name

P = ParamSpec("P")
T = TypeVar("T")
StrPath = str | os.PathLike[str]

PATIENCE_SECONDS = 120.0
"""For how long a folder that cannot be read is tried again."""
GONE_SECONDS = 10.0
"""The same of one that is not there: what others did may be seen late."""
_PAUSE_SECONDS = 2.0
# A file server that is away, restarts or moves; EACCES while a ticket is renewed.
_MAY_PASS = {
    errno.EIO, errno.ESTALE, errno.EACCES, errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ETIMEDOUT,
    errno.ENOTCONN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ESHUTDOWN, errno.ENOLCK,
    errno.EREMOTEIO, errno.ENXIO, errno.ENODEV, errno.EPERM, errno.EMFILE, errno.ENFILE,
    errno.ENOMEM, errno.ELOOP,
}  # fmt: skip


@contextmanager
def reached(run_dir: StrPath) -> Iterator[None]:
    """Turn what a file system answers inside the block into an error that says what to do.

    Raises:
        RunFolderError: for what is about the folder; other errors are left as they are.
    """
    try:
        yield
    except OSError as error:
        if not _is_about(error, run_dir):
            raise
        raise RunFolderError(describe(error, run_dir)) from error


def reports_folder_errors(command: Callable[P, T]) -> Callable[P, T]:
    """Let a command about run folders end with what to do, whatever a file system answers."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except OSError as error:
            if not _is_of_files(error):
                raise
            raise RunFolderError(describe(error)) from error

    return run


def in_words(error: EspnetError | OSError, run_dir: StrPath) -> Exception:
    """Return an error about a run folder as a message to print instead of raising it."""
    if isinstance(error, OSError) and _is_of_files(error):
        return RunFolderError(describe(error, run_dir))
    return error


def _is_of_files(error: OSError) -> bool:
    """Tell it from ours, such as a TimeoutError, and from what the terminal answers."""
    return error.errno is not None and not isinstance(error, BrokenPipeError)


def _is_about(error: OSError, run_dir: StrPath) -> bool:
    if not _is_of_files(error):
        return False
    if not isinstance(error.filename, str | bytes | os.PathLike):
        # Calls on open files, such as fsync, raise errors without a name.
        return error.filename is None
    inside, place = os.path.abspath(os.fsdecode(error.filename)), os.path.abspath(run_dir)
    # In either direction: a missing parent is about the folder as well.
    return os.path.commonpath([inside, place]) in (inside, place)


def describe(error: OSError, run_dir: StrPath | None = None) -> str:
    """Say what a file system answered, where, and what to do about it."""
    named = error.filename if isinstance(error.filename, str | os.PathLike) else None
    place = os.fspath(run_dir if run_dir is not None else named or "a folder")
    reason = error.strerror or str(error)
    where = f" ({named})" if named is not None and os.fspath(named) != place else ""
    message = f"{place} cannot be used on {node_name()}: {reason}{where}."
    return f"{message} {_advice(error, place)}"


def _advice(error: OSError, place: str) -> str:
    quoted = shlex.quote(place)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        found = _in_the_way(place)
        if found:
            return f"{found[0].upper()}{found[1:]}. Name another folder, or put it back."
        if not os.path.lexists(place):
            return f"It was removed or renamed, or its file system is not mounted: ls -ld {quoted}"
        return "Something in it was removed while it was read. Try again."
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"You may not read it, or not any more; see whose it is: ls -ld {quoted}"
    if error.errno == errno.ESTALE:
        return "Its file server has removed or replaced it. Leave the folder (cd), and try again."
    # Limits of this machine; telling the user to look at the file server would mislead.
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return "That is about this machine, not about the run. Try again."
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return f"Make room, or have it mounted for writing: df -h {quoted}"
    return (
        f"Its disk or file server does not answer here: df {quoted}. Nothing of the run was "
        "changed; try again, or from another machine."
    )


def _in_the_way(place: str) -> str:
    try:
        return in_the_way(place)
    except OSError:
        return ""


def may_pass(error: BaseException) -> bool:
    """Tell whether an error, or the one that it was made of, may be over in a minute."""
    # Ours have no errno: it is in the error that they were raised from.
    cause = error.__cause__ if isinstance(error, EspnetError) else error
    is_ours = not isinstance(cause, OSError) or isinstance(cause, BrokenPipeError)
    return not is_ours and getattr(cause, "errno", None) in _MAY_PASS


class Patience:
    """Calls what may fail for a while, and says once that it waits.

    Args:
        run_dir: the folder that is looked at.
        tell: is given a line when it begins to wait.
        deadline: of `time.monotonic`, at which to give up in any case.
    """

    def __init__(
        self,
        run_dir: StrPath,
        tell: Callable[[str], object],
        deadline: float | None = None,
    ) -> None:
        self._run_dir, self._tell, self._deadline = run_dir, tell, deadline
        self._was_seen = False

    def call(self, look: Callable[[], T]) -> T:
        """Return what `look` returns, as soon as it does.

        Raises:
            RunFolderError: if the folder could not be read for `PATIENCE_SECONDS`.
        """
        since: float | None = None
        while True:
            try:
                with reached(self._run_dir):
                    found = look()
                self._was_seen = True
                return found
            except EspnetError as error:
                patience = self._patience(error)
                now = time.monotonic()
                if since is None and patience:
                    self._tell(f"{error} It is tried again for {patience:g} s.")
                since = now if since is None else since
                is_late = self._deadline is not None and now >= self._deadline
                if now - since >= patience or is_late:
                    raise
                time.sleep(min(_PAUSE_SECONDS, max(patience / 10, 0.01)))

    def _patience(self, error: EspnetError) -> float:
        if may_pass(error):
            return PATIENCE_SECONDS
        is_gone = isinstance(error.__cause__, FileNotFoundError)
        is_gone = is_gone or not os.path.lexists(self._run_dir)
        # One that was never seen is most likely a typo, and the user should not wait for it.
        return GONE_SECONDS if is_gone and self._was_seen else 0.0
