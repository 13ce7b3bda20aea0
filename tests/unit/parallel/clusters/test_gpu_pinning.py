"""The GPUs that a worker sees are those of its job."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.parallel.clusters.gpus import choose_gpus


def choose(worker="SGECluster-0", locks=None, **environ):
    return choose_gpus({key: str(value) for key, value in environ.items()}, worker, locks=locks)


@pytest.mark.parametrize("given", ["0", "1,0", "GPU-5ebe9f43,GPU-ac33420d", "MIG-1", "NoDevFiles"])
def test_what_the_scheduler_gave_is_left_alone(given):
    assert choose(CUDA_VISIBLE_DEVICES=given, ESPNET3_JOB_GPUS=1).visible is None


def test_names_of_htcondor_are_made_usable():
    pinning = choose(CUDA_VISIBLE_DEVICES="CUDA0,CUDA3")
    assert pinning.visible == "0,3"
    assert "the scheduler gave CUDA0,CUDA3" in pinning.message


def test_without_a_request_nothing_is_done():
    assert choose().visible is None
    assert choose().message == ""


@pytest.mark.parametrize(("number", "visible"), [(0, None), (1, "1,2,0"), (2, "2,0,1")])
def test_workers_that_share_a_job_see_their_own_gpu_first(number, visible):
    name = f"SLURMCluster-7-{number}"
    pinning = choose(name, CUDA_VISIBLE_DEVICES="0,1,2", ESPNET3_JOB_WORKERS=3)
    assert pinning.visible == visible


def test_workers_of_a_node_take_different_gpus(tmp_path):
    settings = {"ESPNET3_JOB_GPUS": 2, "ESPNET3_NODE_GPUS": 4, "locks": tmp_path}
    first, second = choose(**settings), choose(**settings)
    assert (first.visible, second.visible) == ("0,1", "2,3")
    assert not first.is_warning
    third = choose(**settings)
    assert third.is_warning
    assert third.visible is None
    assert "other workers hold all but 0 of its 4 GPUs" in third.message
    for lock in first.locks:
        lock.close()  # its process ended
    assert choose(**settings).visible == "0,1"


def test_workers_that_share_a_job_share_its_gpus(tmp_path):
    settings = {"ESPNET3_JOB_GPUS": 2, "ESPNET3_JOB_WORKERS": 2, "ESPNET3_NODE_GPUS": 8}
    chosen = [choose(f"SGECluster-0-{i}", locks=tmp_path, **settings) for i in range(2)]
    assert [each.visible for each in chosen] == ["0", "1"]


def test_other_nodes_have_other_locks(tmp_path, monkeypatch):
    settings = {"ESPNET3_JOB_GPUS": 1, "ESPNET3_NODE_GPUS": 1, "locks": tmp_path}
    first = choose(**settings)
    monkeypatch.setattr(socket, "gethostname", lambda: "node2")  # /tmp may be shared
    assert choose(**settings).visible == first.visible == "0"


def test_a_killed_worker_gives_its_gpu_back(tmp_path):
    program = (
        "import os, pathlib; from espnet3.parallel.clusters.gpus import choose_gpus; "
        f"held = choose_gpus(os.environ, 'w', locks=pathlib.Path({str(tmp_path)!r})); "
        "print(held.visible, flush=True); input()"
    )
    environ = {"ESPNET3_JOB_GPUS": "1", "ESPNET3_NODE_GPUS": "2", "PYTHONPATH": ":".join(sys.path)}
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    worker = subprocess.Popen([sys.executable, "-c", program], env=environ, **pipe)
    settings = {"ESPNET3_JOB_GPUS": 1, "ESPNET3_NODE_GPUS": 2, "locks": tmp_path}
    assert worker.stdout.readline() == "0\n"
    beside = choose(**settings)
    worker.kill()
    worker.communicate()
    assert (beside.visible, choose(**settings).visible) == ("1", "0")


def test_a_node_whose_gpus_cannot_be_counted_is_told_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setattr("espnet3.parallel.clusters.gpus.visible_gpus", list)
    pinning = choose(ESPNET3_JOB_GPUS=1, locks=tmp_path)
    assert pinning.is_warning
    assert "job_script_prologue: ['export ESPNET3_NODE_GPUS=4']" in pinning.message


def test_a_lock_folder_of_somebody_else_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 12345)  # who has none, and may not own the new one
    pinning = choose(ESPNET3_JOB_GPUS=1, ESPNET3_NODE_GPUS=2)
    Path("/tmp/espnet3-gpus-12345").rmdir()
    assert pinning.is_warning
    assert "/tmp/espnet3-gpus-12345 is not ours" in pinning.message


@pytest.mark.parametrize(
    ("n_workers", "given", "expected"),
    [(2, "0", ["0", "0"]), (4, "0,1", ["0", "1", "0", "1"]), (3, "2,5", ["2", "5", "2"])],
)
def test_more_workers_than_gpus_in_a_job_share_them_in_turn(n_workers, given, expected):
    settings = {"CUDA_VISIBLE_DEVICES": given, "ESPNET3_JOB_WORKERS": n_workers}
    chosen = [choose(f"SLURMCluster-7-{i}", **settings) for i in range(n_workers)]
    assert [(each.visible or given).split(",")[0] for each in chosen] == expected


@pytest.mark.parametrize(
    ("n_workers", "n_gpus", "expected"), [(2, 1, ["0", "0"]), (4, 2, ["0", "1", "0", "1"])]
)
def test_where_no_gpu_is_named_a_job_still_takes_no_more_than_it_asked_for(
    tmp_path, n_workers, n_gpus, expected
):
    settings = {"ESPNET3_JOB_GPUS": n_gpus, "ESPNET3_NODE_GPUS": 4, "locks": tmp_path}
    shared = {**settings, "ESPNET3_JOB_WORKERS": n_workers}
    chosen = [choose(f"SGECluster-0-{i}", **shared) for i in range(n_workers)]
    assert [each.visible for each in chosen] == expected
    beside = choose("SGECluster-1-0", **shared)  # of another job
    assert beside.visible == str(n_gpus)
    for lock in chosen[0].locks:
        lock.close()  # its process ended, and the nanny starts another
    assert choose("SGECluster-0-0", **shared).visible == "0"
    for each in (*chosen, beside):
        for lock in each.locks:
            lock.close()
    assert choose(**settings).visible.startswith("0")
