"""Backend `kube`: Kubernetes, through the operator of dask-kubernetes.

The scheduler's service is of type ClusterIP unless the options say otherwise: nothing outside the
cluster reaches it, and this program only through the API server, by a port on loopback.
"""

import asyncio
import getpass
import logging
import os
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError, EspnetError, ResourceError, suggest
from espnet3.parallel.clusters.kube_api import (
    FORWARDING,
    NEEDED,
    KubeApi,
    Right,
    advise,
    chain,
    is_not_found,
    refusal_of,
    rules,
)
from espnet3.parallel.clusters.kube_pods import (
    PATIENCE,
    PodMonitor,
    PodReport,
    PodState,
    advice_on,
    pod_state,
)
from espnet3.parallel.clusters.kube_spec import check_spec, with_texts
from espnet3.parallel.clusters.registry import (
    BACKENDS,
    Backend,
    cluster_class,
    start_within,
    warn_once,
)
from espnet3.text import folded, listed

if TYPE_CHECKING:
    from espnet3.parallel.config import ParallelConfig

logger = logging.getLogger(__name__)
OURS = ("image", "resources", "env", "worker_command", "volumes", "volume_mounts")
"""What goes into the description of the cluster, unless `custom_cluster_spec` has all of it."""
THEIRS = (
    "name",
    "namespace",
    "custom_cluster_spec",
    "scheduler_service_type",
    "idle_timeout",
    "port_forward_cluster_ip",
    "resource_timeout",
    "shutdown_on_close",
    "create_mode",
)
_IDLE_SECONDS = 3600
_LOOK_SECONDS = 2.0
_MESSAGE_SECONDS = 30.0
_ACTION_SECONDS = 60.0  # in which an operator makes the first pod; `resource_timeout` says another
_FORWARD_SECONDS = 10.0  # in which a scheduler that is ready is reached
_DELETE_SECONDS = 40.0
_AGAIN_SECONDS = 1.0
_PORT = 8786
_EXAMPLE = "options: {image: 'registry/espnet3:1', resources: {limits: {nvidia.com/gpu: '1'}}}"


def start(config: "ParallelConfig", backend: Backend) -> Any:
    """Create a DaskCluster with a pod per worker, and connect to it.

    Raises:
        ConfigError: if the options are wrong.
        ResourceError: if the cluster cannot be reached, refuses, or does not start.
    """
    check(config)
    kube_cluster = cluster_class(config.env, backend)
    spec = cluster_spec(config)
    options = _cluster_options(config, spec)
    logging.getLogger("asyncio").addFilter(_is_not_of_forwarding)
    name = spec["metadata"]["name"]
    api = KubeApi(name, namespace_of(config, spec))
    is_forwarded, deletes = _is_forwarded(config, spec), False
    try:
        is_there = ask_first(api, config, spec)
        deletes = not is_there and bool(config.options.get("shutdown_on_close", True))
        watch = _StartWatch(api, config, is_forwarded=is_forwarded)
        start_cluster = _kept_cluster_class(kube_cluster, api, is_forwarded=is_forwarded)
        cluster = start_within(
            config.start_timeout, lambda: start_cluster(**options), watch, hint=watch.hint
        )
    except BaseException as error:  # Ctrl-C too: what was created must not stay behind
        if deletes:
            _delete(api)
        api.close()
        for each in list(kube_cluster._instances):
            if each.name == name:
                each.shutdown_on_close = False  # or Dask tries it again when the program ends
        if isinstance(error, EspnetError) or not isinstance(error, Exception):
            raise
        raise no_cluster(error, api.namespace) from error
    if is_forwarded:
        logger.info(
            "Dashboard: kubectl port-forward -n %s service/%s-scheduler 8787 , then open "
            "http://127.0.0.1:8787/status", api.namespace, name,
        )  # fmt: skip
    cluster.monitor = _monitor(cluster, api, config.n_workers)
    return cluster


def _is_not_of_forwarding(record: logging.LogRecord) -> bool:
    """Drop what kr8s says when a port that it forwards is used after its pod has gone."""
    return "client_connected_cb" not in record.getMessage()


def _cluster_options(config: "ParallelConfig", spec: dict[str, Any]) -> dict[str, Any]:
    taken = ("name", "scheduler_service_type", "idle_timeout", *OURS)  # they are in the spec
    options = {name: value for name, value in config.options.items() if name not in taken}
    return {
        "quiet": True,
        "port_forward_cluster_ip": _is_outside(),
        **options,
        "namespace": namespace_of(config, spec),
        "custom_cluster_spec": spec,
    }


def namespace_of(config: "ParallelConfig", spec: dict[str, Any]) -> str | None:
    """Return where the cluster is to be; None for the namespace of the kubeconfig.

    Raises:
        ConfigError: option and description say different ones.
    """
    option, own = config.options.get("namespace"), spec["metadata"].get("namespace")
    if option and own and option != own:
        raise ConfigError(
            f"parallel.options.namespace is {option!r}, but metadata.namespace in "
            f"custom_cluster_spec is {own!r}.",
            fix="Delete one of them.",
        )
    found = option or own
    return str(found) if found else None


def _is_outside() -> bool:
    """Tell whether this is no pod: a service has no name then, which Dask would try for 10 s."""
    return "KUBERNETES_SERVICE_HOST" not in os.environ


def _is_forwarded(config: "ParallelConfig", spec: dict[str, Any]) -> bool:
    service = spec["spec"].get("scheduler", {}).get("service") or {}
    is_inside = service.get("type", "ClusterIP") == "ClusterIP"
    return is_inside and bool(config.options.get("port_forward_cluster_ip", _is_outside()))


def needed_rights(config: "ParallelConfig", spec: dict[str, Any]) -> list[Right]:
    """Return the rights without which a run cannot work."""
    return [*NEEDED, *(FORWARDING if _is_forwarded(config, spec) else ())]


def ask_first(api: KubeApi, config: "ParallelConfig", spec: dict[str, Any]) -> bool:
    """Ask for all that a run needs, before anything is created.

    Returns:
        Whether a DaskCluster of that name is there already.

    Raises:
        ConfigError: the API server refuses the description.
        ResourceError: a right is missing, or there is no operator.
        Exception: the API server cannot be asked.
    """
    needed = needed_rights(config, spec)
    # No object is watched yet, so that one that is only read will do.
    missing = api.missing(right for right in needed if right.verb != "watch")
    if missing:
        raise ResourceError(
            f"parallel.env is 'kube', but in namespace {api.namespace} you may not "
            f"{listed(missing)}.",
            fix="Ask for these lines in your Role (docs/clusters/kube.md has all of it): "
            f"{' '.join(rules(missing))}",
        )
    if api.read_cluster() is not None:
        return True
    try:
        api.try_to_create(spec)
    except Exception as error:
        raise no_cluster(error, api.namespace, creates=True) from error
    return False


def _monitor(cluster: Any, api: KubeApi, n_workers: int) -> PodMonitor:
    def workers() -> dict[str, str]:
        known = dict(cluster.scheduler_info["workers"])
        return {address: str(info.get("name", "")) for address, info in known.items()}

    return PodMonitor(
        api.cluster,
        api.namespace,
        n_workers,
        read=lambda: _report(api),
        workers=workers,
        last_lines=lambda pod: api.last_lines(pod, previous=True),
    )


def _report(api: KubeApi) -> PodReport:
    pods = tuple(map(pod_state, api.pods()))
    return PodReport(pods, is_gone=not pods and api.read_cluster() is None)


def _kept_cluster_class(kube_cluster: Any, own_api: KubeApi, *, is_forwarded: bool) -> Any:
    """Return a class that goes by pods, and not by what the operator notes in the DaskCluster.

    Two handlers of the operator write `status.phase`, and the last one wins: Pending may stay
    although all pods run (dask-kubernetes issue 968).
    """
    from dask_kubernetes.operator._objects import DaskCluster
    from dask_kubernetes.operator.kubecluster.kubecluster import wait_for_service
    from dask_kubernetes.operator.networking import wait_for_scheduler, wait_for_scheduler_comm
    from distributed.core import rpc

    class Cluster(kube_cluster):
        api = own_api
        monitor: PodMonitor | None = None
        shutdown_on_close: bool | None
        forwarded_dashboard_port = "8787"  # the user forwards it, if at all

        async def _create_cluster(self) -> None:
            self.shutdown_on_close = self.shutdown_on_close is not False
            await (await DaskCluster(self._custom_cluster_spec, namespace=self.namespace)).create()
            await self._connect()

        async def _connect_cluster(self) -> None:
            self.shutdown_on_close = bool(self.shutdown_on_close)  # it was there before us
            await self._connect()

        async def _connect(self) -> None:
            await wait_for_scheduler(self.name, self.namespace, timeout=self._resource_timeout)
            await wait_for_service(f"{self.name}-scheduler", self.namespace)
            address = await self._get_scheduler_address()
            await wait_for_scheduler_comm(address)
            self.scheduler_comm = rpc(address)  # type: ignore[no-untyped-call]

        async def _get_scheduler_address(self) -> str:
            if not is_forwarded:
                return str(await super()._get_scheduler_address())
            service = f"{self.name}-scheduler"
            port = await asyncio.to_thread(self.api.forward, service, _PORT)
            return f"tcp://127.0.0.1:{port}"

        async def _watch_worker_status(self, comm: Any) -> None:
            """Note which workers are there, also after the way to the scheduler broke."""
            await _watch(self, super()._watch_worker_status, comm)

        async def _watch_component_status(self) -> None:
            pass  # for a table that is not shown, and it needs a right more

        def close(self, timeout: float = _DELETE_SECONDS) -> None:
            deletes, self.shutdown_on_close = self.shutdown_on_close, False
            try:
                if deletes:  # first: a connection that hangs must not keep the pods
                    _delete_within(self.api, timeout)
            finally:
                super().close(timeout=timeout)
            if deletes:
                _await_deletion(self.api, timeout)
            self.api.close()

        def left_behind(self) -> str:
            """Say whether the DaskCluster is still there, and how to delete it."""
            return _describe_left(self.api)

    Cluster.__name__ = kube_cluster.__name__
    return Cluster


async def _watch(cluster: Any, listen: Callable[[Any], Awaitable[None]], comm: Any) -> None:
    while comm is not None:
        await listen(comm)
        comm = await _subscribe_again(cluster)


async def _subscribe_again(cluster: Any) -> Any:
    """Return a new connection on which the Dask scheduler reports its workers; None at the end."""
    from distributed.core import Status
    from distributed.objects import SchedulerInfo

    while cluster.status is Status.running:
        with suppress(OSError):
            comm = await cluster.scheduler_comm.live_comm()
            await comm.write({"op": "subscribe_worker_status"})
            cluster.scheduler_info = SchedulerInfo(await comm.read())
            cluster._watch_worker_status_comm = comm
            return comm
        await asyncio.sleep(_AGAIN_SECONDS)
    return None


def _delete_within(api: KubeApi, seconds: float) -> None:
    """Delete the DaskCluster, also if the API server is back only in a moment."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return api.delete_cluster()
        except Exception as error:
            is_answer = refusal_of(error) is not None or isinstance(error, TimeoutError)
            if is_answer or time.monotonic() > deadline:
                raise
        time.sleep(_AGAIN_SECONDS)


def _await_deletion(api: KubeApi, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while api.read_cluster() is not None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"DaskCluster {api.cluster} is not gone after {seconds:g} s")
        time.sleep(0.2)


def _delete(api: KubeApi) -> None:
    """Delete the cluster of a start that failed, the reason of which is more important."""
    try:
        api.delete_cluster()
    except Exception as error:
        logger.warning("%s (%s)", _describe_left(api, is_asked=False), folded(error))


def _describe_left(api: KubeApi, *, is_asked: bool = True) -> str:
    """Say what is left of a cluster, as far as the API server answers."""
    place = f" -n {api.namespace}" if api.namespace else ""
    name = f"daskcluster {api.cluster}{place}"
    found: dict[str, Any] | None = {}
    try:
        found = api.read_cluster() if is_asked else {}
    except Exception:
        is_asked = False
    if found is None:
        return "Its DaskCluster is gone."
    word = "still exists" if is_asked else "may still exist"
    left = f"DaskCluster {api.cluster} {word}, with its pods. Delete it: kubectl delete {name}"
    if (found.get("metadata") or {}).get("deletionTimestamp"):
        finalizers = """ --type merge -p '{"metadata": {"finalizers": []}}'"""
        left += (
            f". It waits for the operator (kubectl get pods -A | grep dask-kubernetes); should "
            f"that be gone for good: kubectl patch {name}{finalizers}"
        )
    return left


def check(config: "ParallelConfig") -> None:
    """Look at what is installed and at the options; nothing is asked or created.

    Raises:
        ConfigError: if the options are wrong.
        MissingExtraError: if dask-kubernetes is not installed.
    """
    options = config.options
    unknown = [name for name in options if name not in (*OURS, *THEIRS)]
    if unknown:
        raise ConfigError(
            f"parallel.options.{unknown[0]} is no option of env: kube."
            f"{suggest(unknown[0], (*OURS, *THEIRS))} It takes: {', '.join((*OURS, *THEIRS))}."
        )
    if "custom_cluster_spec" in options:
        double = [name for name in OURS if name in options]
        if double:
            raise ConfigError(
                f"parallel.options has custom_cluster_spec and {double[0]}, which would be "
                "ignored.",
                fix=f"Write {double[0]} into the spec, or remove the spec.",
            )
    elif "image" not in options:
        raise ConfigError(
            "parallel.env is 'kube', but parallel.options.image is not set. Workers need one with "
            "this version of Python, ESPnet3 and Dask in it.",
            fix=f"Write: {_EXAMPLE}",
        )
    service = options.get("scheduler_service_type", "ClusterIP")
    if service != "ClusterIP":
        warn_once(
            f"parallel.options.scheduler_service_type is {service!r}: all who reach that port can "
            "run code in your pods, because dask-kubernetes knows no TLS. ClusterIP needs no such "
            "port."
        )
    cluster_class(config.env, BACKENDS[config.env])
    spec = cluster_spec(config)
    _check_name(str(spec["metadata"]["name"]))
    namespace_of(config, spec)
    check_spec(spec, is_custom="custom_cluster_spec" in options)


def _check_name(name: str) -> None:
    from dask_kubernetes.exceptions import ValidationError
    from dask_kubernetes.operator.validation import validate_cluster_name

    try:
        validate_cluster_name(name)
    except ValidationError as error:
        raise ConfigError(
            f"parallel.options.name, or the name in custom_cluster_spec, is {name!r}: "
            f"{folded(error.message)}",
            fix="Write one of small letters, digits and hyphens, or none",
        ) from error


def cluster_spec(config: "ParallelConfig") -> dict[str, Any]:
    """Return the DaskCluster that would be created."""
    custom = config.options.get("custom_cluster_spec")
    spec = _completed(custom, config.n_workers) if custom is not None else _made_spec(config)
    texts: dict[str, Any] = with_texts(spec)
    return texts


def _made_spec(config: "ParallelConfig") -> dict[str, Any]:
    from dask_kubernetes.operator import make_cluster_spec

    options = config.options
    name = options.get("name") or _new_name()
    service = options.get("scheduler_service_type", "ClusterIP")
    spec: dict[str, Any] = make_cluster_spec(
        name=name,
        image=options["image"],
        n_workers=config.n_workers,
        env=options.get("env") or {},
        worker_command=options.get("worker_command", "dask worker"),
        scheduler_service_type=service,
        # Should this program be killed, the operator removes what it leaves behind. Not sooner
        # than a run gives up: a scheduler whose workers wait for a node is idle.
        idle_timeout=options.get("idle_timeout", _idle_seconds(config)),
    )
    scheduler = spec["spec"]["scheduler"]["spec"]["containers"][0]
    # Not dask-scheduler, which newer images do not have.
    scheduler["args"] = ["dask", "scheduler", *scheduler["args"][1:]]
    # Not for the scheduler, which would take a GPU and never use it.
    scheduler["resources"] = {}
    pod = spec["spec"]["worker"]["spec"]
    worker = pod["containers"][0]
    # A worker runs one attempt at a time.
    worker["args"] += ["--nthreads", "1"]
    worker["resources"] = options.get("resources") or {}
    worker["workingDir"] = os.getcwd()  # so that relative paths mean the same there
    if options.get("volumes"):
        pod["volumes"] = options["volumes"]
    if options.get("volume_mounts"):
        worker["volumeMounts"] = options["volume_mounts"]
    return spec


def _idle_seconds(config: "ParallelConfig") -> int:
    return max(_IDLE_SECONDS, int(config.start_timeout) + 600)


def _completed(custom: Any, n_workers: int) -> dict[str, Any]:
    from omegaconf import OmegaConf

    from espnet3.config.files import read_file

    is_file = isinstance(custom, str)
    try:
        loaded = OmegaConf.create(read_file(Path(custom)).values if is_file else custom)
        spec: Any = OmegaConf.to_container(loaded)
        spec["metadata"]["name"]  # KubeCluster needs it
        spec["spec"]["worker"]["replicas"] = n_workers
    except (OSError, KeyError, TypeError) as error:
        raise ConfigError(
            f"parallel.options.custom_cluster_spec is not a DaskCluster ({error}). It needs "
            "metadata.name and spec.worker; see docs/clusters/kube.md."
        ) from error
    known = {"apiVersion": "kubernetes.dask.org/v1", "kind": "DaskCluster"}
    return {**known, **spec}


def _new_name() -> str:
    # Names of objects take nothing else, and pods get suffixes to it: hence short.
    user = re.sub(r"[^a-z0-9]+", "-", getpass.getuser().lower()).strip("-")[:20] or "user"
    return f"espnet3-{user}-{uuid.uuid4().hex[:8]}"


def no_cluster(error: Exception, namespace: str, *, creates: bool = False) -> EspnetError:
    """Return the error that says why there is no cluster, with advice about that cause."""
    refusal = refusal_of(error)
    reason = f"{type(error).__name__}: {folded(error)}".rstrip(".? ")
    place = f" -n {namespace}" if namespace else ""
    if refusal is not None and refusal.code in (400, 422):
        return ConfigError(
            "parallel.env is 'kube', but the API server refuses the DaskCluster: "
            f"{refusal.message.rstrip('.')}.",
            fix=advise(refusal, namespace),
        )
    if refusal is not None:
        reason = f"{refusal.message.rstrip('.')} (HTTP {refusal.code})"
        advice = advise(refusal, namespace, creates=creates)
    elif is_not_found(error):
        advice = "It was deleted while it started, by a user or by the operator; try again"
    elif log := _log_in(error):
        advice = f"The Dask scheduler ended at once; mend what its log says:\n{log}"
    else:
        advice = (
            f"See that this works: kubectl get pods{place}; kubectl and this program read "
            "$KUBECONFIG, or else ~/.kube/config"
        )
    return ResourceError(
        f"parallel.env is 'kube', but no cluster was started: {reason}.", fix=advice
    )


def _log_in(error: Exception) -> str:
    """Return the log of a scheduler that dask-kubernetes puts into its error; else nothing."""
    found = [each for each in chain(error) if type(each).__name__ == "SchedulerStartupError"]
    return str(found[0].args[-1])[-2000:] if found else ""


class _StartWatch:
    """Call it now and then while a cluster starts; it tells what pods wait for.

    Raises:
        ResourceError: from a call, if a pod cannot start, none is made, or none can be reached.
    """

    def __init__(self, api: KubeApi, config: "ParallelConfig", *, is_forwarded: bool) -> None:
        self._api, self._is_forwarded = api, is_forwarded
        self._patience = float(config.options.get("resource_timeout") or _ACTION_SECONDS)
        self._begin = self._last_look = self._last_message = time.monotonic()
        self._ready_since: float | None = None
        self._n_broken = 0
        self._pods: list[PodState] = []

    def __call__(self) -> None:
        """Look, if it is time to."""
        now = time.monotonic()
        if now - self._last_look < _LOOK_SECONDS:
            return
        self._last_look = now
        try:
            self._pods = [pod_state(each) for each in self._api.pods()]
        except Exception as error:  # it answers late, or not: the start itself will tell
            logger.debug("The pods could not be read: %s", error)
            return
        self._judge_pods()
        if not self._pods and now - self._begin > self._patience:
            self._judge_operator()
        self._judge_forwarding(now)
        if now - self._last_message > _MESSAGE_SECONDS:
            self._last_message = now
            waited = now - self._begin
            logger.warning("Waiting for pods since %.0f s. %s", waited, self.hint())

    def _judge_pods(self) -> None:
        broken = [pod for pod in self._pods if pod.is_broken]
        self._n_broken = self._n_broken + 1 if broken else 0
        if self._n_broken < PATIENCE:
            return
        lines = self._api.last_lines(broken[0].name, previous=True) if broken[0].ended else []
        log = "".join(f"\n  {line}" for line in lines)
        raise ResourceError(
            f"A pod of the cluster cannot start. {self.hint()}."
            + (f" Its last lines:{log}" if log else ""),
            fix=f"{advice_on(broken) or 'Mend what its words say'}.",
        )

    def _judge_operator(self) -> None:
        found = self._api.read_cluster()
        name = f"DaskCluster {self._api.cluster}"
        if found is None:
            raise ResourceError(
                f"{name} is gone: a user deleted it while it started.", fix="Try again."
            )
        if not (found.get("status") or {}).get("phase"):
            raise ResourceError(
                f"The operator is installed but does nothing: {name} has no pod and no status "
                f"after {self._patience:g} s.",
                fix="See: kubectl get pods -A | grep dask",
            )
        raise ResourceError(
            f"The operator made no pod for {name} within {self._patience:g} s.",
            fix="A quota or a policy may refuse them. See: kubectl get events -n "
            f"{self._api.namespace}; kubectl get deployments -n {self._api.namespace}",
        )

    def _judge_forwarding(self, now: float) -> None:
        """Try to reach a scheduler that has been ready for long; kr8s tries, and never says why."""
        ready = [pod for pod in self._pods if pod.component == "scheduler" and pod.is_ready]
        if not ready or not self._is_forwarded:
            self._ready_since = None
            return
        self._ready_since = self._ready_since or now
        if now - self._ready_since < _FORWARD_SECONDS:
            return
        self._ready_since = now
        try:
            self._api.try_to_forward(ready[0].name, _PORT)
        except Exception as error:
            refusal = refusal_of(error)
            # Trouble of the API server, or of a proxy, that may pass.
            if refusal is None or refusal.code >= 500:
                logger.warning("The Dask scheduler is not reached yet: %s", folded(error))
                return
            raise ResourceError(
                f"Port {_PORT} of pod {ready[0].name}, which runs the Dask scheduler, cannot be "
                f"forwarded: {refusal.message} (HTTP {refusal.code}).",
                fix=f"Ask for this line in your Role: {rules(FORWARDING)[0]}; or see whether a "
                "proxy before the API server lets websockets pass.",
            ) from error

    def hint(self) -> str:
        """Return what is known, and what to try."""
        place = f" -n {self._api.namespace}" if self._api.namespace else ""
        states = "; ".join(map(str, self._pods))
        return (
            f"Pods: {states or 'none yet'}. See: kubectl describe pods{place} "
            f"-l dask.org/cluster-name={self._api.cluster}"
        )
