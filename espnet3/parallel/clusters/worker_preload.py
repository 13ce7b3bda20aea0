"""Preload hooks of a Dask worker: `--preload` and `--preload-nanny` of its job."""

import asyncio
import logging
import os
import pickle
from typing import Any

from espnet3.parallel.clusters.gpus import VARIABLE, Pinning, choose_gpus

# Under Dask's name, whose messages go into the job's log.
logger = logging.getLogger("distributed.espnet3")
_TELL_SECONDS = 60.0
_held: list[Any] = []


async def dask_setup(server: Any) -> None:
    """Prepare a nanny, before it starts its worker, or a worker; called by Dask."""
    if hasattr(server, "worker_kwargs"):
        _listen_where_driver_is(server)
    else:
        _see_own_gpus(server)


def _listen_where_driver_is(nanny: Any) -> None:
    """Let the worker listen where its nanny does: at the one address that the driver sees.

    By itself it would listen on all networks of the node, and tell the driver only that one.
    """
    arguments = nanny.worker_kwargs
    if not any((arguments.get("host"), arguments.get("interface"), nanny.contact_address)):
        arguments["host"] = nanny.ip


def _see_own_gpus(worker: Any) -> None:
    pinning = choose_gpus(os.environ, str(worker.name))
    _held[:] = pinning.locks  # until this process ends
    if pinning.visible is not None:
        os.environ[VARIABLE] = pinning.visible
    if pinning.message:
        logger.log(logging.WARNING if pinning.is_warning else logging.INFO, pinning.message)
    if pinning.is_warning:
        _held.append(asyncio.create_task(_tell_driver(worker, pinning)))


async def _tell_driver(worker: Any, pinning: Pinning) -> None:
    """Warn at the driver as well, once the worker is connected to it."""
    async with asyncio.timeout(_TELL_SECONDS):
        while worker.status.name != "running":
            await asyncio.sleep(0.1)
    # As distributed.worker.warn does it, which works only inside a task.
    warning = {"message": pinning.message, "category": UserWarning}
    worker.log_event("warn", {key: pickle.dumps(value) for key, value in warning.items()})
