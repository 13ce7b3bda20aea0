"""A local Dask cluster left `OMP_NUM_THREADS=1` behind, for jobs that the program submits later."""

import os

from espnet3.parallel import get_client, parallel_map


def n_threads(_):
    return os.environ.get("OMP_NUM_THREADS")


def test_workers_have_one_thread_and_the_program_keeps_its_own(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    with get_client({"env": "local", "n_workers": 1}):
        assert parallel_map(n_threads, [0]) == ["1"]
    assert "OMP_NUM_THREADS" not in os.environ
    assert os.environ["MKL_NUM_THREADS"] == "7"
