"""What workers do before their first task, with real ones of Dask."""

import asyncio
import os
import warnings

import pytest
from distributed import Client, Nanny, Scheduler

from tests.helpers import fork_server

# Skipped as a whole: a start that is skipped in the event loop of a nanny is waited for.
pytestmark = pytest.mark.skipif(
    bool(os.environ.get(fork_server.QUICK)), reason="its workers import torch: not for `make quick`"
)
PRELOAD = "espnet3.parallel.clusters.worker_preload"


@pytest.fixture(autouse=True)
def _environment():
    """Undo what a nanny in this process does: it sets OMP_NUM_THREADS, and others, for good."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def worker_facts(dask_worker):
    sockets = list(dask_worker.listeners[0].tcp_server._sockets.values())
    return os.environ.get("CUDA_VISIBLE_DEVICES"), {each.getsockname()[0] for each in sockets}


async def start_worker(name="w", **environ):
    """Return what a worker with this environment sees, and what its driver was told."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        async with (
            Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0") as scheduler,
            Client(scheduler.address, asynchronous=True) as client,
            Nanny(
                scheduler.address,
                name=name,
                nthreads=1,
                env=environ,
                preload=[PRELOAD],
                preload_nanny=[PRELOAD],
                dashboard_address="127.0.0.1:0",
            ),
        ):
            (facts,) = (await client.run(worker_facts)).values()
            if "ESPNET3_JOB_GPUS" in environ:
                async with asyncio.timeout(60):
                    while not any("ESPNET3_NODE_GPUS" in str(each.message) for each in told):
                        await asyncio.sleep(0.05)
    return facts


@pytest.mark.parametrize(
    ("environ", "visible"),
    [
        ({"CUDA_VISIBLE_DEVICES": "CUDA1"}, "1"),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "ESPNET3_JOB_WORKERS": "2"}, "1,0"),
    ],
)
def test_a_worker_sees_its_own_gpu_and_listens_where_its_driver_is(environ, visible):
    assert asyncio.run(start_worker("SLURMCluster-0-1", **environ)) == (visible, {"127.0.0.1"})


def test_a_warning_reaches_the_driver():
    visible, _ = asyncio.run(start_worker(ESPNET3_JOB_GPUS="1", ESPNET3_NODE_GPUS="0"))
    assert visible is None
