"""The training loop of ESPnet3 and a bare one of PyTorch, by turns, with the same batches."""

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
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        self._optimizer.zero_grad()
        taken = since(begin)
        self.rng = torch.get_rng_state()
        torch.set_rng_state(others)
        return taken


@dataclass
class Steps:
    """Seconds of each step of both loops, by the clock and of the CPU."""

    per_round: int
    ours: list[Clocks] = field(default_factory=list)
    bare: list[Clocks] = field(default_factory=list)

    def least(self, clock: int) -> tuple[float, float]:
        """Return the milliseconds of a step of both: the mean of a round that nothing disturbs.

        Each step of that round is the shortest of those at its place in all rounds but the first.
        """
        return self._undisturbed(self.ours, clock), self._undisturbed(self.bare, clock)

    def _undisturbed(self, steps: list[Clocks], clock: int) -> float:
        places = [steps[i + self.per_round :: self.per_round] for i in range(self.per_round)]
        return 1e3 * statistics.mean(min(step[clock] for step in place) for place in places)


class InterruptedLoader:
    """Our loader; after every few of its batches the bare loop has its turn.

    So what else the machine does meets both alike.
    """

    def __init__(self, loader: Any, bare: BareLoop, per_round: int) -> None:
        self.steps = Steps(per_round)
        self._loader = loader
        self._bare = bare

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._bare.rng = torch.get_rng_state()
        begin = clocks()
        for number, batch in enumerate(self._loader):
            if number:
                self.steps.ours.append(since(begin))
            # Log points are in the middle of a turn, with what TensorBoard's thread does then.
            if number % _STEPS_PER_TURN == _STEPS_PER_TURN // 2:
                self.let_bare_loop(_STEPS_PER_TURN)
            begin = clocks()
            yield batch

    def let_bare_loop(self, n_steps: int) -> None:
        """Let the bare loop do so many steps, or what is left."""
        n_left = len(self) - len(self.steps.bare)
        self.steps.bare += [self._bare.step() for _ in range(min(n_steps, n_left))]


def clocks() -> Clocks:
    """Return what both clocks say."""
    return time.perf_counter(), time.process_time()


def since(begin: Clocks) -> Clocks:
    """Return what passed by both clocks."""
    wall, cpu = clocks()
    return wall - begin[0], cpu - begin[1]


def compare(
    model: nn.Module, loader: Any, bare: BareLoop, config: Mapping[str, Any], per_round: int
) -> Steps:
    """Train with both loops by turns, ours as the stage `train` does it: all its callbacks.

    Args:
        model: With the weights of the bare loop's.
        loader: Gives the batches of `1 + N_ROUNDS` rounds, the first of which warms up.
        bare: The other loop.
        config: Of the training, but for its folder, epochs and threads.
        per_round: Steps of a round.
    """
    from espnet3.trainer.config import load_training_config
    from espnet3.trainer.fit import Fit, TrainingParts
    from espnet3.trainer.optimization.optimization_config import OptimizationConfig
    from espnet3.trainer.reporting.summary import StartupTimes

    by_turns = InterruptedLoader(loader, bare, per_round)
    with tempfile.TemporaryDirectory() as folder, _lines_in(Path(folder) / "train.log"):
        path = Path(folder) / "training.yaml"
        path.write_text(yaml.safe_dump(_whole(config, folder)))
        loaded = load_config(path)
        keys, optimization = load_training_config(loaded), OptimizationConfig.from_config(loaded)
        parts = TrainingParts(model, by_turns)
        Fit(keys, optimization, lambda: parts, StartupTimes()).run()
    by_turns.let_bare_loop(len(loader))
    for own, other in zip(model.parameters(), bare.model.parameters(), strict=True):
        assert torch.equal(own, other), "the loops have not done the same"
    return by_turns.steps


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
