"""Pods of a DaskCluster: their states in Kubernetes' own words, watched during a run."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espnet3.errors import WorkerError

logger = logging.getLogger(__name__)
PATIENCE = 3
"""Looks in a row at which a pod must be broken: a pull that failed once may succeed."""
_ASK_SECONDS = 3.0
_CALM_SECONDS = 15.0  # between two looks while all workers are connected
_ALERT_SECONDS = 60.0  # after a loss: its node may tell why only later, the pod being up again
_MANY_RESTARTS = 5
_MAX_LOGS = 5
_STARTING = ("ContainerCreating", "PodInitializing")
_BROKEN = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ImageInspectError",
    "ErrImageNeverPull",
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
_IMAGE = "See that parallel.options.image is right, and that pods there may pull it"
_ADVICE = {
    "ErrImage": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "InvalidImageName": _IMAGE,
    "CrashLoopBackOff": "Mend what its log shows; the image needs the Python, Dask and ESPnet3 of "
    "this program",
    "CreateContainer": "Mend what its words name: a volume, a Secret or a ConfigMap",
    "Unschedulable": "Ask for what a node has (kubectl describe nodes), or wait",
    "OOMKilled": "Raise parallel.options.resources.limits.memory",
    "EvictionByEvictionAPI": "An administrator empties its node; another one takes its place",
    "PreemptionByScheduler": "Pods of a higher priority need its node; another one is waited for",
    "DeletionByTaintManager": "Its node does not answer; another one takes its place",
    "Evicted": "Ask for what it needs in parallel.options.resources.requests",
}
_SCHEDULER = "Give the Dask scheduler more, in custom_cluster_spec: spec.scheduler"


@dataclass(frozen=True)
class PodState:
    """State of one pod as Kubernetes reports it."""

    name: str
    component: str = "worker"
    phase: str = "Unknown"
    is_ready: bool = False
    reason: str = ""
    """Why it does not run, in a word such as Unschedulable; empty if nothing is wrong."""
    message: str = ""
    ended: str = ""
    """How its container ended last, such as `OOMKilled, exit code 137`."""
    n_restarts: int = 0
    is_leaving: bool = False
    """Whether it is being deleted; another one takes its place."""

    @property
    def is_over(self) -> bool:
        """Tell whether its Deployment makes another one for it; an evicted one is kept for long."""
        return self.is_leaving or self.phase in ("Failed", "Succeeded")

    @property
    def is_broken(self) -> bool:
        """Tell whether waiting will not help."""
        return self.reason in _BROKEN

    @property
    def problem(self) -> str:
        """Reason why it does not run, in full."""
        parts = [self.reason, self.message]
        problem = ": ".join(part for part in parts if part)
        return f"{problem} ({self.ended})" if self.ended and problem else problem or self.ended

    def __str__(self) -> str:
        return f"{self.name} {self.phase}" + (f", {self.problem}" if self.problem else "")


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """Read what matters from a pod as the API server describes it."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    containers = [
        *(status.get(key) or [] for key in ("initContainerStatuses", "containerStatuses"))
    ]
    states = [each for group in containers for each in group]
    conditions = {each.get("type"): each for each in status.get("conditions") or []}
    reason, message = _why_not(status, states, conditions)
    return PodState(
        name=str(metadata.get("name", "")),
        component=str((metadata.get("labels") or {}).get("dask.org/component", "")),
        phase=str(status.get("phase", "Unknown")),
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        reason=reason,
        message=message,
        ended=next(filter(None, map(_ended, states)), ""),
        n_restarts=sum(int(each.get("restartCount") or 0) for each in states),
        is_leaving=bool(metadata.get("deletionTimestamp")),
    )


def _why_not(
    status: Mapping[str, Any], states: Sequence[Any], conditions: Mapping[Any, Any]
) -> tuple[str, str]:
    for each in states:
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting and waiting.get("reason") not in _STARTING:
            return str(waiting.get("reason", "")), str(waiting.get("message", ""))
    if status.get("phase") == "Failed" or status.get("reason"):  # Evicted, NodeLost
        return str(status.get("reason", "Failed")), str(status.get("message", ""))
    # A drained or lost node, a preemption: nothing of it is in the states of containers.
    disruption = conditions.get("DisruptionTarget", {})
    if disruption.get("status") == "True":
        return str(disruption.get("reason", "")), str(disruption.get("message", ""))
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return str(scheduled.get("reason", "")), str(scheduled.get("message", ""))
    return "", ""


def _ended(container: Mapping[str, Any]) -> str:
    for key in ("state", "lastState"):
        ended = (container.get(key) or {}).get("terminated")
        # An OOM kill is a problem even if the container itself ended with 0.
        if ended and (ended.get("exitCode") or ended.get("reason") == "OOMKilled"):
            code = f"exit code {ended.get('exitCode', '?')}"
            return ", ".join(filter(None, [ended.get("reason"), code, ended.get("message")]))
    return ""


def advice_on(pods: Iterable[PodState]) -> str:
    """Return what to do about the first problem that is known; empty if none is."""
    words = [(pod, word) for pod in pods for word in (pod.ended, pod.reason) if word]
    found = (
        # The options are for workers.
        _SCHEDULER if pod.component == "scheduler" and "options.resources" in advice else advice
        for pod, word in words
        for start, advice in _ADVICE.items()
        if word.startswith(start)
    )
    return next(found, "")


@dataclass(frozen=True)
class PodReport:
    """All pods of a cluster at one moment."""

    pods: tuple[PodState, ...] = ()
    is_gone: bool = False
    """Whether the DaskCluster itself is not there any more."""


class PodPoller:
    """Reads the pods in a thread, one look at a time: the API server may answer late.

    Args:
        read: returns a report, or raises.
    """

    def __init__(self, read: Callable[[], PodReport]) -> None:
        self._read = read
        self._report: PodReport | None = None
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Begin to read, unless it is being read."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="pods", daemon=True)
            self._thread.start()

    def take(self) -> PodReport | None:
        """Return the last report, once; None if there is none."""
        report, self._report = self._report, None
        return report

    def _run(self) -> None:
        try:
            self._report = self._read()
        except Exception as error:  # it answers late, or not: the workers tell whether all is well
            logger.debug("The pods could not be read: %s", error)


class PodMonitor:
    """Watches the pods of a cluster during a run; acts only in `look`.

    Args:
        cluster: the name of the DaskCluster.
        namespace: where it is.
        n_workers: how many worker pods were asked for.
        read: returns a report of its pods.
        workers: returns the names of the workers that Dask knows, by address.
        last_lines: returns the end of a pod's log, before its last restart.
    """

    def __init__(
        self,
        cluster: str,
        namespace: str,
        n_workers: int,
        *,
        read: Callable[[], PodReport],
        workers: Callable[[], Mapping[str, str]],
        last_lines: Callable[[str], Sequence[str]],
    ) -> None:
        self._cluster, self._namespace, self._n_workers = cluster, namespace, n_workers
        self._read, self._workers, self._last_lines = read, workers, last_lines
        self._poller = PodPoller(read)
        self._pods: dict[str, PodState] = {}
        self._names: dict[str, str] = {}  # of workers, by the addresses that they ever had
        self._connected: set[str] = set()
        self._told: set[tuple[str, str, int]] = set()
        self._was_connected = self._has_worked = False
        self._n_broken = self._n_gone = 0
        self._last_asked = -_CALM_SECONDS
        self._alert_until = self._not_before = 0.0
        self._n_logs = 0

    def look(self, n_left: int, busy: Collection[str] = ()) -> None:
        """Take what is known of the pods; takes milliseconds.

        Raises:
            WorkerError: no pod can start, or the cluster was deleted.
        """
        known = dict(self._workers())
        self._names.update(known)
        self._connected = set(known.values())
        self._was_connected = self._was_connected or bool(known)
        report = self._poller.take()
        if report is not None:
            self.judge(report)
        now = time.monotonic()
        is_calm = len(self._connected) >= self._n_workers and now > self._alert_until
        if now - self._last_asked >= (_CALM_SECONDS if is_calm else _ASK_SECONDS):
            self._last_asked = now
            self._poller.ask()

    def judge(self, report: PodReport) -> None:
        """Log what is new of the pods, and end the run if none of them can start.

        Raises:
            WorkerError: see `look`.
        """
        self._n_gone = self._n_gone + 1 if report.is_gone else 0
        # Twice, lest a single odd answer end the run.
        if self._n_gone >= 2:
            raise WorkerError(
                f"DaskCluster {self._cluster} is gone: a user deleted it, or the operator did "
                "because it was idle for longer than parallel.options.idle_timeout. Finished "
                "shards are kept.",
                fix="Run the same command again.",
            )
        self._pods = {pod.name: pod for pod in report.pods}
        for pod in report.pods:
            self._tell(pod)
        self._n_broken = self._n_broken + 1 if self._is_hopeless() else 0
        if self._n_broken >= PATIENCE:
            raise self._no_worker_can_start()

    def waiting(self) -> str:
        """Return one line: which pods have no worker yet, why, and what to try."""
        if not self._pods:
            see = f"See: kubectl get pods{self._place} {self._selector}."
            return "" if self._connected else f"Nothing is known of the pods yet. {see}"
        missing = [pod for pod in self._of("worker") if not self._is_connected(pod)]
        schedulers = [pod for pod in self._pods.values() if pod.component == "scheduler"]
        # One that is over counts until there is another.
        schedulers = [pod for pod in self._of("scheduler") or schedulers if pod.problem]
        n_absent = self._n_workers - len(self._of("worker"))
        parts = [f"Pod of the Dask scheduler: {pod}." for pod in schedulers]
        if missing:
            parts.append(f"{len(missing)} of {self._n_workers} pods have no worker: ")
            parts[-1] += f"{_counted(missing)}."
        if n_absent > 0:
            parts.append(
                f"{n_absent} of {self._n_workers} pods were not created, as by a quota. See: "
                f"kubectl get events{self._place}."
            )
        if not parts:
            return ""
        advice = advice_on([*schedulers, *missing])
        parts.append(f"{advice}. " if advice else "")
        parts[-1] += f"See: kubectl describe pods{self._place} {self._selector}."
        return " ".join(parts)

    def describe(self, worker: str) -> tuple[str, str]:
        """Return the pod of the worker at an address; its log is in no file."""
        pod = self._pod_of(worker)
        return (pod.name if pod else "", "")

    def is_leaving(self, worker: str) -> bool:
        """Return False: pods that leave do so at once."""
        return False

    def note_finished(self, worker: str) -> None:
        """Record that a worker finished a shard: pods can work, so later deaths are about items."""
        self._has_worked = True

    def hopeless(self) -> str:
        """Return nothing: `look` raises where pods cannot come."""
        return ""

    def reason_of_loss(self, worker: str) -> str:
        """Return what Kubernetes says of the pod of a worker that left; empty if nothing."""
        name, known = self._names.get(worker, ""), self._pod_of(worker)
        now = time.monotonic()
        self._alert_until = now + _ALERT_SECONDS
        if not name or now < self._not_before:
            return ""
        self._last_asked = -_CALM_SECONDS
        try:
            pods = {pod.name: pod for pod in self._read().pods}
        except Exception:  # waited for once: many workers may leave together
            self._not_before = time.monotonic() + _CALM_SECONDS
            return ""
        if known is None:  # it left before the pods were read for the first time
            over = [pod for pod in pods.values() if pod.is_over and _has_name(pod, name)]
            known = over[0] if over else None
        if known is None:
            return ""
        pod = pods.get(known.name)
        if pod is None:
            return f"its pod {known.name} was deleted"
        if pod.is_leaving:
            why = f", {pod.problem}" if pod.problem else ""
            return f"its pod {pod.name} is being deleted{why}"
        if not pod.problem or (pod.problem, pod.n_restarts) == (known.problem, known.n_restarts):
            return ""
        self._tell(pod)
        return f"its pod {pod.name}: {pod.problem}"

    @property
    def _place(self) -> str:
        return f" -n {self._namespace}" if self._namespace else ""

    @property
    def _selector(self) -> str:
        return f"-l dask.org/cluster-name={self._cluster}"

    def _of(self, component: str) -> list[PodState]:
        pods = [pod for pod in self._pods.values() if pod.component == component]
        return [pod for pod in pods if not pod.is_over]

    def _is_connected(self, pod: PodState) -> bool:
        return any(_has_name(pod, name) for name in self._connected)

    def _pod_of(self, worker: str) -> PodState | None:
        name = self._names.get(worker, "")
        return next((pod for pod in self._pods.values() if name and _has_name(pod, name)), None)

    def _tell(self, pod: PodState) -> None:
        is_over = pod.phase == "Failed" or pod.is_broken or bool(pod.ended and pod.n_restarts)
        key = (pod.name, pod.reason or pod.ended, pod.n_restarts)
        if not is_over or key in self._told:
            return
        self._told.add(key)
        advice = advice_on([pod])
        logger.warning("Pod %s.%s%s", pod, f" {advice}." if advice else "", self._log_of(pod))

    def _log_of(self, pod: PodState) -> str:
        if not pod.ended:
            return ""
        self._n_logs += 1  # each is a question to the API server, and many pods crash alike
        lines = self._last_lines(pod.name) if self._n_logs <= _MAX_LOGS else []
        if not lines:
            return f" Its log: kubectl logs{self._place} {pod.name} --previous"
        return " Its last lines:" + "".join(f"\n  {line}" for line in lines)

    def _is_hopeless(self) -> bool:
        if self._connected or self._has_worked:
            return False
        # Unschedulable pods wait for a node, and may yet get one.
        started = [pod for pod in self._of("worker") if pod.reason != "Unschedulable"]
        if not started or not all(pod.is_broken for pod in started):
            return False
        # Once a worker was there, its deaths are judged by what it died at, for some time.
        restarts = min(pod.n_restarts for pod in started)
        return not self._was_connected or restarts >= _MANY_RESTARTS

    def _no_worker_can_start(self) -> WorkerError:
        broken = [pod for pod in self._of("worker") if pod.is_broken]
        advice = advice_on(broken) or "Mend what its words say"
        return WorkerError(
            f"No worker can start: of {self._n_workers} pods {_counted(broken)}. Finished shards "
            f"are kept.{self._log_of(broken[0])}",
            fix=f"{advice}. See: kubectl describe pods{self._place} {self._selector}",
        )


def _has_name(pod: PodState, worker: str) -> bool:
    """Tell whether a pod is that of a worker: it has the name of its Deployment, and a suffix."""
    return pod.name == worker or pod.name.startswith(f"{worker}-")


def _counted(pods: Sequence[PodState]) -> str:
    """Return what is wrong with pods, the most frequent first, each with its number."""
    words = Counter(pod.problem or f"{pod.phase}, not connected" for pod in pods)
    return "; ".join(f"{word} ({n})" for word, n in words.most_common(3))
