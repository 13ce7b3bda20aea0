"""Backends for batch schedulers through dask-jobqueue, one job per worker.

What is needed only once the jobs are submitted is imported then: they start meanwhile.
"""

import importlib.util
import inspect
import logging
import shlex
import signal
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from espnet3.commands import same_command
from espnet3.config.advice import did_you_mean
from espnet3.config.redact import scrub_text
from espnet3.errors import ConfigError, ResourceError
from espnet3.memory import rare_collections
from espnet3.parallel.clusters.certificates import Certificates
from espnet3.parallel.clusters.dask_config import quiet_settings, settings
from espnet3.parallel.clusters.early_jobs import WORKER_MAIN, EarlyJobs, submit_early
from espnet3.parallel.clusters.gpus import REQUESTED
from espnet3.parallel.clusters.job_header import WHERE, merge_header, told
from espnet3.parallel.clusters.job_logs import check_log_folder, removing_new_folder
from espnet3.parallel.clusters.job_options import (
    complete_options,
    submission_environment,
    with_own_logs,
)
from espnet3.parallel.clusters.registry import Backend, cluster_class, warn_of_defaults
from espnet3.parallel.signals import handler_kept
from espnet3.schedulers import Scheduler, known_scheduler
from espnet3.schedulers.script import render_header
from espnet3.text import first_few, folded

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)
T = TypeVar("T")
_EXAMPLES = {"cores": "4", "memory": "16GB", "disk": "10GB"}
_SHOWN_QUEUES = 10
_DASKS_WORKER = "-m distributed.cli.dask_worker"


def start(config: "ParallelConfig", backend: Backend) -> Any:
    """Submit a job per worker.

    Raises:
        ConfigError: if the cluster class refuses the options; nothing was submitted.
        ResourceError: if the scheduler refuses a job; those it had accepted are cancelled.
    """
    config, logs = with_own_logs(config)
    options = complete_options(config)
    early: EarlyJobs | None = None
    try:
        check_log_folder(options)
        early = submit_early(config, backend, options)
        cluster = _make_cluster(config, backend, options, early)
        if early is not None:
            early.free_port()
        _log_about_workers(config, cluster)
        try:
            _submit(cluster, config)
            if early is not None:
                early.cancel_rest()
        except BaseException:  # Ctrl-C above all: what was submitted so far must not stay behind
            cluster.close()
            raise
    except BaseException:
        if early is not None:
            early.undo()
        if logs is not None:
            logs.end(is_well=False)
        raise
    cluster.own_logs = logs
    return cluster


def _make_cluster(
    config: "ParallelConfig", backend: Backend, options: dict[str, Any], early: EarlyJobs | None
) -> Any:
    """Import Dask and start its scheduler, for workers whose jobs may be there already."""
    with sigint_kept(), rare_collections():
        start_cluster = cluster_class(config.env, backend)
    import dask

    from espnet3.parallel.clusters.job_cluster import kept_cluster_class
    from espnet3.parallel.clusters.tls import removing_certificates

    scheduler = known_scheduler(config.env)
    job_class = patched_job_class(start_cluster.job_cls, scheduler, early)
    options = {**_with_security(options), "job_cls": job_class}
    if early is not None:
        options["scheduler_options"] = {**options["scheduler_options"], "port": early.port}
    with dask.config.set(quiet_settings()):
        cluster_type = kept_cluster_class(removing_certificates(start_cluster))
        return checked(cluster_type, config, backend, options)


def _with_security(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with certificates as Dask takes them."""
    from espnet3.parallel.clusters.tls import RunSecurity

    files = options.get("security")
    return (
        {**options, "security": RunSecurity(files)} if isinstance(files, Certificates) else options
    )


def _log_about_workers(config: "ParallelConfig", cluster: Any) -> None:
    """Log how to see the dashboard, and what workers will do about GPUs and defaults."""
    warn_of_defaults(config)
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


def check(config: "ParallelConfig") -> None:
    """Let the cluster class look at the options; nothing is started or submitted.

    Raises:
        ConfigError: if it refuses them.
    """
    from espnet3.parallel.clusters.registry import BACKENDS

    job_script(config, BACKENDS[config.env])


def job_script(config: "ParallelConfig", backend: Backend) -> str:
    """Return the script that each worker's job would run; nothing is started or submitted.

    Raises:
        ConfigError: if the cluster class refuses the options.
    """
    import asyncio

    with sigint_kept():
        cluster = cluster_class(config.env, backend)

    async def render() -> str:
        # Asynchronous, and never awaited: so no scheduler is started.
        options = {**_with_security(complete_options(config, is_dry=True)), "asynchronous": True}
        with removing_new_folder(options.get("log_directory")):
            options["job_cls"] = patched_job_class(cluster.job_cls, known_scheduler(config.env))
            script: str = checked(cluster, config, backend, options).job_script()
        # Without a scheduler dask-jobqueue writes a placeholder, and that without TLS.
        return script.replace("tcp://<insert", "tls://<insert") if "--tls-key" in script else script

    # In a thread: the caller may be in an event loop already, as in a notebook.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, render()).result()


def checked(
    made: Any,
    config: "ParallelConfig",
    backend: Backend,
    options: dict[str, Any],
    cluster: Any = None,
) -> Any:
    """Make a cluster, or a job, of the options.

    Args:
        made: its class.
        config: with the options as the user wrote them.
        backend: of that config.
        options: as the class takes them.
        cluster: the class of the cluster, for that of a job; it knows more options.

    Raises:
        ConfigError: if the class refuses them.
    """
    try:
        return made(**options)
    except (TypeError, ValueError) as error:
        raise _refusal(cluster or made, config, backend, error) from error


def _refusal(
    cluster: Any, config: "ParallelConfig", backend: Backend, error: Exception
) -> ConfigError:
    known = _option_names(cluster)
    unknown = [name for name in config.options if name not in known]
    if unknown:
        key = f"parallel.options.{unknown[0]}"
        hint = did_you_mean(key, config.options[unknown[0]], known)
        return ConfigError(
            f"{key} is no option of {backend.cluster} of dask-jobqueue.",
            fix=hint or f"It takes: {', '.join(sorted(known))}.",
        )
    if missing := _missing(config):
        examples = ", ".join(f"{name}: {_EXAMPLES[name]}" for name in missing)
        return ConfigError(
            f"parallel.options does not say {' and '.join(missing)}, which each job of env: "
            f"{config.env} needs.",
            fix=f"Write under options: {examples}",
        )
    return ConfigError(
        f"parallel.options is not what {backend.cluster} of dask-jobqueue takes: {folded(error)}.",
        fix="It needs at least cores and memory; see docs/clusters/ for a complete block.",
    )


def _missing(config: "ParallelConfig") -> list[str]:
    """Return what neither the options nor Dask's own configuration say of a job."""
    known = settings(config.env)
    needed = known_scheduler(config.env).needs
    return [name for name in needed if config.options.get(name, known.get(name)) is None]


def _option_names(cluster: Any) -> set[str]:
    """Return what a cluster class and its jobs take; each hands on what it does not know."""
    classes = [*cluster.__mro__, *getattr(cluster, "job_cls", cluster).__mro__]
    functions = [vars(each).get("__init__") for each in classes]
    signatures = [inspect.signature(each) for each in functions if inspect.isfunction(each)]
    names = {name for signature in signatures for name in signature.parameters}
    return names - {"self", "args", "kwargs", "cls", "job_cls", "config_name"}


def _submit(cluster: Any, config: "ParallelConfig") -> None:
    """Submit the first jobs, and let a monitor look after them."""
    from espnet3.parallel.clusters.job_cluster import JobCluster
    from espnet3.parallel.clusters.job_monitor import JobMonitor, job_limits

    scheduler = known_scheduler(config.env)
    jobs = JobCluster(cluster, scheduler)
    queue = config.options.get("queue")
    monitor = JobMonitor(jobs, scheduler, job_limits(config), queue=str(queue) if queue else None)
    monitor.begin(config.n_workers)
    change = jobs.wait()
    if change.error:
        command = cluster.job_cls.submit_command
        raise ResourceError(
            f"parallel.env is {config.env!r}, but {change.error}.",
            fix=f"{describe_refusal(scheduler, command, change.error)}{SCRIPT_BELOW}"
            f"{scrub_text(cluster.job_script())}",
        )
    monitor.settle(change)
    cluster.monitor = monitor


SCRIPT_BELOW = "\nThe job script was:\n"
"""What stands before the job script at the end of an error."""


def describe_refusal(scheduler: Scheduler, command: str, said: str) -> str:
    """Return what to do where a command refuses a job."""
    advice = scheduler.advise_on_refusal(said)
    if not advice:
        return (
            f"Run this program where {command} works, and set parallel.options to what your "
            "cluster has"
        )
    # Asked only now: it takes a moment, and is rarely needed.
    known = scheduler.queues() if "queue: NAME" in advice else None
    if not known:
        return advice
    line = same_command(f"parallel.options.queue={known[0]}")
    return f"{advice}: {first_few(known, _SHOWN_QUEUES)}. Such as: {line}"


def patched_job_class(job_class: Any, scheduler: Scheduler, early: EarlyJobs | None = None) -> Any:
    """Return a job class of dask-jobqueue 0.9 that can be interrupted and closed at any time.

    Its script has each option of the scheduler once, and its commands are called as everywhere.

    Args:
        job_class: that of dask-jobqueue.
        scheduler: of the jobs.
        early: jobs that were submitted before.
    """
    from distributed.core import Status

    class Job(job_class):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            _merge_options(self, scheduler, kwargs)
            # Not for `worker_command`: dask-jobqueue gives --nworkers and --nanny to Dask's alone.
            if kwargs.get("worker_command") is None and kwargs.get("nanny") is not False:
                template: str = vars(self)["_command_template"]
                self._command_template = template.replace(_DASKS_WORKER, WORKER_MAIN, 1)

        async def _submit_job(self, script_filename: str) -> str:
            words = shlex.split(self.submit_command)
            if early is not None:
                take = partial(early.take, str(self.name), self.job_script(), words)
                if job_id := await _in_thread(take):
                    return job_id
            submit = partial(
                scheduler.submit_script,
                script_filename,
                words=words,
                environment=submission_environment(),
            )
            return await _in_thread(submit)

        def _job_id_from_submit_output(self, out: str) -> str:
            return out  # of `_submit_job`, which has found it

        @classmethod
        async def _close_job(cls, job_id: Any, cancel_command: str) -> None:
            if job_id:  # one that has ended already is none of our concern
                cancel = partial(scheduler.cancel_job, job_id, shlex.split(cancel_command))
                await _in_thread(cancel)

        async def close(self) -> None:
            await super().close()
            self.status = Status.closed  # else cluster.close() stops at an assertion

    Job.__name__ = job_class.__name__  # messages of dask-jobqueue have it
    return Job


async def _in_thread(function: Callable[[], T]) -> T:
    """Call a function that may take long without holding up the event loop."""
    import asyncio

    thread = ThreadPoolExecutor(1, thread_name_prefix="scheduler command")
    try:
        return await asyncio.wrap_future(thread.submit(function))
    finally:
        # After Ctrl-C nobody should wait for a command that hangs.
        thread.shutdown(wait=False)


def _merge_options(job: Any, scheduler: Scheduler, given: dict[str, Any]) -> None:
    """Let a job ask once for what the options and the user's directives ask for.

    Raises:
        ConfigError: a job cannot have both.
    """
    own = job.job_extra_directives
    if isinstance(own, Mapping):
        job.job_header_dict = scheduler.merge_settings(job.job_header_dict, own)
    elif (made := getattr(job, "made", None)) is not None:  # by a class of ours
        lines = [str(each) for each in own or ()]
        job.job_header = told(render_header(scheduler, made, lines, WHERE))
    else:
        job.job_header = merge_header(scheduler, job.job_header, own or (), given)


def sigint_kept() -> AbstractContextManager[None]:
    """Undo what importing dask_jobqueue does: a SIGINT handler that exits with code 0."""
    return handler_kept(signal.SIGINT)
