"""Start Python programs by forking a process that has torch, Lightning and Dask imported already.

Tests start thousands of `python run.py`, pool workers and DDP ranks, and most of their time went
into `import lightning` (5 s each). `install()` lets `subprocess.Popen` and multiprocessing's spawn
ask a **zygote** instead: a child process without threads, warm, that forks on request. The new
process is what it would have been: a child of the process that asked for it, with its own pid,
session, group, environment, folder, files, signals, `sys.argv`, `__main__` and command line, so
signals, exit codes and `wait` are the kernel's. It differs in that modules are imported before
they are asked for, see `_is_eligible` for what is started for real on that account, and in that
nothing waits for the disk nor draws the axes of pictures.

How the new process becomes a child of the one that asks, and not of the zygote: the zygote forks
twice, and the process in between ends. Orphans go to the nearest ancestor that is a subreaper,
which the asking process is for that moment. So each program gets a zygote of its own, forked
before it begins (one cannot fork it later: it has threads), for what it starts itself.

`ESPNET3_TESTS_COLD=1`, and the marker `cold` for one test, start and draw everything for real. With
`ESPNET3_TESTS_QUICK=1` a test that would start such a program is skipped.
"""

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import os
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

COLD = "ESPNET3_TESTS_COLD"
QUICK = "ESPNET3_TESTS_QUICK"
NAME = "espnet3-tests-zygote"
_PRELOADED = (
    "torch", "lightning.pytorch", "torchmetrics", "distributed", "distributed.cli.dask_worker",
    "hydra.utils", "omegaconf", "pydantic", "safetensors.torch", "soundfile", "rich.progress",
    "torch.utils.tensorboard", "multiprocessing.spawn", "matplotlib.backends.backend_agg",
    "PIL.PngImagePlugin",
)  # fmt: skip
_WORKER = "from espnet3.parallel.worker import main"
_SPAWN = "from multiprocessing.spawn import spawn_main"
_FORK_SERVER = "from multiprocessing.forkserver import main"
# Whatever names one of these is forked; the rest starts faster for real.
_HEAVY_CODE = re.compile(rf"espnet3|torch|lightning|dask|distributed|^tests\.|{_SPAWN}")
# Of those, the ones that import torch: not for `make quick`.
_NEEDS_TORCH = re.compile(
    rf"torch|lightning|run_recipe|dask|distributed|InferenceProvider|{_SPAWN}"
    r"|espnet3\.(trainer|systems|components)"
)
# What is imported and how much memory that takes is another thing after a fork.
_ABOUT_STARTING = re.compile(r"sys\.modules|rlimit|maxrss")
_BUT_FORK = "# may be forked"
# Read by a library when it is imported, or by the interpreter when it starts.
_READ_AT_START = re.compile(
    r"PYTHON(?!PATH$|UNBUFFERED$|DONTWRITEBYTECODE$)|DASK_|LC_|LANG|LD_|HOME$|XDG_|MPL|TZ$|KMP_"
    r"|TORCH_(?!NCCL)|PYTORCH_|NVML|HF_|TRANSFORMERS_|ESPNET3_(DELAYED_VIEW|UNREACHABLE_FILES)"
)
# What Dask's nanny and joblib leave in the process that imports them; no test is about these very
# values. Taken for a wish of the test, they made every later program of the run start for real.
_LEFT_BEHIND = {"PYTHONHASHSEED": "6640", "KMP_INIT_AT_FORK": "FALSE"}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_IGNORED_BY_ZYGOTES = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGTSTP, signal.SIGALRM,
)  # fmt: skip
_PATIENCE = 100.0  # seconds for its imports, on machines that others use
_PADDING = 16 * 1024  # bytes for the command line of what is forked
_PR_SET_PDEATHSIG, _PR_SET_MM, _PR_SET_MM_ARG_END, _PR_SET_CHILD_SUBREAPER = 1, 35, 9, 36
_libc = ctypes.CDLL(None, use_errno=True)

_zygote: "Zygote | None" = None
_is_paused = False
_loaded: dict[str, str] = {}
"""Top-level modules that zygotes have imported, and where they are."""


# --- The side that asks.


def install() -> None:
    """Let this process start warm ones; the zygote itself begins when one is first wanted."""
    if not os.environ.get(COLD) and sys.platform == "linux":
        _patch()
        _spare_the_disk()


def spare_pictures() -> None:
    """Leave the axes of learning curves blank: to draw them is most of the time of a training.

    As soon as something has imported matplotlib, unless everything is to start for real.
    """
    axes, layouts = map(sys.modules.get, ("matplotlib.axes", "matplotlib.layout_engine"))
    if axes and layouts and not os.environ.get(COLD):
        for owner, name in ((axes.Axes, "draw"), (layouts.ConstrainedLayoutEngine, "execute")):
            if not hasattr(getattr(owner, name), "is_spared"):
                setattr(owner, name, _if_paused(getattr(owner, name)))


def _if_paused(real: Any) -> Any:
    def method(self, given):
        if _is_paused:
            real(self, given)

    method.is_spared = True
    return method


def _spare_the_disk() -> None:
    """Do not wait for the disk: a run syncs each file of each shard, for 4 ms and more.

    That matters when the power fails, which no test lets happen.
    """

    def fsync(file: Any) -> None:
        os.fstat(file if isinstance(file, int) else file.fileno())  # it must be there

    os.fsync = fsync


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Start everything for real in the meantime."""
    global _is_paused
    before, _is_paused = _is_paused, True
    try:
        yield
    finally:
        _is_paused = before


def start() -> None:
    """Start the zygote, unless everything is to start for real."""
    global _zygote
    if _zygote is None and not os.environ.get(COLD) and not os.environ.get(QUICK):
        _zygote = Zygote.start()


def wait_until_ready() -> None:
    """Start the zygote, and wait until it has imported everything."""
    start()
    assert _zygote, "everything starts for real"
    assert _zygote.can_fork(), "there is no zygote"


def n_forked() -> int:
    """Return how many programs were forked for this process."""
    return _zygote.n_forked if _zygote else 0


class Zygote:
    """The connection to a process that forks for this one."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._session = os.getsid(0)
        self._is_ready = bool(_loaded)
        self._is_broken = False
        self._environ = dict(os.environ)
        self.n_forked = 0

    @classmethod
    def start(cls) -> "Zygote":
        """Start the first one, which imports while the tests go on."""
        ours, theirs = socket.socketpair()
        link = os.dup(theirs.fileno())
        # Each program has its own of these; see `_renew_state`.
        own = {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", *_THREADS}
        environ = {k: v for k, v in os.environ.items() if k not in own}
        environ["OPENBLAS_NUM_THREADS"] = "1"  # others would be threads of the zygote
        with paused():
            subprocess.Popen(
                [sys.executable, "-P", __file__, str(link), NAME.ljust(_PADDING, "-")],
                pass_fds=[link], env=environ, cwd="/",
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        os.close(link)
        theirs.close()
        return cls(ours)

    def can_fork(self) -> bool:
        """Tell whether it serves this very process; wait until it has imported everything."""
        is_own = os.getpid() == self._owner and os.getsid(0) == self._session
        if not is_own or self._is_broken:
            return False
        if not self._is_ready:
            with self._lock:
                self._wait()
        return self._is_ready

    def _wait(self) -> None:
        """Wait for its imports: they take no longer than those of the program would."""
        try:
            if select.select([self._link], [], [], _PATIENCE)[0]:
                _loaded.update(pickle.loads(_receive(self._link)[0]))
                self._is_ready = True
        except (EOFError, OSError):  # it died: for real, then
            self._is_broken = True

    def is_like(self, environ: dict[str, str]) -> bool:
        """Tell whether libraries would read the same from an environment when imported."""
        return not any(
            _READ_AT_START.match(name)
            and self._environ.get(name) != environ.get(name)
            and environ.get(name, "") != _LEFT_BEHIND.get(name)
            for name in {*self._environ, *environ}
        )

    def fork(self, request: dict[str, Any], fds: list[int]) -> int:
        """Let a child of this process run a program; return its pid when it is about to begin."""
        start, its_start = socket.socketpair()
        with self._lock, start:
            try:
                with its_start:
                    pid = self._ask(request, [its_start.fileno(), *fds])
                start.recv(1)  # it has its session, its files and its folder
                with contextlib.suppress(OSError):  # unless it was killed
                    start.send(b"g")
            except BaseException:  # also Ctrl-C: who knows which answer comes next?
                self._is_broken = True
                raise
        self.n_forked += 1
        return pid

    def _ask(self, request: dict[str, Any], fds: list[int]) -> int:
        before, begin = _children(), time.clock_gettime(time.CLOCK_BOOTTIME)
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            _send(self._link, request, fds)
            pid = pickle.loads(_receive(self._link)[0])
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for stranger in _children() - before - {pid}:
            if _started(stranger) < begin:
                # Its parent ended in this very moment. No other process would reap it.
                threading.Thread(
                    target=_reap, args=(stranger,), name="warm-reaper", daemon=True
                ).start()
        return pid


def _children() -> set[int]:
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found.update(map(int, Path(f"/proc/self/task/{task}/children").read_text().split()))
    return found


def _started(pid: int) -> float:
    """Return when a process was started, in seconds since the machine was."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("inf")
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _reap(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.waitpid(pid, 0)


def _patch() -> None:
    real_execute, real_spawn = subprocess.Popen._execute_child, util.spawnv_passfds
    names = real_execute.__code__.co_varnames[1 : real_execute.__code__.co_argcount]

    def execute_child(self, *values):
        call = dict(zip(names, values, strict=True))
        pid = _start_popen(call)
        if pid is None:
            real_execute(self, *values)
            return
        self.pid, self._child_created = pid, True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(call[name] for name in pipes))

    def spawn(path, args, passfds):
        words = list(map(os.fsdecode, args))
        pid = None
        line = " ".join(words)
        is_known = _SPAWN in line or _FORK_SERVER in line
        if is_known and _command(words) and _is_eligible(words, os.environ, None):
            pid = _start(words, None, None, [0, 1, 2], list(map(int, passfds)), -1, False)
        return real_spawn(path, args, passfds) if pid is None else pid

    subprocess.Popen._execute_child = execute_child
    util.spawnv_passfds = spawn


def _start_popen(call: dict[str, Any]) -> int | None:
    plain = (
        not call["shell"] and call["preexec_fn"] is None and call["umask"] < 0
        and call["close_fds"] and call["uid"] is None and call["gid"] is None
        and call["gids"] is None and isinstance(call["args"], list | tuple)
    )  # fmt: skip
    if not plain:
        return None
    words = [os.fsdecode(word) for word in call["args"]]
    if call["executable"] not in (None, words[0]) or not _command(words):
        return None
    environ = os.environ if call["env"] is None else call["env"]
    environ = {os.fsdecode(k): os.fsdecode(v) for k, v in environ.items()}
    cwd = None if call["cwd"] is None else os.fsdecode(call["cwd"])
    if not _is_eligible(words, environ, cwd):
        return None
    given = (call["p2cread"], call["c2pwrite"], call["errwrite"])
    stdio = [fd if own == -1 else own for fd, own in enumerate(given)]
    group = call.get("process_group", -1)
    return _start(
        words, environ, cwd, stdio, list(call["pass_fds"]), group, call["start_new_session"]
    )


def _start(words, environ, cwd, stdio, passed, group, new_session) -> int | None:
    assert _zygote is not None
    status = Path("/proc/self/status").read_text()
    request = {
        "words": words,
        "environ": dict(os.environ if environ is None else environ),
        "cwd": os.path.join(os.getcwd(), cwd or ""),
        "passed": passed,
        "group": os.getpgid(0) if group < 0 else group,
        "new_session": new_session,
        "umask": int(status.partition("Umask:")[2].split()[0], 8),
        "mask": set(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "ignored": {n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN},
    }
    try:
        return _zygote.fork(request, [*stdio, *passed])
    except (OSError, EOFError):
        return None


def _is_eligible(words: list[str], environ: Any, cwd: str | None) -> bool:
    """Tell whether a program may be forked: would it be the same, and is it worth it?"""
    kind, rest, _ = _command(words) or ("", [""], "")
    text = _text(kind, rest, cwd)
    if os.environ.get(QUICK):
        _skip_if_slow(text)
        return False
    if not _is_heavy(text):
        return False
    if _is_paused or environ.get(COLD):
        return False
    start()
    if _zygote is None or not _zygote.can_fork() or not _zygote.is_like(environ):
        return False
    try:
        folder = os.path.join(os.getcwd(), cwd or "")
        places = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        first = Path(folder, rest[0]).parent if kind == "script" else folder
        return not any(_shadows(Path(folder, place)) for place in [first, *places])
    except OSError:
        return False


def _command(words: list[str]) -> tuple[str, list[str], str] | None:
    """Return the kind of program, its words, and the options before it; None if not ours."""
    bins = os.path.dirname(sys.executable)
    if words[0] == os.path.join(bins, "espnet3"):
        return "script", words, ""
    if words[0] != sys.executable:
        return None
    options = ""
    for at, word in enumerate(words[1:], 1):
        if word in ("-P", "-u"):
            options += word[1]
        elif word in ("-m", "-c") and len(words) > at + 1:
            return word[1], words[at + 1 :], options
        elif not word.startswith("-"):
            return "script", words[at:], options
        else:
            return None
    return None


def _text(kind: str, words: list[str], cwd: str | None) -> str:
    """Return what tells which modules a program imports: its text, or its name for `-m`."""
    if kind in ("c", "m"):
        return words[0]
    try:
        return Path(cwd or "", words[0]).read_text()
    except (OSError, UnicodeError):
        return ""


def _is_heavy(text: str) -> bool:
    if _ABOUT_STARTING.search(text) and _BUT_FORK not in text:
        return False
    return bool(_HEAVY_CODE.search(text))


def _skip_if_slow(text: str) -> None:
    if _NEEDS_TORCH.search(text):
        import pytest

        pytest.skip("it starts a process that imports torch: not for `make quick`")


def _shadows(folder: Path) -> bool:
    """Tell whether a folder on the path has another module of a name that is imported already."""
    for entry in folder.iterdir():
        name = entry.name.removesuffix(".py")
        if name in ("sitecustomize", "usercustomize"):
            return True
        if name in _loaded and (entry.is_dir() or entry.suffix == ".py"):
            there = (entry / "__init__.py") if entry.is_dir() else entry
            if there.exists() and not os.path.samefile(there, _loaded[name]):
                return True
    return False


# --- The zygote.


def main() -> None:
    """Import what takes long, serve until the other side is gone; run in what is forked."""
    link = socket.socket(fileno=int(sys.argv[1]))
    sys.modules[NAME] = sys.modules["__main__"]
    for name in _PRELOADED:
        importlib.import_module(name)
    _preload_own()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and "." not in name and name != "__main__":
            _loaded[name] = file
    gc.collect()
    gc.freeze()
    _patch()
    _spare_the_disk()
    spare_pictures()
    # Zygotes ignore what is sent to their group.
    for number in _IGNORED_BY_ZYGOTES:
        signal.signal(number, signal.SIG_IGN)
    _send(link, _loaded, [])
    _run(_serve(link))


def _preload_own() -> None:
    import espnet3

    folder = Path(espnet3.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        if "templates" in file.parts or file.stem.startswith("__"):
            continue
        name = ".".join(("espnet3", *file.relative_to(folder).with_suffix("").parts))
        with contextlib.suppress(ImportError):  # of an optional package
            importlib.import_module(name)


def _serve(link: socket.socket) -> dict[str, Any]:
    """Fork on request; return, in what was forked, what it is to run."""
    while True:
        try:
            data, fds = _receive(link)
        except (EOFError, OSError):
            os._exit(0)
        reader, writer = os.pipe()
        middle = os.fork()
        if middle:
            os.close(writer)
            pid = os.read(reader, 16)
            os.waitpid(middle, 0)  # from here on the child is the other side's
            os.close(reader)
            for fd in fds:
                os.close(fd)
            with contextlib.suppress(OSError):
                _send(link, int(pid), [])
            continue
        os.close(reader)
        if child := os.fork():
            os.write(writer, b"%d" % child)
            os._exit(0)
        os.close(writer)
        link.close()
        return _prepare(pickle.loads(data), fds)


def _prepare(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Become what was asked for, up to the moment before its first line."""
    global _zygote
    fds = [_move_up(fd) for fd in fds]
    if request["new_session"]:
        os.setsid()
    elif os.getpgid(0) != request["group"]:
        os.setpgid(0, request["group"])
    _zygote = None
    if _WORKER not in " ".join(request["words"][:3]):
        ours, theirs = socket.socketpair()
        own = os.getpid()
        if not os.fork():
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != own:
                os._exit(0)
            for fd in (*fds, ours.detach()):
                os.close(fd)
            return _serve(theirs)
        theirs.close()
        ours = socket.socket(fileno=_move_up(ours.detach()))
    start, *files = fds
    for number, fd in zip([0, 1, 2, *request["passed"]], files, strict=True):
        os.dup2(fd, number, inheritable=True)
        os.close(fd)
    for number in request["passed"]:
        os.set_inheritable(number, False)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environ"])
    _set_command_line(request["words"])
    _set_signals(request)
    if _WORKER not in " ".join(request["words"][:3]):
        _zygote = Zygote(ours)
    os.write(start, b"r")
    if os.read(start, 1) != b"g":  # the other side has given up
        os._exit(1)
    os.close(start)
    return request


def _move_up(fd: int) -> int:
    """Move a file out of the way of those numbers that programs know."""
    import fcntl

    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 300)
    os.close(fd)
    return moved


def _set_signals(request: dict[str, Any]) -> None:
    ignored = request["ignored"] | {signal.SIGPIPE, signal.SIGXFSZ}  # as Python does at its start
    for number in {*_IGNORED_BY_ZYGOTES, *ignored}:
        if number in ignored:
            handler: Any = signal.SIG_IGN
        else:
            handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])


def _set_command_line(words: list[str]) -> None:
    """Write it where the kernel has it for `/proc/PID/cmdline` and `ps`."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    if not 0 < begin < end:
        return
    line = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, line, len(line))
    # Without the rest of zeros, where one may.
    _libc.prctl(_PR_SET_MM, _PR_SET_MM_ARG_END, ctypes.c_ulong(begin + len(line)), 0, 0)


def _run(request: dict[str, Any]) -> None:
    """Run a program as Python does, in this process, whose end is the program's."""
    words = request["words"]
    kind, rest, options = _command(words) or ("", [""], "")
    environ = request["environ"]
    sys.orig_argv[:] = words
    sys.dont_write_bytecode = bool(environ.get("PYTHONDONTWRITEBYTECODE"))
    places = [os.path.abspath(p) for p in environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:] = [*places, *(entry for entry in sys.path if entry not in places)]
    _renew_state(environ, is_unbuffered="u" in options or bool(environ.get("PYTHONUNBUFFERED")))
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    first = {"m": os.getcwd(), "c": ""}.get(kind, os.path.dirname(os.path.realpath(rest[0])))
    if "P" not in options:
        sys.path.insert(0, first)
    try:
        if kind == "m":
            import runpy

            sys.argv[:] = ["-m", *rest[1:]]
            runpy._run_module_as_main(rest[0])
        elif kind == "c":
            sys.argv[:] = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), main.__dict__)
        else:
            from importlib.machinery import SourceFileLoader

            sys.argv[:] = rest
            file = os.path.abspath(rest[0])
            main.__file__ = file
            main.__loader__ = SourceFileLoader("__main__", file)
            source = Path(file).read_bytes()
            exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)
    except BaseException as error:
        _end(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
    _end(None)


def _end(error: BaseException | None) -> NoReturn:
    """End as the interpreter does, but for taking its modules apart, which lasts half a second."""
    code: Any = 0
    if isinstance(error, SystemExit):
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    # What it does itself: joins threads, calls what was registered, writes what is buffered.
    with contextlib.suppress(BaseException):
        threading._shutdown()
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError, AttributeError):
        code = code or 120
    if type(error) is KeyboardInterrupt:  # not one that is a SystemExit as well
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


def _renew_state(environ: dict[str, str], *, is_unbuffered: bool) -> None:
    """Undo what a library or the interpreter took from the zygote's surroundings."""
    import numpy
    import torch

    # Those of the zygote know that they were files, not pipes, and how they were buffered.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        buffering = 0 if number and is_unbuffered else -1
        stream = io.TextIOWrapper(
            open(number, "wb" if number else "rb", buffering=buffering, closefd=False),  # noqa: SIM115
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=number == 2 or os.isatty(number),
            write_through=bool(number) and is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    tempfile.tempdir = None
    numpy.random.seed()
    for variable in _THREADS:
        if environ.get(variable, "").isdecimal():
            torch.set_num_threads(int(environ[variable]))
            break
    time.tzset()


# --- Messages.


def _send(link: socket.socket, message: Any, fds: list[int]) -> None:
    data = pickle.dumps(message)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    link.sendmsg([len(data).to_bytes(8, "little")], ancillary)
    link.sendall(data)


def _receive(link: socket.socket) -> tuple[bytes, list[int]]:
    fds = array.array("i")
    header, ancillary, _, _ = link.recvmsg(8, socket.CMSG_LEN(64 * fds.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    size, data = int.from_bytes(header, "little"), b""
    while len(header) == 8 and len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            break
        data += part
    if not header or len(data) < size:
        raise EOFError
    return data, list(fds)


if __name__ == "__main__":
    main()
