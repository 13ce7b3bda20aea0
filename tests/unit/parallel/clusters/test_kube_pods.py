"""Pods as the API server describes them, and what a run makes of it; without Kubernetes."""

import logging

import pytest

from espnet3.errors import WorkerError
from espnet3.parallel.clusters import kube_pods
from espnet3.parallel.clusters.kube_pods import PATIENCE, PodMonitor, PodReport, PodState, pod_state
from tests.helpers.waiting import wait_until

ROOM = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


def pod(name="a-default-worker-0-x", component="worker", **status):
    labels = {"dask.org/component": component}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def waits(reason, message=""):
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def ended(reason, code, n_restarts=1, **state):
    last = {"terminated": {"reason": reason, "exitCode": code}}
    return {"state": state, "lastState": last, "restartCount": n_restarts}


UNSCHEDULABLE = {
    "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": ROOM,
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "told", "is_broken"),
    [
        ({"phase": "Pending", "conditions": [UNSCHEDULABLE]}, f"Unschedulable: {ROOM}", False),
        (
            {"phase": "Pending", "containerStatuses": [waits("ImagePullBackOff", "Back-off")]},
            "ImagePullBackOff: Back-off",
            True,
        ),
        ({"phase": "Pending", "containerStatuses": [waits("ContainerCreating")]}, "", False),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "Evicted", False),
        ({"phase": "Pending", "initContainerStatuses": [waits("ErrImagePull")]}, "ErrImage", True),
        ({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}, "", False),
        ({}, "", False),
    ],
)
def test_why_a_pod_does_not_run_is_told_in_the_words_of_kubernetes(status, told, is_broken):
    state = pod_state(pod(**status))
    assert state.problem.startswith(told)
    assert bool(state.problem) == bool(told)
    assert state.is_broken == is_broken


def test_the_end_of_a_container_is_read_from_where_kubernetes_keeps_it():
    state = pod_state(pod(phase="Running", containerStatuses=[ended("OOMKilled", 137)]))
    assert (state.ended, state.n_restarts) == ("OOMKilled, exit code 137", 1)
    now = {"state": {"terminated": {"reason": "Error", "exitCode": 1}}}
    assert pod_state(pod(phase="Running", containerStatuses=[now])).ended == "Error, exit code 1"
    well = ended("Completed", 0)
    assert pod_state(pod(phase="Running", containerStatuses=[well])).ended == ""


class Kubernetes:
    """Reports the pods that a test gives it, and logs of them."""

    def __init__(self, *pods):
        self.report = PodReport(tuple(pods))
        self.workers = {}
        self.n_asked = 0
        self.monitor = PodMonitor(
            "a", "speech", 2, read=self.read, workers=lambda: self.workers, last_lines=self.log
        )

    def read(self):
        self.n_asked += 1
        return self.report

    def log(self, pod):
        return [f"the last words of {pod}"]

    def judge(self, n_times=1):
        for _ in range(n_times):
            self.monitor.judge(self.report)


def state(number=0, **known):
    return PodState(f"a-default-worker-{number}-x", **{"phase": "Pending", **known})


CRASHES = {"reason": "CrashLoopBackOff", "ended": "Error, exit code 1", "n_restarts": 3}


TAINTED = {
    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
    "message": "Taint manager: deleting due to NoExecute taint",
}  # fmt: skip


def leaving(*conditions):
    found = pod(phase="Running", conditions=list(conditions))
    found["metadata"]["deletionTimestamp"] = "2026-11-18T10:00:00Z"
    return pod_state(found)


@pytest.mark.parametrize(
    ("conditions", "told"),
    [((), "is being deleted"), ((TAINTED,), "is being deleted, DeletionByTaintManager: Taint")],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_a_pod_that_is_being_deleted_is_told_with_the_reason(conditions, told, is_known):
    kube = Kubernetes(state(0, phase="Running"))
    kube.workers = {"tcp://1": "a-default-worker-0"}
    kube.monitor.look(1)
    if is_known:
        kube.judge()
    kube.report = PodReport((leaving(*conditions),))
    assert told in kube.monitor.reason_of_loss("tcp://1")


@pytest.mark.parametrize("old", [leaving(), state(0, phase="Failed", reason="Evicted")])
def test_a_pod_that_was_replaced_counts_no_more(old):
    """An evicted one is kept for long, one on a lost node is Terminating until that is back."""
    broken = {"reason": "ImagePullBackOff"}
    new = PodState("a-default-worker-0-y", phase="Pending", **broken)
    kube = Kubernetes(old, new, state(1, **broken))
    kube.judge(PATIENCE - 1)
    assert kube.monitor.waiting().startswith("2 of 2 pods have no worker: ImagePullBackOff (2)")
    with pytest.raises(WorkerError, match="No worker can start"):
        kube.judge()


def test_a_scheduler_without_memory_is_not_told_to_change_what_workers_have():
    killed = PodState("a-scheduler-x", "scheduler", ended="OOMKilled, exit code 137")
    assert "spec.scheduler" in kube_pods.advice_on([killed])


def test_workers_that_cannot_start_end_the_run_after_some_looks_with_log_and_advice():
    kube = Kubernetes(state(0, **CRASHES), state(1, **CRASHES))
    kube.judge(PATIENCE - 1)
    with pytest.raises(WorkerError, match="the last words of a-default-worker-0-x") as error:
        kube.judge()
    assert "CrashLoopBackOff (Error, exit code 1) (2)" in str(error.value)
    assert "kubectl describe pods -n speech -l dask.org/cluster-name=a" in error.value.fix


@pytest.mark.parametrize(
    "others",
    [
        [state(1, phase="Running", is_ready=True)],
        [state(1)],
        [state(1, reason="ImagePullBackOff"), state(2, phase="Running")],
    ],
)
def test_while_another_pod_may_still_come_a_broken_one_does_not_end_the_run(others):
    Kubernetes(state(0, **CRASHES), *others).judge(2 * PATIENCE)


def test_a_node_that_is_waited_for_never_ends_the_run_here():
    Kubernetes(state(0, reason="Unschedulable", message=ROOM)).judge(2 * PATIENCE)


def test_pods_that_have_worked_may_crash_for_longer():
    """An item that kills its worker is found by what that died at, which takes some deaths."""
    kube = Kubernetes(state(0, **CRASHES))
    kube.monitor.note_finished("tcp://1")
    kube.judge(2 * PATIENCE)


def test_a_cluster_that_was_deleted_ends_the_run():
    kube = Kubernetes()
    kube.report = PodReport(is_gone=True)
    kube.judge()
    with pytest.raises(WorkerError, match="DaskCluster a is gone"):
        kube.judge()


def test_what_pods_wait_for_is_counted_and_advised():
    kube = Kubernetes(*(state(i, reason="Unschedulable", message=ROOM) for i in range(2)))
    kube.judge()
    waiting = kube.monitor.waiting()
    assert f"2 of 2 pods have no worker: Unschedulable: {ROOM} (2)" in waiting
    assert "kubectl describe nodes" in waiting


def test_pods_that_were_not_created_and_a_scheduler_in_trouble_are_told():
    scheduler = PodState("a-scheduler-1", "scheduler", "Failed", reason="Evicted", message="disk")
    kube = Kubernetes(scheduler, state(0, phase="Running"))
    kube.workers = {"tcp://1": "a-default-worker-0"}
    kube.monitor.look(1)
    kube.judge()
    waiting = kube.monitor.waiting()
    assert "Dask scheduler: a-scheduler-1 Failed, Evicted: disk" in waiting
    assert "1 of 2 pods were not created" in waiting


def test_before_pods_are_known_it_is_said_where_to_see_them():
    assert "kubectl get pods -n speech -l dask.org" in Kubernetes().monitor.waiting()


def test_an_api_server_that_is_away_is_asked_once_when_workers_leave():
    kube = Kubernetes(*(state(i, phase="Running") for i in range(2)))
    kube.workers = {f"tcp://{i}": f"a-default-worker-{i}" for i in range(2)}
    kube.monitor.look(5)
    kube.judge()
    wait_until(lambda: kube.n_asked == 1, 60)
    kube.report = None  # `read` returns something without pods, which fails as a question does
    assert [kube.monitor.reason_of_loss(f"tcp://{i}") for i in range(2)] == ["", ""]
    assert kube.n_asked == 2


def test_nothing_is_waited_for_when_all_workers_are_connected():
    kube = Kubernetes(state(0, phase="Running"), state(1, phase="Running"))
    kube.workers = {f"tcp://{i}": f"a-default-worker-{i}" for i in range(2)}
    kube.monitor.look(5)
    kube.judge()
    assert kube.monitor.waiting() == ""
    assert kube.monitor.describe("tcp://1") == ("a-default-worker-1-x", "")


def test_a_pod_whose_container_was_killed_is_logged_once_with_advice(caplog):
    caplog.set_level(logging.WARNING)
    killed = {"phase": "Running", "ended": "OOMKilled, exit code 137", "n_restarts": 1}
    kube = Kubernetes(state(0, **killed), state(1, phase="Failed", reason="Evicted"))
    kube.judge(3)
    first, second = (each.getMessage() for each in caplog.records)
    assert "OOMKilled, exit code 137" in first
    assert "resources.limits.memory" in first
    assert "Evicted" in second


def test_a_lost_worker_is_explained_by_what_is_new_of_its_pod():
    kube = Kubernetes(state(0, phase="Running"))
    kube.workers = {"tcp://1": "a-default-worker-0"}
    kube.monitor.look(1)
    kube.judge()
    assert kube.monitor.reason_of_loss("tcp://1") == ""
    killed = state(0, phase="Running", ended="OOMKilled, exit code 137", n_restarts=1)
    kube.report = PodReport((killed,))
    assert "OOMKilled" in kube.monitor.reason_of_loss("tcp://1")
    kube.report = PodReport()
    assert "was deleted" in kube.monitor.reason_of_loss("tcp://1")
    assert kube.monitor.reason_of_loss("tcp://2") == ""


def test_a_pod_that_is_up_again_before_its_end_is_known_is_still_explained(monkeypatch, caplog):
    monkeypatch.setattr(kube_pods, "_ASK_SECONDS", 0.0)
    kube = Kubernetes(state(0, phase="Running"), state(1, phase="Running"))
    kube.workers = {f"tcp://{i}": f"a-default-worker-{i}" for i in range(2)}
    kube.monitor.look(5)
    kube.judge()
    assert kube.monitor.reason_of_loss("tcp://1") == ""
    kube.monitor.look(5)
    killed = state(1, phase="Running", ended="OOMKilled, exit code 137", n_restarts=1)
    kube.report = PodReport((kube.report.pods[0], killed))

    def is_told():
        kube.monitor.look(5)
        return "OOMKilled, exit code 137" in caplog.text

    wait_until(is_told)


def test_pods_are_read_in_the_background_and_judged_at_the_next_look():
    kube = Kubernetes(state(0, reason="Unschedulable", message=ROOM))
    kube.monitor.look(1)
    wait_until(lambda: kube.n_asked == 1, 60)

    def is_known():
        kube.monitor.look(1)
        return ROOM in kube.monitor.waiting()

    wait_until(is_known, 60)
