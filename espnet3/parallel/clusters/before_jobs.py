"""What is looked at and told before the first job is submitted."""

import importlib.util
import logging
import os
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import ResourceError
from espnet3.io.atomic import folder_trouble
from espnet3.parallel.clusters.gpu_pinning import REQUESTED
from espnet3.parallel.clusters.requested import left_out

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)
_LOG_BYTES = 1 << 16
"""What the log of a job may take in its first minutes; less than that is no room."""


def check_log_folder(options: Mapping[str, Any]) -> None:
    """Make the folder for the jobs' logs, and write there as a job would.

    Schedulers end a job whose log cannot be opened without a word, or put it on hold.

    Raises:
        ResourceError: if it cannot be written.
    """
    if options.get("log_directory") is None:
        return
    folder = Path(str(options["log_directory"]))
    probe = folder / f".espnet3-probe-{socket.gethostname()}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with probe.open("wb") as file:
                file.write(bytes(_LOG_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise ResourceError(
            f"parallel.options.log_directory is {folder}, where the logs of the jobs cannot be "
            f"written: {folder_trouble(error, folder)}. Nothing was submitted. Make room "
            "there, or name another folder that the nodes can see: log_directory: logs/jobs"
        ) from error


def tell_of_defaults(config: "ParallelConfig") -> None:
    """Log what jobs get because the options do not say."""
    for note in left_out(config):
        _warn_once(note)


@cache  # a run may submit jobs many times: once is enough
def _warn_once(note: str) -> None:
    logger.warning("%s", note)


def tell_of_workers(config: "ParallelConfig", cluster: Any) -> None:
    """Log how to see the dashboard, and what workers will do about GPUs and defaults."""
    tell_of_defaults(config)
    address = cluster.scheduler_spec["options"].get("dashboard_address")
    port = cluster.scheduler_info.get("services", {}).get("dashboard")
    if port and str(address).startswith("127.0.0.1:"):
        # Without bokeh there are no plots, but tables.
        page = "status" if importlib.util.find_spec("bokeh") else "info/main/workers.html"
        logger.info(
            "Dashboard: ssh -L 8787:127.0.0.1:%d %s , then open http://127.0.0.1:8787/%s",
            port, socket.gethostname(), page,
        )  # fmt: skip
    if any(f"export {REQUESTED}=" in line for line in cluster.job_script().splitlines()):
        logger.info(
            "parallel.env is %r, which does not tell a job which GPUs it got: where %s is not set, "
            "each worker takes free ones of its node, by lock files there",
            config.env, "CUDA_VISIBLE_DEVICES",
        )  # fmt: skip
