"""One worker per GPU without dask-cuda; the GPUs are those of a stand-in for the driver's library.

With dask-cuda: `tests/cluster/test_local_gpu.py`.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.errors import ConfigError
from espnet3.parallel import BaseRunner, use_parallel
from espnet3.parallel.clusters.local_gpu import uses_dask_cuda, worker_variables
from espnet3.parallel.detached.submit import process_variables
from espnet3.parallel.parallel import as_parallel_config
from tests.helpers.exhaustive import few
from tests.helpers.phrases import too_few_gpus
from tests.helpers.providers import Provider
from tests.helpers.waiting import wait_until
from tests.nvml.stand_in import assert_each_has_its_own, build_library, environment, run, uuid


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("nvml"))


def visible(library, n_gpus, setting, lost=None):
    """Ask another process, which can load the stand-in."""
    code = "from espnet3.parallel.clusters.gpus import visible_gpus; print(*visible_gpus())"
    process = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(library, n_gpus, setting, lost),
        capture_output=True,
        text=True,
    )
    return process.stdout.split() if process.returncode == 0 else process.stderr


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, ["0", "1", "2", "3"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,0", ["2", "0"]),
        ("0,-1,2", ["0"]),
        ("1,7", ["1"]),
        ("1,1", []),
        (" 3 , 1", ["3", "1"]),
        ("CUDA0", ["0"]),
        (f"{uuid(3)},{uuid(1)}", [uuid(3), uuid(1)]),
        (uuid(2)[:12], [uuid(2)]),
        (uuid(2)[:8], []),  # could be any of them
        ("MIG-1111,MIG-2222", ["MIG-1111", "MIG-2222"]),
    ],
)
def test_gpus_are_counted_as_cuda_counts_them(library, setting, expected):
    assert visible(library, 4, setting) == expected


def test_a_gpu_that_does_not_answer_is_told_unless_it_is_left_out(library):
    told = visible(library, 3, None, lost=1)
    assert "GPU 1 of this machine does not answer (GPU is lost)" in told
    assert "export CUDA_VISIBLE_DEVICES=0,2" in told
    assert visible(library, 3, "0,2", lost=1) == ["0", "2"]


@pytest.mark.parametrize("way", ["runner", "client"])
def test_each_worker_sees_its_own_gpu_first_and_its_model_goes_there(library, tmp_path, way):
    process = run(library, tmp_path, way, 3, setting=f"2,0,{uuid(3)}")
    assert process.returncode == 0, process.stderr
    assert_each_has_its_own(json.loads(process.stdout), ["2", "0", uuid(3)])
    assert "idle" not in process.stderr


@pytest.mark.parametrize("way", few(["runner", "client"], 1))
def test_fewer_workers_than_gpus_are_warned_of_once(library, tmp_path, way):
    process = run(library, tmp_path, way, 2)
    assert process.returncode == 0, process.stderr
    assert_each_has_its_own(json.loads(process.stdout), ["0", "1"])
    told = "2 workers for 4 visible GPUs: GPU 2, 3 will stay idle. To use all, set "
    assert process.stderr.count(told + "parallel.n_workers: 4") == 1


@pytest.mark.parametrize("way", few(["runner", "client"], 1))
def test_more_workers_than_gpus_are_refused_before_any_is_started(library, tmp_path, way):
    process = run(library, tmp_path, way, 5, setting="0,1")
    assert process.returncode == 1
    assert f"ResourceError: {too_few_gpus(5, 2)}" in process.stderr
    assert "(CUDA_VISIBLE_DEVICES='0,1'). Set n_workers: 2 or make more" in process.stderr
    assert not list((tmp_path / "meeting").iterdir())


@pytest.mark.parametrize("way", few(["runner", "client"], 1))
def test_two_workers_for_each_gpu_share_it(library, tmp_path, way):
    process = run(library, tmp_path, way, 4, setting="0,1", per_gpu=2)
    assert process.returncode == 0, process.stderr
    found = json.loads(process.stdout)
    assert [each["own"] for each in found] == ["0", "0", "1", "1"]
    assert {tuple(each["visible"]) for each in found} == {("0", "1"), ("1", "0")}
    assert "ignores it" not in process.stderr


def test_more_workers_than_places_on_gpus_are_refused(library, tmp_path):
    process = run(library, tmp_path, "runner", 5, setting="0,1", per_gpu=2)
    assert process.returncode == 1
    assert f"ResourceError: {too_few_gpus(5, 2)}" in process.stderr
    assert "workers_per_gpu: 2. Set n_workers: 4 or" in process.stderr


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr("espnet3.parallel.clusters.gpus.visible_gpus", lambda _: ["4", "5"])


def block(n_workers, **options):
    return as_parallel_config({"env": "local_gpu", "n_workers": n_workers, "options": options})


@pytest.mark.parametrize(
    ("n_workers", "first"), [(4, ["4", "5", "4", "5"]), (3, ["4", "5", "4"]), (1, ["4"])]
)
def test_workers_take_gpus_in_turn(two_gpus, n_workers, first):
    variables = worker_variables(block(n_workers, workers_per_gpu=2))
    assert [each["CUDA_VISIBLE_DEVICES"].split(",")[0] for each in variables] == first


def test_detached_workers_that_join_take_the_places_that_are_free(two_gpus):
    free = process_variables(block(4, workers_per_gpu=2), ["4", "5", "4"])
    assert [each["CUDA_VISIBLE_DEVICES"] for each in free] == ["5,4"]
    assert process_variables(block(2), ["5"]) == [
        {"CUDA_VISIBLE_DEVICES": "4,5", "LOCAL_RANK": "0"}
    ]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "two"])
def test_a_share_that_is_no_number_is_refused(two_gpus, value):
    with pytest.raises(ConfigError, match="workers_per_gpu: 2"):
        worker_variables(block(2, workers_per_gpu=value))


def test_an_option_of_dask_cuda_does_not_go_with_shared_gpus(two_gpus, monkeypatch):
    monkeypatch.setattr("espnet3.parallel.clusters.local_gpu.has_dask_cuda", lambda: True)
    config = block(4, workers_per_gpu=2, rmm_pool_size="1GB")
    with pytest.raises(ConfigError, match="Delete one of them: rmm_pool_size or workers_per_gpu"):
        worker_variables(config)
    assert not uses_dask_cuda(config)
    assert uses_dask_cuda(block(2))


class Fragile(BaseRunner):
    """Waits for two workers, or three once an item has killed one; that happens once."""

    @staticmethod
    def forward(idx, meeting):
        gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        (Path(meeting) / f"{gpu} {os.getpid()}").touch()
        # The one that is left could do all items before the new one is there.
        n_workers = (
            3 if Path(meeting, "killed").exists() else 2
        )  # else one could do all that is left
        wait_until(lambda: sum("," in name for name in os.listdir(meeting)) >= n_workers, 120)
        if idx == 7 and not Path(meeting, "killed").exists():
            Path(meeting, "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return gpu


def test_a_worker_that_is_replaced_hands_its_gpu_on(tmp_path, monkeypatch):
    monkeypatch.setattr("espnet3.parallel.clusters.gpus.visible_gpus", lambda _: ["4", "5"])
    monkeypatch.setattr("espnet3.parallel.clusters.local_gpu.has_dask_cuda", lambda: False)
    with use_parallel({"env": "local_gpu", "n_workers": 2}):
        found = Fragile(Provider(meeting=str(tmp_path)))(range(20))
    assert set(found) == {"4,5", "5,4"}
    seen = [name.split()[0] for name in os.listdir(tmp_path) if name != "killed"]
    assert sorted(seen) in (["4,5", "4,5", "5,4"], ["4,5", "5,4", "5,4"])
