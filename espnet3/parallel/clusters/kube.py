"""Backend `kube`: Kubernetes, through the operator of dask-kubernetes.

The scheduler's service is of type ClusterIP unless the options say otherwise: nothing outside the
cluster reaches it, and this program only through the API server, by a port on loopback.
"""

import getpass
import logging
import os
import re
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.errors import ConfigError, ResourceError, suggest
from espnet3.parallel.clusters.registry import (
    BACKENDS,
    Backend,
    cluster_class,
    start_within,
    warn_once,
)
from espnet3.text import folded

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
_PATIENCE = 3
"""Looks in a row at which a pod must be broken: a pull that failed once may succeed."""
_BROKEN = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
_INSTALL = (
    "helm install --repo https://helm.dask.org --create-namespace -n dask-operator "
    "--generate-name dask-kubernetes-operator"
)
_EXAMPLE = "options: {image: 'registry/espnet3:1', resources: {limits: {nvidia.com/gpu: 1}}}"


def start(config: "ParallelConfig", backend: Backend) -> Any:
    """Create a DaskCluster with a pod per worker, and connect to it.

    Raises:
        ConfigError: if the options are wrong.
        ResourceError: if the cluster cannot be reached, refuses, or does not start.
    """
    check(config)
    start_cluster = cluster_class(config.env, backend)
    spec = cluster_spec(config)
    taken = ("name", "scheduler_service_type", "idle_timeout", *OURS)  # they are in the spec
    options = {name: value for name, value in config.options.items() if name not in taken}
    # Outside the cluster the service has no name, which Dask would try to find for ten seconds.
    is_outside = "KUBERNETES_SERVICE_HOST" not in os.environ
    options = {
        "quiet": True,
        "port_forward_cluster_ip": is_outside,
        **options,
        "custom_cluster_spec": spec,
    }
    name = spec["metadata"]["name"]
    watch = _PodWatch(name, config.options.get("namespace"))
    try:
        return start_within(
            config.start_timeout, lambda: start_cluster(**options), watch, hint=watch.hint
        )
    except BaseException as error:  # Ctrl-C too: what was created must not stay behind
        if config.options.get("shutdown_on_close", True):
            _delete_cluster(name, config.options.get("namespace"))
        for each in list(start_cluster._instances):
            if each.name == name:
                each.shutdown_on_close = False  # or Dask tries it again when the program ends
        if isinstance(error, ResourceError) or not isinstance(error, Exception):
            raise
        raise ResourceError(_describe(error, config)) from error


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


def cluster_spec(config: "ParallelConfig") -> dict[str, Any]:
    """Return the DaskCluster that would be created."""
    custom = config.options.get("custom_cluster_spec")
    if custom is not None:
        return _completed(custom, config.n_workers)
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
        # Should this program be killed, the operator removes what it leaves behind.
        idle_timeout=options.get("idle_timeout", _IDLE_SECONDS),
    )
    scheduler = spec["spec"]["scheduler"]["spec"]["containers"][0]
    # Not dask-scheduler, which newer images do not have.
    scheduler["args"] = ["dask", "scheduler", *scheduler["args"][1:]]
    # Not for the scheduler, which would take a GPU and never use it.
    scheduler["resources"] = {}
    pod = spec["spec"]["worker"]["spec"]
    worker = pod["containers"][0]
    worker["args"] += ["--nthreads", "1"]
    worker["resources"] = options.get("resources") or {}
    worker["workingDir"] = os.getcwd()  # so that relative paths mean the same there
    if options.get("volumes"):
        pod["volumes"] = options["volumes"]
        worker["volumeMounts"] = options.get("volume_mounts") or []
    return spec


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
    return dict(spec)


def _new_name() -> str:
    user = re.sub(r"[^a-z0-9]+", "-", getpass.getuser().lower()).strip("-")[:20] or "user"
    return f"espnet3-{user}-{uuid.uuid4().hex[:8]}"


def _describe(error: Exception, config: "ParallelConfig") -> str:
    """Say what stands in the way, in the order in which it usually does."""
    reasons = _reasons(error)
    message = " ".join(reasons)
    namespace = config.options.get("namespace")
    place = f" -n {namespace}" if namespace else ""
    answers = [getattr(each, "response", None) for each in _chain(error)]
    codes = {getattr(answer, "status_code", None) for answer in answers}
    if codes & {401, 403} or "forbidden" in message.lower() or "unauthorized" in message.lower():
        advice = (
            "You may not do that there. See what you may: kubectl auth can-i create "
            f"daskclusters.kubernetes.dask.org{place}"
        )
    elif 404 in codes or "Custom Resource Definitions" in message:
        advice = f"The Dask operator is not installed in that cluster; ask an admin for: {_INSTALL}"
    elif "Operator running" in message:
        advice = "The operator is installed but does nothing. See: kubectl get pods -A | grep dask"
    else:
        advice = (
            "See that this works: kubectl get pods"
            f"{place}; kubectl and this program read $KUBECONFIG, or else ~/.kube/config"
        )
    return (
        f"parallel.env is 'kube', but no cluster was started: {reasons[0].rstrip('.?')}. {advice}."
    )


def _reasons(error: BaseException) -> list[str]:
    return [f"{type(each).__name__}: {folded(each)}" for each in _chain(error)]


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in found:
        found.append(each)
        each = each.__cause__ or each.__context__
    return found


class _PodWatch:
    """Call it now and then while a cluster starts; it tells what pods wait for.

    Raises:
        ResourceError: from a call, if a pod cannot start.
    """

    def __init__(self, cluster: str, namespace: str | None) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._begin = self._last_look = self._last_message = time.monotonic()
        self._n_broken = 0
        self.state = ""

    def __call__(self) -> None:
        """Look, if it is time to."""
        now = time.monotonic()
        if now - self._last_look < _LOOK_SECONDS:
            return
        self._last_look = now
        states = [_state(pod) for pod in _pods(self._cluster, self._namespace)]
        self.state = "; ".join(states)
        is_broken = any(word in self.state for word in _BROKEN)
        self._n_broken = self._n_broken + 1 if is_broken else 0
        if self._n_broken >= _PATIENCE:
            raise ResourceError(f"A pod of the cluster cannot start. {self.hint()}")
        if now - self._last_message > _MESSAGE_SECONDS:
            self._last_message = now
            waited = now - self._begin
            logger.warning("Waiting for pods since %.0f s. %s", waited, self.hint())

    def hint(self) -> str:
        """Return what is known, and what to try."""
        place = f" -n {self._namespace}" if self._namespace else ""
        return (
            f"Pods: {self.state or 'none yet'}. See: kubectl describe pods{place} "
            f"-l dask.org/cluster-name={self._cluster}"
        )


def _delete_cluster(cluster: str, namespace: str | None) -> None:
    """Delete a DaskCluster, and with it its pods; nothing if there is none."""
    from kr8s.objects import new_class

    kind = new_class(kind="DaskCluster", version="kubernetes.dask.org/v1", namespaced=True)
    try:
        kind(cluster, namespace=namespace).delete()
    except Exception as error:  # the reason why it did not start is more important
        logger.debug("DaskCluster %s was not deleted: %s", cluster, error)


def _pods(cluster: str, namespace: str | None) -> list[dict[str, Any]]:
    from kr8s.objects import Pod

    # It answers late, or not: the start itself will tell.
    with suppress(Exception):
        selector = f"dask.org/cluster-name={cluster}"
        found = Pod.list(namespace=namespace, label_selector=selector)
        return [pod.raw.to_dict() if hasattr(pod.raw, "to_dict") else pod.raw for pod in found]
    return []


def _state(pod: dict[str, Any]) -> str:
    status = pod.get("status", {})
    words = [str(status.get("phase", "unknown"))]
    for container in status.get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            words.append(f"{waiting.get('reason', '')} {waiting.get('message', '')}".strip())
    for condition in status.get("conditions", []):
        if condition.get("status") == "False" and condition.get("reason") == "Unschedulable":
            words.append(f"Unschedulable: {condition.get('message', '')}")
    return f"{pod.get('metadata', {}).get('name', '')} {', '.join(words)}"
