"""The training loop of ESPnet3 and bare ones of PyTorch, by turns, with the same batches."""

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from espnet3.config.load import load_config

N_ROUNDS = 5

_STEPS_PER_TURN = 5

Clocks = tuple[float, float]
"""Seconds by the clock, and of the CPU."""


class BareLoop:
    """What one would write by hand: forward, backward, clipping, step.

    Args:
        model: Takes a batch, or what it names of one.
        batches: Of torch's DataLoader.
        clip: The largest norm of the gradients.
        make_scheduler: Of an optimizer, for a learning rate that changes with each step.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Iterable[Mapping[str, Any]],
        *,
        lr: float = 1e-4,
        weight_decay: float = 0.01,
        clip: float = 1.0,
        inputs: Iterable[str] | None = None,
        make_scheduler: Callable[[Any], Any] | None = None,
    ) -> None:
        self.model = model
        self.rng = torch.get_rng_state()
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
        self._scheduler = make_scheduler(self._optimizer) if make_scheduler else None
        self._batches = iter(batches)
        self._inputs = inputs
        self._clip = clip

    def step(self) -> Clocks:
        """Do a step, and return how long it took. What it draws is nothing to the other loop."""
        others = torch.get_rng_state()
        torch.set_rng_state(self.rng)
        begin = clocks()
        batch = next(self._batches)
        inputs = batch if self._inputs is None else {name: batch[name] for name in self._inputs}
        loss, _, _ = self.model(**inputs)
        self._backward(loss)
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        self._optimizer.zero_grad()
        # A loop frees the graph of a loss when the next takes its place, as ours does: 0.1 ms.
        del loss, inputs, batch
        taken = since(begin)
        self.rng = torch.get_rng_state()
        torch.set_rng_state(others)
        return taken

    def _backward(self, loss: torch.Tensor) -> None:
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)


class AccelerateLoop(BareLoop):
    """The same with `accelerate`, as its guide has it."""

    def __init__(
        self, model: nn.Module, batches: Iterable[Mapping[str, Any]], *, clip: float = 1.0
    ) -> None:
        from accelerate import Accelerator

        super().__init__(model, (), clip=clip)
        self._accelerator = Accelerator(cpu=True)
        prepared = self._accelerator.prepare(model, self._optimizer, batches)
        self.model, self._optimizer, loader = prepared
        self._batches = iter(loader)

    def _backward(self, loss: torch.Tensor) -> None:
        self._accelerator.backward(loss)
        self._accelerator.clip_grad_norm_(self.model.parameters(), self._clip)


@dataclass
class Steps:
    """Seconds of each step of both loops, by the clock and of the CPU."""

    per_round: int
    ours: list[Clocks] = field(default_factory=list)
    bare: list[Clocks] = field(default_factory=list)
    beside: list[Clocks] = field(default_factory=list)
    """Of a third loop, if there is one."""

    def least(self, clock: int) -> tuple[float, float]:
        """Return the milliseconds of a step of both: the mean of a round that nothing disturbs.

        Each step of that round is the shortest of those at its place in all rounds but the first.
        """
        return self._undisturbed(self.ours, clock), self._undisturbed(self.bare, clock)

    def least_beside(self, clock: int) -> float:
        """Return the milliseconds of a step of the third loop."""
        return self._undisturbed(self.beside, clock)

    def _undisturbed(self, steps: list[Clocks], clock: int) -> float:
        places = [steps[i + self.per_round :: self.per_round] for i in range(self.per_round)]
        return 1e3 * statistics.mean(min(step[clock] for step in place) for place in places)


class InterruptedLoader:
    """A loader; after every few of its batches the bare loop has its turn, and a third if there is.

    So what else the machine does meets all alike.
    """

    def __init__(
        self, loader: Any, bare: BareLoop, per_round: int, beside: BareLoop | None = None
    ) -> None:
        self.steps = Steps(per_round)
        self._loader = loader
        self._others = [(bare, self.steps.bare)]
        self._others += [(beside, self.steps.beside)] if beside else []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for loop, _ in self._others:
            loop.rng = torch.get_rng_state()
        begin = clocks()
        for number, batch in enumerate(self._loader):
            if number:
                self.steps.ours.append(since(begin))
            # Log points are in the middle of a turn, with what TensorBoard's thread does then.
            if number % _STEPS_PER_TURN == _STEPS_PER_TURN // 2:
                self.let_others(_STEPS_PER_TURN)
            begin = clocks()
            yield batch

    def let_others(self, n_steps: int) -> None:
        """Let the other loops do so many steps, or what is left."""
        for loop, steps in self._others:
            steps += [loop.step() for _ in range(min(n_steps, len(self) - len(steps)))]

    def finish(self, model: nn.Module) -> Steps:
        """Let the other loops do the rest; all must end with the same weights, to the last bit."""
        self.let_others(len(self))
        for loop, _ in self._others:
            for own, other in zip(model.parameters(), loop.model.parameters(), strict=True):
                assert torch.equal(own, other), "the loops have not done the same"
        return self.steps


def clocks() -> Clocks:
    """Return what both clocks say."""
    return time.perf_counter(), time.process_time()


def since(begin: Clocks) -> Clocks:
    """Return what passed by both clocks."""
    wall, cpu = clocks()
    return wall - begin[0], cpu - begin[1]


def compare(
    model: nn.Module,
    loader: Any,
    bare: BareLoop,
    config: Mapping[str, Any],
    per_round: int,
    *,
    beside: BareLoop | None = None,
) -> Steps:
    """Train with both loops by turns, ours as the stage `train` does it: all its callbacks.

    Args:
        model: With the weights of the bare loop's.
        loader: Gives the batches of `1 + N_ROUNDS` rounds, the first of which warms up.
        bare: The other loop.
        config: Of the training, but for its folder, epochs and threads.
        per_round: Steps of a round.
        beside: A third loop.
    """
    from espnet3.trainer.config import load_training_config
    from espnet3.trainer.fit import Fit, TrainingParts
    from espnet3.trainer.optimization.optimization_config import OptimizationConfig
    from espnet3.trainer.reporting.summary import StartupTimes

    by_turns = InterruptedLoader(loader, bare, per_round, beside)
    with tempfile.TemporaryDirectory() as folder, _lines_in(Path(folder) / "train.log"):
        path = Path(folder) / "training.yaml"
        path.write_text(yaml.safe_dump(_whole(config, folder)))
        loaded = load_config(path)
        keys, optimization = load_training_config(loaded), OptimizationConfig.from_config(loaded)
        parts = TrainingParts(model, by_turns)
        Fit(keys, optimization, lambda: parts, StartupTimes()).run()
    return by_turns.finish(model)


def compare_lightning(
    model: nn.Module, loader: Any, bare: BareLoop, per_round: int, *, clip: float = 1.0
) -> Steps:
    """Train with Lightning alone and the bare loop by turns; the loss is logged in each step."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any) -> torch.Tensor:
            loss: torch.Tensor = self.model(**batch)[0]
            self.log("train/loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.01)

    by_turns = InterruptedLoader(loader, bare, per_round)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            gradient_clip_val=clip,
            default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), by_turns)
    return by_turns.finish(model)


def _whole(config: Mapping[str, Any], folder: str) -> dict[str, Any]:
    trainer = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
        "enable_progress_bar": False,
        **config["trainer"],
    }
    return {**config, "exp_dir": f"{folder}/exp", "num_threads": 1, "trainer": trainer}


@contextmanager
def _lines_in(path: Path) -> Iterator[None]:
    """Write the lines of a training to a file only, as they would be without a terminal."""
    ours = logging.getLogger("espnet3")
    before = ours.handlers, ours.level, ours.propagate
    file = logging.FileHandler(path)
    ours.handlers, ours.propagate = [file], False
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        ours.handlers, ours.propagate = before[0], before[2]
        ours.setLevel(before[1])
        file.close()
