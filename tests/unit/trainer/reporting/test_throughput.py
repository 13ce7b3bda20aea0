"""The figures of speed, waiting and padding; on one rank and on two."""

import logging
import math
import os
import socket

import pytest
import torch

from espnet3.trainer.reporting import summary
from espnet3.trainer.reporting.history import read_history, series
from espnet3.trainer.reporting.loggers import History
from espnet3.trainer.reporting.progress import TrainingProgress
from espnet3.trainer.reporting.summary import LogWindow, ThroughputMonitor
from tests.helpers import clean_process
from tests.helpers.report_parts import Info, Loader, Module, fit


def first(tmp_path, **arguments):
    fit(tmp_path, [ThroughputMonitor(), History(tmp_path)], **({"max_epochs": 1} | arguments))
    return read_history(tmp_path)[0].values


class Clock:
    """Stands still, except for what a batch of the module takes."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(summary, "perf_counter", clock)
    return clock


class Timed(Module):
    """Takes half a second for a batch, and a minute for one of a validation."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def training_step(self, batch, batch_idx):
        self.clock.now += 0.5
        super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.clock.now += 60


def test_the_figures_are_those_of_the_loader_over_the_time_of_the_steps(tmp_path, clock):
    info = Info(n_samples=4, seconds=30.0, padded_seconds=40.0, wait_seconds=0.05)
    values = first(tmp_path, module=Timed(clock), train=Loader(8, info), log_every_n_steps=8)
    assert values["perf/step_seconds"] == pytest.approx(0.5)
    assert values["perf/audio_seconds_per_second"] == pytest.approx(60)
    assert values["perf/samples_per_second"] == pytest.approx(8)
    assert values["perf/data_wait_share"] == pytest.approx(0.1)
    assert values["perf/padding_share"] == pytest.approx(0.25)
    assert 0.05 < values["perf/memory_gb"] < 50
    assert values["lr/optimizer"] == pytest.approx(0.1)
    assert values["grad_norm/optimizer"] == pytest.approx(1.5)


def test_a_loader_of_another_kind_gives_what_can_be_known(tmp_path):
    data = torch.utils.data.TensorDataset(torch.randn(12, 3))

    class OfTensors(Module):
        def training_step(self, batch, batch_idx):
            super().training_step({"x": batch[0]}, batch_idx)

    loader = torch.utils.data.DataLoader(data, batch_size=3)
    values = first(tmp_path, module=OfTensors(), train=loader, valid=[])
    assert values["perf/samples_per_second"] == pytest.approx(3 / values["perf/step_seconds"], 1e-3)
    assert "perf/audio_seconds_per_second" not in values
    assert "perf/data_wait_share" not in values
    assert "perf/padding_share" not in values


def test_the_time_of_validations_is_left_out(tmp_path, clock):
    callbacks = [ThroughputMonitor(), History(tmp_path)]
    fit(tmp_path, callbacks, module=Timed(clock), val_check_interval=1, max_epochs=2)
    _, steps = series(read_history(tmp_path), "perf/step_seconds")
    assert steps == [0.5] * 6


def test_several_optimizers_have_a_rate_and_a_norm_each(tmp_path):
    module = Module(optimizers=("generator", "discriminator"))
    module.last_gradient_norms["discriminator"] = math.nan  # has not stepped yet
    values = first(tmp_path, module=module)
    assert {k for k in values if k.startswith(("lr", "grad"))} == {
        "lr/generator", "lr/discriminator", "grad_norm/generator",
    }  # fmt: skip


def test_an_epoch_shorter_than_the_interval_is_logged_all_the_same(tmp_path, caplog):
    with caplog.at_level("INFO"):
        fit(tmp_path, [ThroughputMonitor(), History(tmp_path)], log_every_n_steps=50)
    assert series(read_history(tmp_path), "train/loss")[0] == [6, 12]
    assert "log_every_n_steps is 50, but an epoch has only 6 batches" in caplog.text


def test_unknown_seconds_spoil_only_their_own_window():
    window = LogWindow()
    window.add(1.0, Info(seconds=None, padded_seconds=None), None)
    window.add(1.0, Info(), None)
    assert math.isnan(window.seconds)
    assert (window.n_batches, window.n_samples, window.elapsed) == (2, 8, 2.0)


def run_rank(folder, rank: int, port: int) -> None:
    """Be one of two ranks, as torchrun would start it."""
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
    }  # fmt: skip
    handler = logging.FileHandler(folder / f"rank{rank}.log")
    logging.getLogger("espnet3").addHandler(handler)
    logging.getLogger("espnet3").setLevel("INFO")
    info = Info(n_samples=4, seconds=[10.0, 30.0][rank], padded_seconds=40.0)
    callbacks = [ThroughputMonitor(), History(folder), TrainingProgress()]
    fit(folder, callbacks, train=Loader(4, info), strategy="ddp", devices=2, max_epochs=1)


def test_two_ranks_give_one_figure_and_speak_with_one_voice(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ranks = [clean_process.start(run_rank, tmp_path, rank, port) for rank in range(2)]
    for process in ranks:
        process.join(60)
    for process in ranks:
        process.kill()  # one that hangs
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    history = read_history(tmp_path)
    assert [e.step for e in history] == [2, 4, 4]  # rank 0 alone has written
    values = history[0].values
    wall = values["perf/step_seconds"]
    assert values["perf/audio_seconds_per_second"] == pytest.approx(40 / wall, rel=1e-3)
    assert values["perf/samples_per_second"] == pytest.approx(8 / wall, rel=1e-3)
    assert values["perf/padding_share"] == pytest.approx(0.5, rel=1e-3)
    said = (tmp_path / "rank0.log").read_text()
    assert "16 items in 4 batches per epoch and rank; 2 ranks (cpu, DDP)" in said
    assert "Validation at epoch 1/1" in said
    assert (tmp_path / "rank1.log").read_text() == ""
