"""Checks of a backend that submit nothing: packages, options, commands, queue, network."""

import importlib.util
import logging
import os
import re
import shlex
import shutil
import socket
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import EspnetError, MissingExtraError, Note, suggest
from espnet3.findings import Finding, Level, has_problem, never_raises
from espnet3.parallel.clusters.job_options import describe_interfaces, find_reach, interfaces
from espnet3.parallel.clusters.registry import (
    BACKENDS,
    check_resources,
    cluster_class,
    gpus_per_job,
    left_out,
    render_job_script,
    start_cluster,
)
from espnet3.schedulers import CLOSED_ADVICE, Scheduler, known_scheduler, scheduler_of
from espnet3.schedulers.command import call
from espnet3.text import count, folded

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from espnet3.parallel.clusters.kube_api import Right
    from espnet3.parallel.config import ParallelConfig

_DASK = ("dask", "distributed")
_PACKAGES = {
    "local_gpu": ("dask-cuda",), "kube": ("dask-kubernetes",), "ssh": ("asyncssh",),
    "ray": ("ray",),
}  # fmt: skip
_OPTIONAL = {"dask-cuda"}
"""Without it, workers are pinned to GPUs by ourselves."""

_INSTALL = "In your clone of ESPnet3: pip install -c constraints.txt"
_ANSWER_SECONDS = 30.0  # a busy scheduler answers late, and one that is away never does
_NETWORK = "network"
_KNOCK_SECONDS = 5.0
_SSH_PORT = 22
_IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def check_backend(config: "ParallelConfig", others: Sequence[str] = ()) -> list[Finding]:
    """Check packages, options, commands, queue and network, each as far as the last allows.

    Args:
        config: names the backend.
        others: packages beside those of the backend, such as `lightning`.
    """
    findings = check_versions(config, others)
    if has_problem(findings):
        return findings
    script, rendered = render(config)
    findings += rendered
    if not has_problem(rendered):
        findings += check_reach(config)
    answered = check_commands(config)
    findings += answered
    if has_problem(answered):
        return findings
    queue = check_queue(config)
    if has_problem(queue):
        return findings + queue
    queue += check_node_gpus(config)
    if not has_problem(queue):  # else the scheduler would say the same again
        queue += try_script(config, script)
    return [*findings, *queue, *check_network(config)]


@never_raises("packages")
def check_versions(config: "ParallelConfig", others: Sequence[str] = ()) -> list[Finding]:
    """Compare what is installed with what we need, and with what the backend's package needs.

    Args:
        config: names the backend.
        others: packages beside those of the backend, such as `lightning`.
    """
    wanted = [*_DASK, *_packages(config.env), *others]
    found = {name: version for name in wanted if (version := installed(name))}
    missing = [name for name in wanted if name not in found and name not in _OPTIONAL]
    findings = [_not_installed(config.env, name) for name in missing] or _import(config)
    findings += _misfits("espnet3", found, "problem")
    for name in found:
        if name not in _DASK:
            findings += _misfits(name, found, "warning")
    if found.get("dask") != found.get("distributed"):
        findings.append(_unequal(found))
    if not findings:
        message = ", ".join(f"{name} {version}" for name, version in found.items())
        findings.append(Finding("ok", "packages", message))
    return findings


def installed(name: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _packages(env: str) -> tuple[str, ...]:
    if BACKENDS[env].module == "jobqueue":
        return ("dask-jobqueue",)
    return _PACKAGES.get(env, ())


def _import(config: "ParallelConfig") -> list[Finding]:
    """Import the cluster class, as the start of a run does."""
    backend = BACKENDS[config.env]
    # dask-jobqueue is imported with care, when a job script is rendered: it changes Ctrl-C.
    if not backend.cluster or backend.module == "jobqueue" or config.env == "local_gpu":
        return []
    try:
        cluster_class(config.env, backend)
    except MissingExtraError as error:
        return [Finding.of("packages", error)]
    return []


def _not_installed(env: str, name: str) -> Finding:
    by_backend = name in _packages(env)
    message = f"{name} is not installed" + (f", and parallel.env: {env} needs it" * by_backend)
    what = BACKENDS[env].install if by_backend else name
    return Finding("problem", "packages", message, f"{_INSTALL} {what}")


def _misfits(package: str, found: dict[str, str], level: str) -> Iterator[Finding]:
    """Yield what a package asks of the others and does not get."""
    for requirement in _requirements(package):
        version = found.get(_spelled(requirement.name))
        # Else a specifier takes every pre-release for a misfit.
        if version is None or requirement.specifier.contains(version, prereleases=True):
            continue
        message = (
            f"{package} {installed(package)} asks for {requirement.name}{requirement.specifier}, "
            f"but {requirement.name} is {version}"
        )
        fix = f"{_INSTALL} '{requirement.name}{requirement.specifier}'"
        yield Finding("problem" if level == "problem" else "warning", "packages", message, fix)


def _requirements(package: str) -> Iterator["Requirement"]:
    from packaging.requirements import Requirement

    try:
        texts: Iterable[str] = metadata.requires(package) or ()
    except metadata.PackageNotFoundError:
        return
    for text in texts:
        requirement = Requirement(text)
        # What only an extra needs does not count.
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement
            if requirement.name.startswith("rapids-"):  # holds the versions for dask-cuda
                yield from _requirements(requirement.name)


def _spelled(name: str) -> str:
    return name.lower().replace("_", "-")


def _unequal(found: dict[str, str]) -> Finding:
    dask, distributed = found.get("dask"), found.get("distributed")
    return Finding(
        "problem",
        "packages",
        f"dask is {dask} and distributed is {distributed}, but they must be of one release",
        f"{_INSTALL} 'dask[distributed]'",
    )


def render(config: "ParallelConfig") -> tuple[str | None, list[Finding]]:
    """Return the job script, and whether the backend takes the options."""
    scripts: list[str | None] = []
    findings = _render(config, scripts)
    return (scripts[0] if scripts else None), findings


@never_raises("options")
def _render(config: "ParallelConfig", scripts: list[str | None]) -> list[Finding]:
    with _warnings_heard() as findings:
        check_resources(config)
        scripts.append(script := render_job_script(config))
    if script is not None:
        findings.append(Finding("ok", "options", f"each job asks for {_asked(config, script)}"))
        findings += [Finding.of("options", note, "warning") for note in left_out(config)]
    return [*findings, *_workers(config, is_told=bool(findings))]


def _asked(config: "ParallelConfig", script: str) -> str:
    """Return the options of a job script, but for those of its name and logs."""
    scheduler = scheduler_of(config.env)
    lines = scheduler.asked(script) if scheduler else []
    kept = [line for line in lines if not re.match(r"-[JNoejVr]\b|-cwd|-n [a-z]", line)]
    return ", ".join(kept) or "nothing"


@contextmanager
def _warnings_heard() -> Iterator[list[Finding]]:
    """Collect what the checks of a run would log as warnings."""
    findings: list[Finding] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            given = record.args[0] if isinstance(record.args, tuple) and record.args else None
            logged = given if isinstance(given, Note) else record.getMessage()
            findings.append(Finding.of("options", logged, "warning"))

    source, handler = logging.getLogger("espnet3.parallel"), Keep(logging.WARNING)
    # They become findings, and must not be printed as well.
    propagate, source.propagate = source.propagate, False
    source.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            yield findings
    finally:
        source.removeHandler(handler)
        source.propagate = propagate
    for warning in caught:  # of the cluster class, such as an option under its older name
        if issubclass(warning.category, UserWarning | FutureWarning):
            findings.append(Finding("warning", "options", folded(warning.message)))
    findings[:] = dict.fromkeys(findings)  # a script may be rendered twice


def _workers(config: "ParallelConfig", *, is_told: bool) -> list[Finding]:
    """Compare the workers with this machine, where that is where they run."""
    if config.env == "local_gpu" and not is_told:
        each = int(config.options.get("workers_per_gpu", 1))
        share = "one for each GPU" if each == 1 else f"at most {each} for each GPU"
        return [Finding("ok", "workers", f"n_workers: {config.n_workers}, {share}")]
    if config.env != "local":
        return []
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    message = f"n_workers: {config.n_workers} on {count(n_cores or 1, 'core')} of this machine"
    if n_cores and config.n_workers > n_cores:
        fix = f"Write: n_workers: {n_cores}"
        return [Finding("warning", "workers", f"{message}: they will wait for each other", fix)]
    return [Finding("ok", "workers", message)]


@never_raises("commands")
def check_commands(config: "ParallelConfig") -> list[Finding]:
    """Find the scheduler's commands, and ask it something that costs nothing."""
    scheduler = scheduler_of(config.env)
    if scheduler is None:
        return []
    commands = scheduler.commands
    missing = [name for name in commands if shutil.which(name) is None]
    if missing:
        return [_no_commands(config.env, missing)]
    if not scheduler.ping:
        return [Finding("ok", "commands", f"{', '.join(commands)} are here")]
    question = shlex.join(scheduler.ping)
    answer = call(scheduler.ping, timeout=_ANSWER_SECONDS)
    if answer.code == 0:
        message = f"{', '.join(commands)} are here; {question.split()[0]} answered "
        return [Finding("ok", "commands", f"{message}in {answer.seconds:.1f} s")]
    return [
        Finding(
            "problem",
            "commands",
            f"{', '.join(commands)} are here, but the scheduler does not answer: `{question}` "
            f"said: {answer.said or f'exit code {answer.code}'}",
            "Run it yourself until it answers; on a machine that is no login node, log in to one.",
        )
    ]


def _no_commands(env: str, missing: Sequence[str]) -> Finding:
    first = missing[0]
    return Finding(
        "problem",
        "commands",
        f"parallel.env is {env!r}, but {', '.join(missing)} cannot be found on PATH",
        f"Run it where `{first}` works, such as a login node; or load it: module load {env}; or "
        "on this machine: parallel.env=local",
    )


@never_raises("queue")
def check_queue(config: "ParallelConfig") -> list[Finding]:
    """Look for `options.queue` among the scheduler's, and whether it takes and starts jobs."""
    scheduler = scheduler_of(config.env)
    if scheduler is None:
        return []
    queue = config.options.get("queue")
    known = scheduler.queues()
    found = _find_queue(queue, known)
    return found if has_problem(found) else _closed(scheduler, queue) or found


def _closed(scheduler: Scheduler, queue: Any) -> list[Finding]:
    """Tell why none of the queues takes or starts jobs."""
    names = str(queue).split(",") if queue else [None]  # Slurm takes one that has room
    reasons = [scheduler.closed_queue(name) for name in names]
    if not all(reasons):
        return []
    return [Finding("problem", "queue", "; ".join(reasons), f"{CLOSED_ADVICE}.")]


def _find_queue(queue: Any, known: list[str] | None) -> list[Finding]:
    if known is None:
        if queue is None:
            return []
        return [Finding("ok", "queue", f"{queue}; this scheduler gives no list to compare with")]
    listed = ", ".join(known) or "none"
    if queue is None:
        return [Finding("ok", "queue", f"the scheduler's default; there are: {listed}")]
    names = str(queue).split(",")
    # Grid Engine has queue@host, PBS queue@server.
    wrong = [name for name in names if name.partition("@")[0] not in known]
    if not wrong:
        return [Finding("ok", "queue", f"{queue} exists; there are: {listed}")]
    close = suggest(wrong[0], known)
    best = close.split("'")[1] if close else "NAME"
    message = (
        f"parallel.options.queue is {queue!r}, which does not exist.{close} There are: {listed}"
    )
    return [Finding("problem", "queue", message, f"Write under options: queue: {best}")]


@never_raises("GPUs")
def check_node_gpus(config: "ParallelConfig") -> list[Finding]:
    """Compare the GPUs that a job asks for with those of the partition's nodes."""
    wanted = gpus_per_job(config)
    scheduler = scheduler_of(config.env)
    if scheduler is None or not wanted:
        return []
    queue = config.options.get("queue")
    gpus = scheduler.node_gpus(str(queue) if queue else None)
    if gpus is None:
        return []
    where = f"partition {queue}" if queue else "the default partition"
    if wanted > gpus.most:
        has = f"the largest of its nodes has {gpus.spelled}" if gpus.most else "no node has any"
        fix = f'Write under options: job_extra_directives: ["{gpus.directive}"]'
        other = f"Write under options: queue: NAME, one whose nodes have GPUs ({gpus.command})"
        message = f"a job asks for {wanted} GPU(s) of one node of {where}, but {has}"
        return [Finding("problem", "GPUs", message, fix if gpus.most else other)]
    # By node: two nodes with a free GPU each have no room for a job of two.
    at_once = sum(free // wanted for free in gpus.by_node.values())
    message = (
        f"{wanted} for each job; {where} has {gpus.total} on {count(len(gpus.by_node), 'node')}"
    )
    if config.n_workers > at_once:
        return [
            Finding(
                "warning",
                "GPUs",
                f"{message}: at most {at_once} of the {config.n_workers} jobs can run at once, the "
                "others wait",
                f"Write: n_workers: {at_once}",
            )
        ]
    return [Finding("ok", "GPUs", message)]


@never_raises("scheduler")
def try_script(config: "ParallelConfig", script: str | None) -> list[Finding]:
    """Let the scheduler judge the job script, where it has a way to; nothing is submitted."""
    scheduler = scheduler_of(config.env)
    if scheduler is None or not scheduler.trial or script is None:
        return []
    answer = call(scheduler.trial, text=script, timeout=_ANSWER_SECONDS)
    command, said = " ".join(scheduler.trial), _essence(answer.said, scheduler.submit[0])
    if scheduler.accepts(answer):
        return [Finding("ok", "scheduler", f"{command}: {said}")]
    message = f"{command} refuses the job script: {said}"
    advice = scheduler.advise_on_refusal(answer.said) or "Change parallel.options."
    return [Finding("problem", "scheduler", message, advice)]


def _essence(said: str, program: str) -> str:
    """Leave out which program says it."""
    return re.sub(rf"\b{re.escape(program)}: (?:error: )?", "", said) or "it said nothing"


@never_raises(_NETWORK)
def check_network(config: "ParallelConfig") -> list[Finding]:
    """Say where workers would connect to; no packet is sent."""
    if BACKENDS[config.env].module != "jobqueue":
        return []
    chosen: dict[str, Any] = config.options.get("scheduler_options") or {}
    if chosen.get("host"):
        message = f"workers connect to {chosen['host']}, as scheduler_options.host says"
        return [Finding("ok", _NETWORK, message)]
    interface = chosen.get("interface") or config.options.get("interface")
    if interface:
        return [_by_interface(str(interface))]
    reach = find_reach(known_scheduler(config.env).nodes(config.options))
    message = f"workers connect to {reach.host} ({reach.why})"
    if reach.is_known:
        return [Finding("ok", _NETWORK, message)]
    known = describe_interfaces()
    fix = f"Write under options: interface: NAME, one of {known}, if workers do not connect"
    return [Finding("warning", _NETWORK, f"{message}, which is a guess", fix)]


def _by_interface(name: str) -> Finding:
    address = interfaces().get(name)
    if address is None:
        message = (
            f"parallel.options.interface is {name!r}, but this machine has {describe_interfaces()}"
        )
        fix = f"Write under options: interface: {next(iter(interfaces()), 'NAME')}"
        return Finding("problem", _NETWORK, message, fix)
    return Finding("ok", _NETWORK, f"workers connect to {address}, of the interface {name}")


@never_raises("reach")
def check_reach(config: "ParallelConfig") -> list[Finding]:
    """Open a connection to each machine that the options name; nothing is started there.

    The options have been checked.
    """
    if config.env == "ssh":
        return _ssh(config)
    if config.env == "dask":
        return _dask(config)
    if config.env == "ray":
        return _ray(config)
    return _kube(config) if config.env == "kube" else []


def _ssh(config: "ParallelConfig") -> list[Finding]:
    hosts = config.options["hosts"]
    given: Any = config.options.get("connect_options") or {}
    options = given if isinstance(given, list) else [given] * len(hosts)
    silent = {
        host: reason
        for host, each in zip(hosts, options, strict=False)
        if (reason := _knock(str(host), int(each.get("port", _SSH_PORT))))
    }
    if not silent:
        return [Finding("ok", "hosts", f"all {len(hosts)} answer on their SSH port")]
    return [
        Finding(
            "problem", "hosts", f"{host} does not answer: {reason}", f"Mend it: ssh {host} true"
        )
        for host, reason in silent.items()
    ]


def _dask(config: "ParallelConfig") -> list[Finding]:
    address = start_cluster(config)  # which only asks whether it is there
    return [Finding("ok", "reach", f"a Dask scheduler answers at {address}")]


def _ray(config: "ParallelConfig") -> list[Finding]:
    from espnet3.parallel.clusters.ray import meet

    if address := meet(config):
        return [Finding("ok", "reach", f"a Ray cluster answers at {address}")]
    message = "no address is given: a Ray is started on this machine for the run, on loopback"
    return [Finding("ok", "reach", message)]


def _kube(config: "ParallelConfig") -> list[Finding]:
    found = _kubeconfig()
    is_installed = importlib.util.find_spec("kr8s") is not None
    return [found, *_ask_kube(config)] if is_installed and found.level == "ok" else [found]


def _kubeconfig() -> Finding:
    files = os.environ.get("KUBECONFIG", os.path.expanduser("~/.kube/config")).split(os.pathsep)
    there = [file for file in files if os.path.isfile(file)]
    if there:
        return Finding("ok", "cluster", f"its address is in {there[0]}")
    if _IN_POD.is_file():
        return Finding("ok", "cluster", "this is a pod of it")
    fix = "Put the file of your cluster there, or name it: export KUBECONFIG=FILE"
    return Finding("problem", "cluster", f"{files[0]} does not exist", fix)


def _ask_kube(config: "ParallelConfig") -> list[Finding]:
    """Ask the API server for each right, and let it judge the DaskCluster; nothing is created."""
    from espnet3.parallel.clusters import kube
    from espnet3.parallel.clusters.kube_api import LOGS, KubeApi, rules

    spec = kube.cluster_spec(config)
    api = KubeApi(spec["metadata"]["name"], kube.namespace_of(config, spec))
    try:
        needed = kube.needed_rights(config, spec)
        missing = api.missing([*needed, *LOGS])
        place = f"in namespace {api.namespace}"
        findings = [_right(rule, place, "problem") for rule in rules(_given(missing, needed))]
        findings += [_right(rule, place, "warning") for rule in rules(_given(missing, LOGS))]
        if not missing:
            findings.append(Finding("ok", "rights", f"all that a run needs {place}"))
        kube.ask_first(api, config, spec)
    except EspnetError as error:
        if not has_problem(findings):  # else it says the same again
            findings.append(Finding.of("cluster", error))
        return findings
    except Exception as error:
        return [Finding.of("cluster", kube.no_cluster(error, api.namespace))]
    finally:
        api.close()
    return [*findings, Finding("ok", "cluster", "it would take the DaskCluster; none was created")]


def _given(rights: Sequence["Right"], among: Sequence["Right"]) -> list["Right"]:
    return [right for right in rights if right in among]


def _right(rule: str, place: str, level: Level) -> Finding:
    use = "tell why a pod crashed" if level == "warning" else "run"
    message = f"you lack a right {place} that a run needs to {use}"
    return Finding(level, "rights", message, f"Ask for this line in your Role: {rule}")


def _knock(host: str, port: int) -> str:
    """Return why a port cannot be reached; empty if it can."""
    try:
        socket.create_connection((host, port), timeout=_KNOCK_SECONDS).close()
    except OSError as error:
        return f"port {port}: {error.strerror or error}"
    return ""
