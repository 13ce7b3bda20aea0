"""What a log says of a training, and what a terminal shows."""

import logging
import os
import pty
import re
import struct
import sys
import termios
from fcntl import ioctl

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from espnet3.logs import open_stage_log
from espnet3.trainer.reporting import progress
from espnet3.trainer.reporting.progress import (
    BestValues,
    TrainingPosition,
    TrainingProgress,
    describe_training,
    time_left,
)
from espnet3.trainer.reporting.summary import ThroughputMonitor
from tests.helpers import clean_process
from tests.helpers.report_parts import Loader, Module, fit


@pytest.fixture
def lines(caplog, monkeypatch):
    """Return what was said; there is a line for each log point, however fast they come."""
    monkeypatch.setattr(progress, "_MOST_OFTEN", 0.0)
    caplog.set_level("INFO", "espnet3")
    return lambda: [r.getMessage() for r in caplog.records if r.name == progress.__name__]


def test_a_log_tells_start_steps_validations_epochs_and_the_end(tmp_path, lines):
    fit(tmp_path, [ThroughputMonitor(), TrainingProgress(bar=False)], log_every_n_steps=3)
    said = lines()
    assert said[0] == (
        "Training Sequential: 11 parameters (all trainable), 44 B; 24 items in 6 batches per "
        "epoch; 1 process on cpu, precision 32-true; from the start, until 2 epochs\n"
        "  encoder  Linear  8  73%\n"
        "  head     Linear  3  27%"
    )
    step = (
        r"Epoch 1/2, batch 3/6, step 3: loss [\d.e-]+, acc [\d.e-]+, lr 0.1, grad norm 1.5; "
        r"[\d,]+ audio s/s, [\d.e-]+ s/batch, [\d.]+% waiting for data, 20% padding, [\d.]+ GB; "
        r"[\d.]+ s left"
    )
    assert re.fullmatch(step, said[1]), said[1]
    assert said[2].startswith("Epoch 1/2, batch 6/6, step 6: loss ")
    first = r"Validation at epoch 1/2, step 6: loss 3 \(best so far\), acc 3; [\d.]+ s"
    assert re.fullmatch(first, said[3])
    assert re.fullmatch(r"Epoch 1/2 done in [\d.]+ s, [\d.]+ s of it validation", said[4])
    second = r"Validation at epoch 2/2, step 12: loss 2 \(best so far; before: 3\), acc 2; [\d.]+ s"
    assert re.fullmatch(second, said[7])
    assert re.fullmatch(r"Trained 12 steps in [\d.]+ s; best valid/loss 2 at step 12", said[9])
    assert len(said) == 10


def test_a_run_that_goes_on_says_so_and_knows_its_best(tmp_path, lines):
    keeper = ModelCheckpoint(tmp_path, filename="last", save_on_train_epoch_end=True)
    callbacks = [TrainingProgress(bar=False), keeper]
    fit(tmp_path, callbacks, max_epochs=2, enable_checkpointing=True)
    n_before = len(lines())
    module = Module()
    module.valid_losses = [2.5]
    fit(
        tmp_path, [TrainingProgress(bar=False)], module=module, max_epochs=3, valid=Loader(2),
        ckpt_path=tmp_path / "last.ckpt",
    )  # fmt: skip
    said = lines()[n_before:]
    assert "; continued from epoch 3, step 12, until 3 epochs\n" in said[0]
    assert "step 18: loss 2.5 (best: 2 at step 12), acc 2.5" in said[-3]
    assert said[-1].startswith("Trained 6 steps in ")


def test_log_points_that_are_far_apart_still_give_a_line_a_minute(tmp_path, lines, monkeypatch):
    now = [0.0]

    def monotonic():
        return now[0]

    class Slow(Module):
        def training_step(self, batch, batch_idx):
            now[0] += 25
            super().training_step(batch, batch_idx)

    monkeypatch.setattr(progress, "monotonic", monotonic)
    arguments = {"train": Loader(12), "log_every_n_steps": 8, "valid": []}
    fit(tmp_path, [TrainingProgress(bar=False)], module=Slow(), max_epochs=1, **arguments)
    said = [re.match(r"Epoch 1/1, batch (\d+)/12", line) for line in lines()]
    assert [int(match[1]) for match in said if match] == [3, 6, 8, 11]
    assert any("3 min 45 s left" in line for line in lines())


def test_log_points_that_come_in_a_flood_give_a_line_a_second(tmp_path, lines, monkeypatch):
    monkeypatch.setattr(progress, "_MOST_OFTEN", 60.0)
    fit(tmp_path, [TrainingProgress(bar=False)], train=Loader(20), log_every_n_steps=1)
    assert sum("batch" in line for line in lines()[1:]) <= 2


def train_and_fail(folder) -> None:
    class Failing(Module):
        def training_step(self, batch, batch_idx):
            if batch_idx == 3:
                raise ValueError("of the model")
            super().training_step(batch, batch_idx)

    before = sys.stderr
    with pytest.raises(ValueError, match="of the model"):
        fit(folder, [TrainingProgress()], module=Failing())
    assert sys.stderr is before
    print("seen")


def test_an_error_of_the_training_takes_the_bar_away_and_is_seen(tmp_path):
    shown = clean_process.call(run_on_terminal, train_and_fail, 80, tmp_path)
    assert any("Epoch 1/2" in line for line in shown)
    assert [line for line in shown if line][-1] == "seen"


def test_no_bar_where_the_user_wants_none_or_there_is_no_terminal(tmp_path, capfd):
    fit(tmp_path, [TrainingProgress(bar=True)])
    assert "━" not in "".join(capfd.readouterr())
    shown = clean_process.call(run_on_terminal, fit, 80, tmp_path, [TrainingProgress(bar=False)])
    assert "━" not in "".join(shown)


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_a_bar_and_the_log_file_has_the_lines(tmp_path, columns):
    shown = clean_process.call(run_on_terminal, train_on_terminal, columns, tmp_path)
    bars = [line for line in shown if "━" in line]
    assert any(re.search(r"Epoch 1/2 .*6/6 .*loss \S+  [\d,]+ audio s/s ", b) for b in bars), bars
    assert any(re.search(r"Epoch 2/2 .*valid 3 ", b) for b in bars)
    assert any(b.startswith("Validation") for b in bars)
    assert all(len(b) <= columns for b in bars)
    assert ("step 6  loss" in "".join(bars)) == (columns == 120)
    assert any("Validation at epoch 2/2, step 12: loss 2 (best so far" in line for line in shown)
    assert any("shown above the bar" in line for line in shown)
    log = (tmp_path / "train.log").read_text()
    assert "Epoch 2/2, batch 4/6, step 10: loss" in log
    assert not any("batch 4/6, step 10: loss" in line for line in shown)


def train_on_terminal(folder) -> None:
    """Run in a process whose stderr is a terminal."""
    from espnet3 import logs

    progress._MOST_OFTEN = 0.0

    class Printing(Module):
        def on_train_epoch_end(self):
            print("shown above the bar")

    logging.getLogger().handlers.clear()  # those of pytest
    logging.getLogger("espnet3").handlers.clear()
    logs.make_visible()
    with open_stage_log(folder / "train.log"):
        fit(folder, [ThroughputMonitor(), TrainingProgress()], module=Printing())


def run_on_terminal(run, columns: int, *args) -> list[str]:
    """Return the lines that a terminal was shown, without its escape sequences."""
    pid, terminal = pty.fork()
    if pid == 0:
        for name in ("stdout", "stderr"):  # pytest has put files in their place
            setattr(sys, name, open(1 + (name == "stderr"), "w", closefd=False))  # noqa: SIM115
        os.environ |= {"TERM": "xterm", "COLUMNS": str(columns)}
        code = 1
        try:
            run(*args)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    text = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux says so at the end
            part = b""
        if not part:
            break
        text += part
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, text.decode()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.decode())
    return [line.rstrip() for line in re.split(r"[\r\n]+", plain)]


def test_the_best_value_follows_its_mode_and_is_never_nan():
    best = BestValues({"valid/acc": "max"})
    nan = float("nan")
    said = [best.describe({"valid/acc": v}, i) for i, v in enumerate([nan, 0.5, nan, 0.4, 0.6])]
    assert said == [
        "acc nan",
        "acc 0.5 (best so far)",
        "acc nan (best: 0.5 at step 1)",
        "acc 0.4 (best: 0.5 at step 1)",
        "acc 0.6 (best so far; before: 0.5)",
    ]


def test_the_loss_comes_first_wherever_a_model_puts_it():
    assert describe_training({"train/acc": 0.5, "train/loss": 1.0}) == "loss 1, acc 0.5"
    said = BestValues({}).describe({"valid/acc": 0.5, "valid/loss": 1.0}, 3)
    assert said == "loss 1, acc 0.5"


def test_losses_of_several_optimizers_are_named():
    values = {"train/generator/loss": 1.0, "lr/generator": 0.1, "lr/discriminator": 0.2}
    assert describe_training({**values, "perf/samples_per_second": 12.0}) == (
        "generator/loss 1, lr generator 0.1, lr discriminator 0.2; 12 samples/s"
    )


def test_a_training_without_end_has_no_time_left():
    here = TrainingPosition(1, None, 5, None, 5, None)
    assert str(here) == "epoch 1, batch 5, step 5"
    assert time_left(here.seconds_left(here, 10.0)) == ""
