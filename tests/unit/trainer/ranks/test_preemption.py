"""What `fit` ends with after a signal; two ranks are in `tests/integration/test_rank_death.py`."""

import os
import signal
import sys

import lightning.pytorch as pl
import pytest
import torch

from espnet3.errors import RunInterrupted
from espnet3.trainer.ranks.preemption import Preemption


class Module(pl.LightningModule):
    """Sends signals to its own process, and may sum gradients over steps."""

    def __init__(self, signals: dict[int, int], accumulate: int = 1) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.layer = torch.nn.Linear(2, 1)
        self.signals = signals
        self.signals_in_validation: dict[int, int] = {}
        self.accumulate = accumulate
        self.n_steps = 0

    def on_validation_model_zero_grad(self):
        """Keep the sum of gradients."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch, batch_idx):
        self.manual_backward(self.layer(batch).sum())
        if (batch_idx + 1) % self.accumulate == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()
        if batch_idx in self.signals:
            os.kill(os.getpid(), self.signals[batch_idx])
        self.n_steps += 1

    def validation_step(self, batch, batch_idx):
        if self.n_steps in self.signals_in_validation:
            os.kill(os.getpid(), self.signals_in_validation[self.n_steps])


@pytest.fixture(autouse=True)
def _signals_of_others():
    """Give back SIGUSR1 and SIGUSR2, which stay ignored in a process that is to end."""
    previous = {n: signal.getsignal(n) for n in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


def send_sigterm_in_training(preemption: Preemption, error: Exception | None = None) -> None:
    with preemption.handling():
        preemption.on_train_start(pl.Trainer(accelerator="cpu", logger=False), Module({}))
        os.kill(os.getpid(), signal.SIGTERM)
        if error:
            raise error


def send_sigterm_and_exit(preemption: Preemption) -> None:
    with preemption.handling():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            sys.exit(1)


def fit(preemption: Preemption, module: Module, **options) -> None:
    torch.set_num_threads(1)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[preemption],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )
    valid = torch.ones(3, 4, 2) if module.signals_in_validation else None
    with preemption.handling():
        trainer.fit(module, torch.ones(10, 4, 2), valid)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGUSR1, 75), (signal.SIGUSR2, 75), (signal.SIGTERM, 143), (signal.SIGINT, 130)],
)
def test_saves_at_the_end_of_the_step_and_ends_with_the_code(number, code):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    saved = []
    module = Module({3: number})
    with pytest.raises(RunInterrupted) as caught:
        fit(Preemption(lambda trainer: saved.append(trainer.global_step)), module)
    assert caught.value.code == code
    assert saved == [4]
    assert module.n_steps == 4
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_waits_for_a_moment_without_half_summed_gradients():
    saved = []
    module = Module({3: signal.SIGUSR1}, accumulate=3)
    with pytest.raises(RunInterrupted):
        fit(Preemption(lambda trainer: saved.append(trainer.global_step)), module)
    assert module.n_steps == 6
    assert saved == [2]


@pytest.mark.parametrize(
    ("accumulate", "patience", "n_steps"), [(1, 20.0, 4), (3, 20.0, 6), (3, 0.0, 4)]
)
def test_a_validation_within_a_window_is_ended_only_if_it_takes_long(
    monkeypatch, accumulate, patience, n_steps
):
    monkeypatch.setattr("espnet3.trainer.ranks.preemption._PATIENCE_SECONDS", patience)
    saved = []
    module = Module({}, accumulate)
    module.signals_in_validation = {4: signal.SIGUSR1}
    preemption = Preemption(lambda trainer: saved.append(trainer.global_step))
    with pytest.raises(RunInterrupted):
        fit(preemption, module, val_check_interval=4)
    assert module.n_steps == n_steps
    assert saved == [n_steps // accumulate]


def test_without_a_signal_nothing_happens():
    module = Module({})
    fit(Preemption(lambda trainer: pytest.fail("saved")), module)
    assert module.n_steps == 10


def test_a_save_that_fails_is_an_error():
    def save(trainer: pl.Trainer) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fit(Preemption(save), Module({3: signal.SIGUSR1}))


def test_a_signal_at_the_very_end_still_ends_with_its_code():
    with pytest.raises(RunInterrupted) as caught:
        send_sigterm_in_training(Preemption(lambda trainer: None))
    assert caught.value.code == 143


def test_what_lightning_makes_of_an_interrupt_gets_its_code_back():
    with pytest.raises(RunInterrupted) as caught:
        send_sigterm_and_exit(Preemption(lambda trainer: None))
    assert caught.value.code == 143


def test_other_exits_stay_what_they_are():
    with pytest.raises(SystemExit) as caught, Preemption(lambda trainer: None).handling():
        sys.exit(3)
    assert caught.value.code == 3
    assert not isinstance(caught.value, RunInterrupted)


def test_workers_that_the_same_signal_has_ended_are_no_failure():
    error = RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")
    with pytest.raises(RunInterrupted) as caught:
        send_sigterm_in_training(Preemption(lambda trainer: None), error)
    assert caught.value.code == 143


def test_a_worker_that_dies_by_itself_is_an_error():
    with pytest.raises(RuntimeError, match="killed"), Preemption(lambda trainer: None).handling():
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
