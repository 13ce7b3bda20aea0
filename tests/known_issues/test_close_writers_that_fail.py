"""A `close_writers` that fails was tried for ever with `on_error: skip`, or was an IndexError."""

import os

import pytest

from espnet3.errors import ProviderError, WorkerError
from espnet3.parallel import BaseRunner, use_parallel
from tests.helpers.providers import Provider


class BadClose(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx

    @staticmethod
    def close_writers(writers, how):
        writers.close()
        if how == "raise":
            raise ValueError("boom")
        if how == "exit":
            os._exit(3)
        return {"seen": {1, 2}}

    def merge(self, shard_dirs):
        return None


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(("how", "words"), [("raise", "boom"), ("set", "JSON cannot hold")])
def test_the_run_stops_with_what_it_said(tmp_path, on_error, how, words):
    with pytest.raises(ProviderError, match=words):
        BadClose(Provider(how=how), output_dir=tmp_path, on_error=on_error)(range(5))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_worker_that_dies_there_blames_no_item(tmp_path, on_error):
    with use_parallel({"n_workers": 2, "retries": 1}):
        with pytest.raises(WorkerError, match="close_writers"):
            BadClose(Provider(how="exit"), output_dir=tmp_path, on_error=on_error)(range(5))
