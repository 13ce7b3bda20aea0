"""What a Dask worker does before its first task, as `--preload` of its job."""

import asyncio
import logging
import os
import pickle
from typing import Any

from espnet3.parallel.clusters.gpu_pinning import VISIBLE, Pinning, choose_gpus

# Under Dask's name, whose messages go into the job's log.
logger = logging.getLogger("distributed.espnet3")
_TELL_SECONDS = 60.0
_held: list[Any] = []


async def dask_setup(worker: Any) -> None:
    """Let the worker see its own GPUs; called by Dask when the worker starts."""
    pinning = choose_gpus(os.environ, str(worker.name))
    _held[:] = pinning.locks  # until this process ends
    if pinning.visible is not None:
        os.environ[VISIBLE] = pinning.visible
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
