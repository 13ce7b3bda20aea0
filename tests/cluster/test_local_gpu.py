"""One worker per GPU through the real dask-cuda; the GPUs are stand-ins."""

import json

import pytest

from tests.cluster.extras import install_extras
from tests.helpers.phrases import too_few_gpus
from tests.nvml.stand_in import assert_each_has_its_own, build_library, run, uuid

# Patient: what is missing may have to be installed first.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def python():
    """Return an interpreter that has dask-cuda; nothing else needs it."""
    return install_extras("gpu")


@pytest.mark.parametrize(
    ("way", "gpus"), [("runner", ["2", "0", "3"]), ("client", [uuid(3), uuid(1)])]
)
def test_each_worker_sees_its_own_gpu_first(library, tmp_path, python, way, gpus):
    process = run(library, tmp_path, way, len(gpus), setting=",".join(gpus), python=python)
    assert process.returncode == 0, process.stderr
    assert "dask-cuda is installed but cannot" not in process.stderr
    assert "Unable to start CUDA Context" in process.stderr  # said by dask-cuda only
    assert_each_has_its_own(json.loads(process.stdout), gpus)


def test_fewer_workers_are_warned_of_and_more_refused(library, tmp_path, python):
    process = run(library, tmp_path, "client", 2, setting="3,1,0", python=python)
    assert process.returncode == 0, process.stderr
    assert_each_has_its_own(json.loads(process.stdout), ["3", "1"])
    assert "2 workers for 3 visible GPUs: GPU 0 will stay idle" in process.stderr
    (tmp_path / "again").mkdir()
    process = run(library, tmp_path / "again", "client", 4, setting="3,1,0", python=python)
    assert process.returncode == 1
    assert too_few_gpus(4, 3) in process.stderr
