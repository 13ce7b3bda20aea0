"""Let a process see late what others put into a folder, as a network file system may.

For `seconds`, names that another watched process made or renamed into the folder are not there for
`stat`, `open`, `listdir` and `scandir`; `link`, `rename`, `mkdir` and an exclusive `open` see them,
as only the server can decide those. That is stricter than NFS, where one's own change of a folder
brings its list up to date.

Only processes that installed the view are watched: see `environment_of`. Where bindfs can be had,
`on_machine` does the same for any program, through the kernel's own caches.
"""

import builtins
import errno
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

VARIABLE = "ESPNET3_DELAYED_VIEW"
_ROOT = Path(__file__).parents[2]
_MAX_AGE = 0.01  # seconds for which what the others noted is not read again


def environment_of(folder: Path, seconds: float, scratch: Path) -> dict[str, str]:
    """Return the variables with which any Python that is started sees `folder` late."""
    (scratch / "log").mkdir(parents=True, exist_ok=True)
    start = "from tests.helpers.delayed_view import install_if_asked\ninstall_if_asked()\n"
    (scratch / "sitecustomize.py").write_text(start)
    settings = {"folder": str(folder), "seconds": seconds, "log": str(scratch / "log")}
    return {VARIABLE: json.dumps(settings), "PYTHONPATH": f"{scratch}{os.pathsep}{_ROOT}"}


def install_if_asked() -> None:
    """Install the view that the environment asks for."""
    if settings := os.environ.get(VARIABLE):
        _install(View(**json.loads(settings)))


def can_mount() -> bool:
    """Tell whether `on_machine` works here: as root, with bindfs installed."""
    return os.geteuid() == 0 and shutil.which("bindfs") is not None and os.path.exists("/dev/fuse")


def on_machine(folder: Path, truth: Path, seconds: float, command: list[str]) -> list[str]:
    """Return a command that runs another as if on a machine of its own.

    It has its own processes, and its own mount of `truth` at `folder`, whose names and attributes,
    there or not, its kernel believes for `seconds`. All ends with the command.
    """
    times = ("attr", "ac_attr", "entry", "negative")
    options = ",".join(f"{name}_timeout={seconds}" for name in times)
    script = 'bindfs -o "$1" "$2" "$3" && shift 3 && exec "$@"'
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*unshare, "sh", "-c", script, "sh", options, str(truth), str(folder), *command]


class View:
    """What this process may see, and the notes by which others know what it made."""

    def __init__(self, folder: str, seconds: float, log: str) -> None:
        self.folder, self.seconds, self._log = folder, seconds, log
        self._notes: dict[str, float] = {}
        self._offsets: dict[str, int] = {}
        self._read = 0.0
        self.known: set[str] = set()

    def note(self, path: str) -> None:
        line = json.dumps([time.time(), path]) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = _real_os_open(os.path.join(self._log, str(os.getpid())), flags, 0o644)
        os.write(descriptor, line.encode())
        os.close(descriptor)

    def is_hidden(self, path: str) -> bool:
        self._read_notes()
        limit = time.time() - self.seconds
        while len(path) > len(self.folder):
            if self._notes.get(path, 0.0) > limit and path not in self.known:
                return True
            path = os.path.dirname(path)
        return False

    def _read_notes(self) -> None:
        if time.monotonic() - self._read < _MAX_AGE:
            return
        for name in _real_listdir(self._log):
            if name != str(os.getpid()):
                self._read_notes_of(name)
        self._read = time.monotonic()

    def _read_notes_of(self, name: str) -> None:
        with _real_open(os.path.join(self._log, name), "rb") as file:
            file.seek(self._offsets.get(name, 0))
            for line in file:
                if line.endswith(b"\n"):
                    seen, path = json.loads(line)
                    self._notes[path] = seen
                    self._offsets[name] = self._offsets.get(name, 0) + len(line)

    def path_in_folder(self, path: Any) -> str | None:
        """Return an absolute path if it is below the folder; None for one that is not watched."""
        if isinstance(path, int):
            return None
        full = os.path.abspath(os.fsdecode(path))
        return full if full.startswith(self.folder + os.sep) else None


_real_open, _real_os_open = builtins.open, os.open
_real_listdir, _real_scandir, _real_lstat = os.listdir, os.scandir, os.lstat


def _install(view: View) -> None:
    for name in ("stat", "lstat", "readlink"):
        setattr(os, name, _looking(view, getattr(os, name)))
    for name in ("mkdir", "link", "rename", "replace"):
        setattr(os, name, _making(view, getattr(os, name), is_to=name != "mkdir"))
    os.listdir = lambda path=".": [n for n in _real_listdir(path) if _shows(view, path, n)]
    os.scandir = lambda path=".": _Entries(view, path)
    os.open = _opening(view, _real_os_open, lambda flags, *_: bool(flags & os.O_CREAT))
    opened = _opening(view, _real_open, lambda mode="r", *_: not mode.startswith("r"))
    builtins.open = io.open = opened


def _shows(view: View, path: Any, name: str) -> bool:
    full = None if isinstance(path, int) else view.path_in_folder(os.path.join(path, name))
    return full is None or not view.is_hidden(full)


def _refuse_hidden(view: View, path: Any) -> None:
    full = view.path_in_folder(path)
    if full is not None and view.is_hidden(full):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _looking(view: View, real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def look(path: Any, *args: Any, **values: Any) -> Any:
        if values.get("dir_fd") is None:
            _refuse_hidden(view, path)
        return real(path, *args, **values)

    return look


def _making(view: View, real: Callable[..., Any], *, is_to: bool) -> Callable[..., Any]:
    @wraps(real)
    def make(*args: Any, **values: Any) -> Any:
        full = view.path_in_folder(args[1] if is_to else args[0])
        if full is not None:  # the server decides about the name, but this node finds the folder
            _refuse_hidden(view, os.path.dirname(full))
        is_new = full is not None and not _exists(full)
        try:
            result = real(*args, **values)
        except FileExistsError:
            if not is_to:  # a folder that one may not make is known from now on, also to NFS
                view.known.add(str(full))
            raise
        if is_new:
            view.note(str(full))
        return result

    return make


def _opening(
    view: View, real: Callable[..., Any], makes: Callable[..., bool]
) -> Callable[..., Any]:
    @wraps(real)
    def open_it(path: Any, *args: Any, **values: Any) -> Any:
        if values.get("dir_fd") is not None:
            return real(path, *args, **values)
        if not makes(*args, **{k: v for k, v in values.items() if k == "mode"}):
            _refuse_hidden(view, path)
            return real(path, *args, **values)
        full = view.path_in_folder(path)
        is_new = full is not None and not _exists(full)
        result = real(path, *args, **values)
        if is_new:
            view.note(str(full))
        return result

    return open_it


def _exists(path: str) -> bool:
    try:
        _real_lstat(path)
    except OSError:
        return False
    return True


class _Entries:
    """What `os.scandir` returns, without the hidden entries."""

    def __init__(self, view: View, path: Any) -> None:
        self._view, self._path = view, path
        if not isinstance(path, int):
            _refuse_hidden(view, path)
        self._real = _real_scandir(path)

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        return (entry for entry in self._real if _shows(self._view, self._path, entry.name))

    def __next__(self) -> os.DirEntry[str]:
        return next(iter(self))

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._real.close()
