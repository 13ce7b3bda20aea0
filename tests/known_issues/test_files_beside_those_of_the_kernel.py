"""A model in /dev/shm, or in a folder whose name begins like /proc, was never compared."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from espnet3.config.fingerprint import _OF_THE_KERNEL
from espnet3.errors import StaleRunError
from espnet3.parallel import BaseRunner
from tests.helpers.providers import Provider


class Runner(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx


@pytest.fixture
def in_memory():
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm")
    folder = tempfile.mkdtemp(dir="/dev/shm")
    yield Path(folder)
    shutil.rmtree(folder)


def test_another_model_in_shared_memory_is_noticed(in_memory, tmp_path):
    model = in_memory / "model.pt"
    model.write_text("old")
    run = Runner(Provider(params={"model": str(model)}), output_dir=tmp_path / "out")
    run(range(3))
    model.write_text("new weights")
    with pytest.raises(StaleRunError, match="model"):
        Runner(Provider(params={"model": str(model)}), output_dir=tmp_path / "out")(range(3))


@pytest.mark.parametrize("path", ["/devel/model.pt", "/processed/a", "/system/a", "/dev/shm/a"])
def test_names_that_only_begin_like_those_of_the_kernel_are_compared(path):
    assert not _OF_THE_KERNEL.match(path)


@pytest.mark.parametrize("path", ["/dev/null", "/proc/1/maps", "/sys", "/dev/shmem/a"])
def test_files_of_the_kernel_are_not(path):
    assert _OF_THE_KERNEL.match(path)
