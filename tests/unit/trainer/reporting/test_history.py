"""The history of a run: what is logged, resumed, and left after a kill."""

import json
import math
import os
import signal

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from espnet3.trainer.reporting.history import HistoryEntry, names, read_history, series
from espnet3.trainer.reporting.loggers import History
from espnet3.trainer.reporting.summary import ThroughputMonitor
from tests.helpers import clean_process
from tests.helpers.report_parts import Loader, Module, fit


def write(path, *entries: HistoryEntry) -> None:
    path.write_text("".join(entry.to_line() + "\n" for entry in entries))


def test_each_log_point_and_each_validation_is_a_line(tmp_path):
    fit(tmp_path, [History(tmp_path), ThroughputMonitor()], train=Loader(6), max_epochs=2)
    history = read_history(tmp_path)
    assert [(e.step, e.epoch, "valid/loss" in e.values) for e in history] == [
        (2, 1, False), (4, 1, False), (6, 1, False), (6, 1, True),
        (8, 2, False), (10, 2, False), (12, 2, False), (12, 2, True),
    ]  # fmt: skip
    assert series(history, "valid/loss") == ([6, 12], [3.0, 2.0])
    assert {"train/loss", "train/acc", "perf/step_seconds"} <= set(history[0].values)
    assert history[0].time < history[-1].time


def test_lines_beyond_the_restored_step_are_dropped(tmp_path):
    keeper = ModelCheckpoint(tmp_path, every_n_train_steps=4, save_top_k=-1, filename="{step}")
    fit(tmp_path, [History(tmp_path), keeper], max_epochs=2, enable_checkpointing=True)
    before = read_history(tmp_path)
    callbacks = [History(tmp_path)]
    fit(tmp_path, callbacks, max_epochs=2, ckpt_path=tmp_path / "step=8.ckpt", max_steps=10)
    after = read_history(tmp_path)
    assert [e.step for e in before] == [2, 4, 6, 6, 8, 10, 12, 12]
    assert [e.step for e in after] == [2, 4, 6, 6, 8, 10]
    assert after[:5] == before[:5]
    assert after[5].time > before[5].time


def test_a_run_that_starts_anew_starts_its_history_anew(tmp_path):
    write(tmp_path / "history.jsonl", HistoryEntry(50, 3, 0.0, {"train/loss": 1.0}, batch=50))
    fit(tmp_path, [History(tmp_path)], max_epochs=1)
    assert [e.step for e in read_history(tmp_path)] == [2, 4, 6, 6]


def test_a_torn_line_and_garbage_are_skipped_and_gone_after_a_resume(tmp_path):
    path = tmp_path / "history.jsonl"
    good = HistoryEntry(0, 1, 5.0, {"train/loss": 2.0})
    path.write_bytes(
        good.to_line().encode()
        + b'\n\x00\x00\x00\n[1]\n{"step": 1}\n\xff\xfe\n{"step": 0, "epoch": 1, "ti'
    )
    assert read_history(path) == [good]
    fit(tmp_path, [History(tmp_path)], max_epochs=1)
    for line in path.read_text().splitlines():
        json.loads(line)
    assert read_history(path)[0] == good


def test_a_value_that_is_not_finite_is_null_and_read_as_nan(tmp_path):
    path = tmp_path / "history.jsonl"
    write(path, HistoryEntry(1, 1, 0.0, {"a": math.nan, "b": -math.inf, "c": 0.123456789}))
    assert json.loads(path.read_text())["values"] == {"a": None, "b": None, "c": 0.1234568}
    assert math.isnan(read_history(path)[0].values["a"])


def test_a_missing_history_is_empty(tmp_path):
    assert read_history(tmp_path) == []
    assert read_history(tmp_path / "nothing.jsonl") == []


def test_of_a_step_that_comes_twice_the_last_counts():
    twice = [HistoryEntry(1, 1, 0.0, {"a": 2.0}), HistoryEntry(1, 1, 1.0, {"a": 3.0, "b": 1.0})]
    assert series(twice, "a") == ([1], [3.0])
    assert names(twice) == ["a", "b"]


class Killed(Module):
    """Dies in its sixth step."""

    def training_step(self, batch, batch_idx):
        if self.trainer.global_step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        super().training_step(batch, batch_idx)


def test_a_kill_leaves_all_lines_that_were_logged(tmp_path):
    code = clean_process.exit_code(fit, tmp_path, [History(tmp_path)], module=Killed())
    assert code == -signal.SIGKILL
    assert [e.step for e in read_history(tmp_path)] == [2, 4]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_told_once_and_the_training_goes_on(tmp_path, caplog):
    (tmp_path / "history.jsonl").symlink_to("/dev/full")

    class Full(History):
        def on_train_start(self, trainer, pl_module):
            self._trainer, self._file = trainer, open("/dev/full", "w")  # noqa: SIM115

    trainer = fit(tmp_path, [Full(tmp_path)], max_epochs=2)
    assert trainer.global_step == 12
    told = [r.getMessage() for r in caplog.records if "history.jsonl" in r.getMessage()]
    assert len(told) == 1
    assert "No space left" in told[0]


def test_users_without_a_logger_may_still_use_one(tmp_path):
    class Talkative(Module):
        def on_train_start(self):
            self.logger.experiment.add_audio("a", None, 0)

    trainer = fit(tmp_path, [History(tmp_path)], module=Talkative(), max_epochs=1)
    assert trainer.loggers == []  # as it was
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.jsonl"]
