"""What all tests share: nothing of a test may leak into the next one."""

import functools
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

from espnet3.parallel import parallel
from tests.helpers import fork_server
from tests.helpers.leaks import Watch
from tests.helpers.waiting import wait_until

_START = os.getcwd()

# Where it is set, each process that a test starts would compile torch and Lightning again. The
# Makefile takes it away; this is for pytest that is started by hand.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A limit on the time of one example fails where the machine has other things to do. The random
# search is for `make soak`: what it finds becomes an @example, and is then found each time.
_PATIENT: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile(
    "repeatable", max_examples=30, derandomize=True, database=None, **_PATIENT
)
settings.register_profile("soak", max_examples=2000, print_blob=True, **_PATIENT)
settings.load_profile("repeatable")

# A shell lets what it starts in the background ignore Ctrl-C, and so would all that tests start.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_fit_for_tests(folder: Path) -> bool:
    """Tell whether a folder is in memory, large enough, and lets programs run from it."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        free = shutil.disk_usage(folder).free
    except OSError:
        return False
    options = {
        kind: words.split(",") for _, place, kind, words, *_ in mounts if place == str(folder)
    }
    allowed = "noexec" not in options.get("tmpfs", ["noexec"])
    return allowed and free > 4 * 2**30 and os.access(folder, os.W_OK)


# Tests make 60,000 files and folders, which takes a disk minutes. A real scheduler's nodes, in
# namespaces of their own, are left on the disk.
if _is_fit_for_tests(Path("/dev/shm")) and not os.environ.get("ESPNET3_CLUSTERS"):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

_watch = Watch()
_MANY = 500
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Keep what is remembered of files away from the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESPNET3_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _no_leaks(request):
    """Reset the active config and the folder; fail on what outlives its test, by name."""
    _watch.begin()
    _use_one_thread()
    fork_server.spare_pictures()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    with fork_server.paused() if request.node.get_closest_marker("cold") else nullcontext():
        yield
    _restore(handlers)
    _forget_warnings()
    os.chdir(_START)  # a recipe that runs in this process enters its folder
    parallel._active = None
    if pools := sys.modules.get("espnet3.parallel.open_pool"):
        assert pools.enclosing_client() is None
    if espeak := sys.modules.get("espnet3.components.data.espeak"):
        espeak.stop_speaking()
    # What the daemons of a real scheduler start is not the test's.
    leaked = [] if "cluster" in request.node.path.parts else _watch.leaked()
    forks = list(_watch.forks)
    if leaked:
        _watch.begin()  # named once, and not again by the next test
    _watch.forks.clear()
    assert not leaked, f"{request.node.nodeid} left behind: {'; '.join(leaked)}"
    assert not forks, (
        f"{request.node.nodeid} forked the test process, which has threads; use "
        f"tests/helpers/clean_process.py. It was here: {'; '.join(forks)}"
    )


def _use_one_thread() -> None:
    """Let torch compute on one thread: two wait for each other where tests share two cores."""
    if (torch := sys.modules.get("torch")) and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


class _Adoption:
    """What fixtures of a module or session start is theirs to end.

    A plugin, since pytest asks the hooks of this file only about fixtures of what is beside it,
    which those of the session are not.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        result = yield
        if fixturedef.scope != "function":
            _watch.adopt(fixturedef.scope)
        return result


def pytest_configure(config):
    config.pluginmanager.register(_Adoption())
    fork_server.install()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    # Millions of objects of torch, Lightning and 8,000 tests stay as long as the process. A full
    # collection of garbage would walk through them for half a second, again and again.
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_collection_modifyitems(items):
    # Each process gets a stretch of the list: files in an order that mixes those that wait, those
    # that compute and those that start many processes.
    items.sort(key=lambda item: zlib.crc32(item.nodeid.partition("::")[0].encode()))


def pytest_collection_finish(session):
    if len(session.items) > _MANY:
        fork_server.start()  # in the background; by the time that one is wanted, it is ready


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    # The examples of the package are tests; the search in tests themselves only takes time.
    return [found for found in (yield) if not isinstance(found, DoctestModule)]


def _restore(handlers: dict[int, Any]) -> None:
    """Undo what a test did to signals.

    A training that was stopped leaves some of them ignored until its process ends, and whatever
    the next test starts would ignore them as well: a pool that is terminated never ends.
    """
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _forget_warnings() -> None:
    """Let what is told once in a process be told again: another test may wait for it."""
    for tells in _told_once(len(sys.modules)):
        tells.cache_clear()


@functools.lru_cache(maxsize=1)
def _told_once(n_modules: int) -> list[Any]:
    """Return what warns once; the search takes a millisecond, so not for each test."""
    own = [vars(module) for name, module in sys.modules.items() if name.startswith("espnet3.")]
    found = [names.get(name) for names in own for name in ("_warn_once", "warn_once")]
    return [function for function in found if hasattr(function, "cache_clear")]


@pytest.fixture(autouse=True, scope="module")
def _no_leaks_of_fixtures(request):
    """Fail on what the fixtures of a module left behind."""
    yield
    if "cluster" in request.node.path.parts:
        return  # the daemons of a real scheduler serve several modules
    leaked = _watch.left_by_fixtures("class", "module", "package")
    assert not leaked, f"fixtures of {request.node.nodeid} left behind: {'; '.join(leaked)}"


@pytest.fixture(autouse=True, scope="module")
def _own_imports():
    """Forget what the tests of a module import from recipes: each of them has a `src`."""
    path = list(sys.path)
    _forget_recipes()
    yield
    sys.path[:] = path
    _forget_recipes()


def _forget_recipes() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("src", "dataset")]:
        del sys.modules[name]


@pytest.fixture
def awkward(tmp_path: Path) -> Path:
    """Return a folder whose name has spaces, quotes and a newline."""
    folder = tmp_path / 'it\'s "a"\nfolder'
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def dask_address(tmp_path_factory) -> str:
    """Start a scheduler and two workers with four threads each, as a user would in a shell.

    They end with the module: idle, the four processes take a fifteenth of a core all the time.
    """
    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": (folder / "log").open("wb"), "cwd": folder}
    dask = [sys.executable, "-m", "dask"]
    scheduler = [
        *dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
        "--scheduler-file", str(file),
    ]  # fmt: skip
    worker = [
        *dask, "worker", "--scheduler-file", str(file), "--nworkers", "2", "--nthreads", "4",
        "--no-dashboard",
    ]  # fmt: skip
    processes = [
        subprocess.Popen(command, start_new_session=True, **quiet)
        for command in (scheduler, worker)
    ]
    try:
        wait_until(lambda: file.exists() and file.stat().st_size > 0, seconds=60)
        import json

        address = json.loads(file.read_text())["address"]
        from distributed import Client

        with Client(address) as client:
            client.wait_for_workers(2, timeout=60)
        yield address
    finally:
        # Killed with all that they started: to end by themselves takes them eight seconds.
        for process in reversed(processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
