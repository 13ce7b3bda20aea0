"""The watch of a process alone; two ranks are in `tests/integration/test_rank_death.py`."""

import os
import sys
import threading

import lightning.pytorch as pl
import pytest
import torch

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.ranks.rank_link import RankFailure, RankLink
from espnet3.trainer.ranks.rank_watch import LaunchedProcesses, RankWatch, failure_of


@pytest.fixture(autouse=True)
def _not_launched(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def watching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rank-watch"]


def test_nothing_is_left_behind():
    before = dict(os.environ)
    with RankWatch(tick_seconds=0.05):
        assert len(watching()) == 2
    assert watching() == []
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    "error", [KeyError("x"), RuntimeError("gloo: Connection closed by peer"), KeyboardInterrupt()]
)
def test_an_error_of_a_process_alone_passes_at_once(error):
    with pytest.raises(type(error)) as caught, RankWatch(tick_seconds=0.05):
        raise error
    assert caught.value is error
    assert watching() == []


def test_an_error_is_reported_with_the_place_of_its_key(tmp_path):
    file = tmp_path / "training.yaml"
    file.write_text("seed: 1\nbest_model_criterion: valid/loss\n")
    error = ConfigError(key="best_model_criterion", value="valid/loss", problem="but is no list")
    with load_config(str(file)).naming_places(), RankWatch(tick_seconds=0.05) as watch:
        watch.report(error)
        summary = failure_of(error, rank=1).summary
    assert f"best_model_criterion is 'valid/loss' (set in {file}:2)" in summary


def test_one_device_is_not_watched():
    with RankWatch(tick_seconds=0.05) as watch:
        trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False)
        watch.setup(trainer, pl.LightningModule(), "fit")
        for thread in watch._threads:
            thread.join(10)
        assert watching() == []


def test_a_server_that_is_not_up_yet_is_asked_again(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    link = RankLink()
    assert link.connect() is None
    assert (link.rank, link.world_size) == (1, 2)
    link.leave()  # nobody to tell


class LostServer:
    """A store whose server has gone, which nobody has noticed yet."""

    def is_gone(self, seconds=0.0):
        return False

    def suspect(self):
        raise torch.distributed.DistError("Connection reset by peer")


def test_who_is_to_blame_is_awaited_though_the_store_went_with_it(monkeypatch):
    watch = RankWatch(tick_seconds=0.05)
    watch._processes = LaunchedProcesses()
    watch._link.store, watch._link.rank, watch._link.is_in_group = LostServer(), 1, True
    failure = RankFailure(0, "host", 7, "is gone.")
    watch._verdicts.put(failure)
    monkeypatch.setattr(watch, "_end_now", lambda verdict: sys.exit(verdict.name))
    with pytest.raises(SystemExit) as ended:
        watch.report(RuntimeError("gloo: Connection closed by peer"))
    assert ended.value.code == failure.name
