"""Monitors that nobody logs end a run before its first step, with the line to write."""

import pytest
from lightning.pytorch.callbacks import EarlyStopping
from omegaconf import OmegaConf

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.reporting.monitors import (
    Monitor,
    MonitorCheck,
    refuse_without_validation,
)
from tests.helpers.report_parts import Loader, Module, fit


class Counting(Module):
    n_steps = 0

    def training_step(self, batch, batch_idx):
        Counting.n_steps += 1
        super().training_step(batch, batch_idx)


def run(tmp_path, *monitors: Monitor, more=(), **arguments) -> int:
    """Return the number of training steps that were done."""
    Counting.n_steps = 0
    arguments = {"max_epochs": 1, "module": Counting(), **arguments}
    fit(tmp_path, [MonitorCheck(monitors), *more], **arguments)
    return Counting.n_steps


def criterion(name: str) -> Monitor:
    return Monitor(name, "best_model_criterion.0", "best_model_criterion: [[{}, 3, min]]")


def test_monitors_that_are_logged_pass(tmp_path):
    assert run(tmp_path, criterion("valid/loss"), criterion("train/loss")) == 6


@pytest.mark.parametrize(
    ("name", "meant"),
    [("valid/los", "valid/loss"), ("val_loss", "valid/loss"), ("loss", "valid/loss"),
     ("valid/accuracy", "valid/acc"), ("validation/acc", "valid/acc")],
)  # fmt: skip
def test_a_misspelt_one_is_refused_before_the_first_step(tmp_path, name, meant):
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, criterion(name))
    assert Counting.n_steps == 0
    text = str(caught.value)
    assert f"best_model_criterion.0 is '{name}', but the sanity check logged no such metric" in text
    assert f"Did you mean '{meant}'?" in text
    assert "Logged are: valid/acc, valid/loss." in text
    assert f"Write: best_model_criterion: [[{meant}, 3, min]]" in text
    assert "set trainer.num_sanity_val_steps: 0" in text


def test_the_place_in_the_config_is_named(tmp_path):
    file = tmp_path / "training.yaml"
    OmegaConf.save({"best_model_criterion": [["valid/cer", 3, "min"]]}, file)
    place = r"\(set in .*training.yaml:\d"
    with pytest.raises(ConfigError, match=place), load_config([file]).naming_places():
        run(tmp_path, criterion("valid/cer"))


def test_without_a_sanity_check_the_first_validation_decides(tmp_path):
    with pytest.raises(ConfigError, match="but a validation logged no such metric"):
        run(tmp_path, criterion("valid/cer"), num_sanity_val_steps=0)
    assert Counting.n_steps == 6


def test_a_monitor_of_the_training_is_looked_for_after_the_first_log_point(tmp_path):
    message = "the first logged steps logged no such metric. Did you mean 'train/loss'?"
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        run(tmp_path, criterion("train/los"), log_every_n_steps=3)
    assert Counting.n_steps == 3


def test_a_monitor_of_the_training_is_found_at_the_end_of_a_short_epoch(tmp_path):
    with pytest.raises(ConfigError, match="train/cer"):
        run(tmp_path, criterion("train/cer"), log_every_n_steps=6, valid=[])


def test_a_monitor_of_validations_needs_one(tmp_path):
    with pytest.raises(ConfigError, match="no validation that could log it") as caught:
        run(tmp_path, criterion("valid/loss"), valid=[])
    assert "dataset.valid" in str(caught.value)
    assert "best_model_criterion: [[train/loss, 3, min]]" in str(caught.value)
    assert Counting.n_steps == 0


def test_callbacks_of_the_user_are_checked_before_they_fail_in_their_own_words(tmp_path):
    stopping = EarlyStopping("valid/lss")
    monitor = Monitor(stopping.monitor, "trainer.callbacks.1.monitor", "monitor: {}")
    with pytest.raises(ConfigError, match=r"trainer\.callbacks\.1\.monitor is 'valid/lss'") as e:
        run(tmp_path, monitor, more=[stopping], num_sanity_val_steps=0)
    assert "Write: monitor: valid/loss" in str(e.value)


def test_a_metric_that_a_callback_logs_counts(tmp_path):
    class Scoring(Module):
        def on_validation_epoch_end(self):
            super().on_validation_epoch_end()
            self.log("wer", 0.5)

    assert run(tmp_path, criterion("wer"), module=Scoring(), train=Loader(2)) == 0


def test_a_validation_that_is_switched_off_is_told_so(tmp_path):
    with pytest.raises(ConfigError, match=r"no validation .*Delete trainer\.limit_val_batches: 0"):
        run(tmp_path, criterion("valid/loss"), limit_val_batches=0)
    assert Counting.n_steps == 0


def test_monitors_of_training_need_no_validation():
    refuse_without_validation([criterion("train/loss")])
    with pytest.raises(ConfigError, match=r"Give a validation set \(dataset\.valid\)"):
        refuse_without_validation([criterion("train/loss"), criterion("valid/loss")])
