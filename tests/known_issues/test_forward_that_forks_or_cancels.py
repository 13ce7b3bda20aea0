"""A child that `forward` forked went on as a second driver; a CancelledError ended the worker."""

import asyncio
import os
import sys

import pytest

from espnet3.parallel import BaseRunner, Failure, use_parallel
from tests.helpers import clean_process
from tests.helpers.providers import Provider


class Forks(BaseRunner):
    @staticmethod
    def forward(idx):
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        return idx


class Cancels(BaseRunner):
    @staticmethod
    def forward(idx):
        if idx == 3:
            raise asyncio.CancelledError("stopped")
        return idx


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_forked_child_ends_where_it_exits(tmp_path, n_workers):
    path = clean_process.call(run_forks, tmp_path, n_workers)
    assert path.read_text().split() == ["0", "1", "2", "3"]


def run_forks(folder, n_workers):
    with use_parallel({"n_workers": n_workers}):
        return Forks(Provider(), output_dir=folder)(range(4))


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_cancelled_item_is_a_failed_item(n_workers):
    with use_parallel({"n_workers": n_workers}):
        results = Cancels(Provider(), on_error="skip")(range(5))
    assert isinstance(results[3], Failure)
    assert "CancelledError: stopped" in results[3].error
