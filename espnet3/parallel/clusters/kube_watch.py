"""What the pods of a Kubernetes cluster wait for, while it starts."""

import logging
import time
from contextlib import suppress
from typing import Any

from espnet3.errors import ResourceError

logger = logging.getLogger(__name__)
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


class PodWatch:
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


def delete_cluster(cluster: str, namespace: str | None) -> None:
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
