"""A relative `output_dir` broke when `forward` changed the working directory."""

import os

import pytest

from espnet3.parallel import BaseRunner, use_parallel
from tests.helpers.providers import Provider


class Wanderer(BaseRunner):
    @staticmethod
    def forward(idx):
        os.chdir("/")
        return idx


@pytest.mark.parametrize("n_workers", [1, 2])
def test_forward_may_change_the_working_directory(tmp_path, monkeypatch, n_workers):
    monkeypatch.chdir(tmp_path)
    with use_parallel({"n_workers": n_workers}):
        path = Wanderer(Provider(), output_dir="exp/out")(range(100))
    assert os.getcwd() == str(tmp_path)
    assert len(path.read_text().split()) == 100


def test_dask_workers_may_be_started_elsewhere(tmp_path, monkeypatch, dask_address):
    monkeypatch.chdir(tmp_path)
    with use_parallel({"env": "dask", "options": {"address": dask_address}}):
        path = Wanderer(Provider(), output_dir="exp/out")(range(20))
    assert len(path.read_text().split()) == 20
