"""The rate of an earlier run, read from a real run folder."""

import json
import shutil
import time

import pytest

from espnet3.parallel import BaseRunner
from espnet3.shards.layout import DONE
from espnet3.shards.status import read_rate


class Provider:
    def build_env_local(self):
        time.sleep(0.05)
        return {}

    def build_worker_setup_fn(self):
        return self.build_env_local


class Sleep(BaseRunner):
    @staticmethod
    def forward(idx):
        time.sleep(0.002)
        return {"idx": idx}


@pytest.fixture
def run(awkward):
    """A finished run of 32 items of 2 s of audio each, in 16 shards."""
    Sleep(Provider(), output_dir=awkward)(range(32), durations=[2.0] * 32)
    return awkward


def test_the_rate_of_a_finished_run(run):
    rate = read_rate(run)
    assert rate.n_items == 32
    assert rate.seconds_per_item >= 0.002
    assert rate.real_time_factor == pytest.approx(rate.seconds_per_item / 2)
    assert rate.load_seconds >= 0.05
    assert len(rate.hosts) == 1
    assert 0 <= time.time() - rate.finished < 600


def test_an_unfinished_run_tells_the_rate_of_what_is_done(run):
    whole = read_rate(run)
    (run / "_SUCCESS.json").unlink()
    for shard in ("split.00", "split.07"):
        done = json.loads((run / shard / DONE).read_text())
        (run / shard / DONE).write_text(json.dumps({**done, "seconds": 10.0, "load_seconds": 0.0}))
    for shard in run.glob("split.*"):
        if shard.name not in ("split.00", "split.07"):
            shutil.rmtree(shard)
    rate = read_rate(run)
    assert rate.n_items < whole.n_items
    assert rate.seconds_per_item == pytest.approx(20 / rate.n_items)
    assert rate.real_time_factor == pytest.approx(10 / rate.n_items)
    assert rate.load_seconds is None


def test_a_run_whose_shards_were_removed_tells_it_too(run):
    whole = read_rate(run)
    for shard in run.glob("split.*"):
        shutil.rmtree(shard)
    rate = read_rate(run)
    assert rate.seconds_per_item == pytest.approx(whole.seconds_per_item, abs=0.001)
    assert rate.load_seconds is None


def test_a_folder_without_a_run_tells_nothing(tmp_path):
    assert read_rate(tmp_path) is None


def test_a_run_that_has_only_begun_tells_nothing(run):
    (run / "_SUCCESS.json").unlink()
    for shard in run.glob("split.*"):
        shutil.rmtree(shard)
    assert read_rate(run) is None
