"""The program of jobs, with a real scheduler of Dask."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import psutil
import pytest
from distributed import Client, Scheduler

from espnet3.parallel.clusters.worker_main import may_fork
from espnet3.parallel.process_pool import THREAD_VARIABLES
from tests.helpers import fork_server

pytestmark = [
    pytest.mark.cold,  # about how processes are started
    pytest.mark.skipif(
        bool(os.environ.get(fork_server.QUICK)), reason="its workers import Dask: not for quick"
    ),
]
THREADS = dict.fromkeys(THREAD_VARIABLES, "1")
DEFAULTS = {**THREADS, "MALLOC_TRIM_THRESHOLD_": 65536}
PRELOAD = "espnet3.parallel.clusters.worker_preload"


@asynccontextmanager
async def started(folder, variables):
    """Start the program; yield its process, and a client of its worker."""
    environment = {name: value for name, value in os.environ.items() if name not in THREADS}
    async with (
        Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0") as scheduler,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        words = ["--nthreads", "1", "--nanny", "--host", "127.0.0.1", "--local-directory", folder]
        words += ["--dashboard-address", "127.0.0.1:0", "--preload", PRELOAD]
        module = "espnet3.parallel.clusters.worker_main"
        process = subprocess.Popen(
            [sys.executable, "-m", module, scheduler.address, *map(str, words)],
            env={**environment, **variables},
            stderr=subprocess.DEVNULL,
        )
        try:
            await client.wait_for_workers(1, timeout=60)
            await watched(client)
            yield process, client
        finally:
            process.kill()
            process.wait()


async def family(client):
    """Return the process of the worker, and the one that started it."""
    ((pid, parent),) = (await client.run(lambda: (os.getpid(), os.getppid()))).values()
    return pid, parent


async def watched(client):
    """Wait until the nanny knows that its worker runs: one that dies before is not replaced."""

    def ask(dask_worker):
        return dask_worker.status.name

    async with asyncio.timeout(60):
        while {*(await client.run(ask, nanny=True)).values()} != {"running"}:
            await asyncio.sleep(0.05)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.05)


def test_a_worker_that_is_killed_is_forked_again_and_all_end_with_the_job(tmp_path):
    async def run():
        async with started(tmp_path, THREADS) as (process, client):
            worker, server = await family(client)
            assert server != process.pid
            assert psutil.Process(server).ppid() == process.pid
            os.kill(worker, signal.SIGKILL)
            await until(lambda: not psutil.pid_exists(worker))
            await client.wait_for_workers(1, timeout=60)
            again, same_server = await family(client)
            assert again != worker
            assert same_server == server
            process.kill()  # as a scheduler does
            await until(lambda: not psutil.pid_exists(again) and not psutil.pid_exists(server))

    asyncio.run(run())


def test_a_worker_that_hangs_can_be_restarted(tmp_path):
    async def run():
        async with started(tmp_path, THREADS) as (_, client):
            worker, server = await family(client)
            (address,) = client.scheduler_info(n_workers=-1)["workers"]
            os.kill(worker, signal.SIGSTOP)
            await client.restart_workers([address])
            again, same_server = await family(client)
            assert (again != worker, same_server) == (True, server)

    asyncio.run(run())


def test_a_worker_whose_fork_server_is_killed_is_replaced(tmp_path):
    async def run():
        async with started(tmp_path, THREADS) as (_, client):
            worker, server = await family(client)
            os.kill(server, signal.SIGKILL)
            await until(lambda: not psutil.pid_exists(worker))
            await client.wait_for_workers(1, timeout=60)
            assert (await family(client))[0] != worker

    asyncio.run(run())


def test_variables_that_a_new_python_must_see_are_set_before_it_starts(tmp_path):
    async def run():
        async with started(tmp_path, {}) as (process, client):
            _, parent = await family(client)
            assert parent == process.pid
            (threads,) = (await client.run(lambda: os.environ["OMP_NUM_THREADS"])).values()
            assert threads == "1"  # as Dask sets it

    asyncio.run(run())


def test_a_folder_whose_name_no_socket_can_have_costs_only_time(tmp_path):
    long = tmp_path / ("x" * 120)
    long.mkdir()

    async def run():
        async with started(tmp_path, {**THREADS, "TMPDIR": str(long)}) as (process, client):
            _, parent = await family(client)
            assert parent == process.pid

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "more", "expected"),
    [
        ("spawn", {}, True),
        ("spawn", {"MKL_NUM_THREADS": None}, True),  # unset by the user
        ("spawn", {"LD_PRELOAD": "libjemalloc.so"}, False),
        ("fork", {}, False),  # the user's own choice
    ],
)
def test_workers_are_forked_if_they_are_then_as_dask_would_start_them(
    monkeypatch, method, more, expected
):
    for name, value in THREADS.items():
        monkeypatch.setenv(name, value)
    assert may_fork(method, {**DEFAULTS, **more}) is expected


def test_dask_s_workers_do_not_look_at_themselves_a_hundred_times_a_second(tmp_path):
    def ask(dask_worker):
        import dask

        watches = sorted(dask_worker.periodic_callbacks)
        return "profile" in watches, dask.config.get("distributed.admin.tick.interval")

    async def run(variables):
        async with started(tmp_path, {**THREADS, **variables}) as (_, client):
            (told,) = (await client.run(ask)).values()
            return told

    assert asyncio.run(run({})) == (False, "500ms")
    own = {"DASK_DISTRIBUTED__WORKER__PROFILE__INTERVAL": "50ms"}
    assert asyncio.run(run(own)) == (True, "500ms")


def test_what_dask_can_do_without_is_not_imported_before_a_worker_needs_it(tmp_path):
    def loaded():
        found = sorted({"numpy", "jinja2"} & sys.modules.keys())
        import numpy

        return found, int(numpy.ones(3).sum())

    async def run():
        async with started(tmp_path, THREADS) as (_, client):
            (answer,) = (await client.run(loaded)).values()
            assert answer == ([], 3)

    asyncio.run(run())
