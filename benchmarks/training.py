"""What our training loop costs beyond a bare PyTorch loop, with the same model and batches."""

import copy
import logging
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from benchmarks.figures import Figure
from espnet3.components.data.collate import PadCollate
from espnet3.components.data.loader import BatchLoader, build_loader
from espnet3.components.data.loader_config import LoaderConfig
from espnet3.config.load import load_config

LIMIT = 1.05
"""Seconds per step: 1 / 1.05 is 0.952 of the throughput."""
LIMITED_FROM = 50
N_ROUNDS = 5
STEPS_PER_ROUND = 50
"""With one log point, as `trainer.log_every_n_steps` is 50 by default."""
SIZES = {5: 1, 20: 3, 50: 8}
"""The least milliseconds of a bare step, and the layers of the encoder."""

_SAMPLE_FRAMES = 160
_N_TOKENS = 40
_N_LABELS = 12
_CLIP = 1.0
_STEPS_PER_TURN = 5
_STEPS_PER_TRIAL = 8

Clocks = tuple[float, float]
"""Seconds by the clock, and of the CPU."""


class Recognizer(nn.Module):
    """A small Transformer with CTC, which says its loss as ESPnet's models do."""

    def __init__(self, n_layers: int, size: int = 128) -> None:
        super().__init__()
        self.input = nn.Conv1d(80, size, 3, stride=4)
        layer = nn.TransformerEncoderLayer(size, 4, 4 * size, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        self.output = nn.Linear(size, _N_TOKENS)

    def forward(
        self, speech: Tensor, speech_lengths: Tensor, text: Tensor, text_lengths: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], int]:
        hidden = self.encoder(self.input(speech.transpose(1, 2)).transpose(1, 2))
        scores = self.output(hidden).log_softmax(-1).transpose(0, 1)
        lengths = (speech_lengths // 4).clamp(max=len(scores))
        loss = nn.functional.ctc_loss(scores, text, lengths, text_lengths, zero_infinity=True)
        return loss, {"loss": loss.detach()}, len(text)


class Features:
    """As many samples as are asked for, of one length, so that all steps cost the same."""

    def __init__(self, n_samples: int) -> None:
        self._n_samples = n_samples
        generator = torch.Generator().manual_seed(0)
        self._speech = torch.randn(64, _SAMPLE_FRAMES, 80, generator=generator)
        self._text = torch.randint(1, _N_TOKENS, (64, _N_LABELS), generator=generator)

    def __len__(self) -> int:
        return self._n_samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"speech": self._speech[index % 64], "text": self._text[index % 64]}


class BareLoop:
    """What one would write by hand: torch's DataLoader, forward, backward, clipping, step."""

    def __init__(self, n_layers: int, batch_size: int, n_steps: int) -> None:
        torch.manual_seed(0)
        self.model = Recognizer(n_layers)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        loader = torch.utils.data.DataLoader(
            Features(batch_size * n_steps),  # type: ignore[arg-type]
            batch_size=batch_size,
            collate_fn=PadCollate(),
        )
        self._batches = iter(loader)

    def step(self) -> Clocks:
        """Do a step, and return how long it took."""
        begin = _clocks()
        loss, _, _ = self.model(**next(self._batches))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), _CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return _since(begin)


@dataclass
class Steps:
    """Seconds of each step of both loops, by the clock and of the CPU."""

    ours: list[Clocks] = field(default_factory=list)
    bare: list[Clocks] = field(default_factory=list)

    def least(self, clock: int) -> tuple[float, float]:
        """Return the milliseconds of a step of both: the mean of a round that nothing disturbs.

        Each step of that round is the shortest of those at its place in all rounds but the first.
        """
        return _undisturbed(self.ours, clock), _undisturbed(self.bare, clock)


def _undisturbed(steps: list[Clocks], clock: int) -> float:
    places = [steps[i + STEPS_PER_ROUND :: STEPS_PER_ROUND] for i in range(STEPS_PER_ROUND)]
    return 1e3 * statistics.mean(min(step[clock] for step in place) for place in places)


class InterruptedLoader:
    """Our loader; after every few of its batches the bare loop has its turn.

    So what else the machine does meets both alike.
    """

    def __init__(self, loader: BatchLoader, bare: BareLoop) -> None:
        self.steps = Steps()
        self._loader = loader
        self._bare = bare

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        begin = _clocks()
        for number, batch in enumerate(self._loader):
            if number:
                self.steps.ours.append(_since(begin))
            # Log points are in the middle of a turn, with what TensorBoard's thread does then.
            if number % _STEPS_PER_TURN == _STEPS_PER_TURN // 2:
                self.steps.bare += [self._bare.step() for _ in range(_STEPS_PER_TURN)]
            begin = _clocks()
            yield batch


def _clocks() -> Clocks:
    return time.perf_counter(), time.process_time()


def _since(begin: Clocks) -> Clocks:
    wall, cpu = _clocks()
    return wall - begin[0], cpu - begin[1]


def compare(n_layers: int, batch_size: int) -> Steps:
    """Train with both loops by turns, ours as the stage `train` does it: all its callbacks."""
    from espnet3.trainer.fit import Fit, TrainingParts
    from espnet3.trainer.reporting.summary import StartupTimes

    n_steps = (1 + N_ROUNDS) * STEPS_PER_ROUND  # the first round warms up
    ours = build_loader(
        Features(batch_size * n_steps),
        LoaderConfig(batch_size=batch_size, shuffle=False),
        collate_fn=PadCollate(),
        seed=0,
        split="train",
    )
    bare = BareLoop(n_layers, batch_size, n_steps)
    model = copy.deepcopy(bare.model)
    loader = InterruptedLoader(ours, bare)
    with tempfile.TemporaryDirectory() as folder, _lines_in(Path(folder) / "train.log"):
        path = Path(folder) / "training.yaml"
        path.write_text(yaml.safe_dump(_config(folder)))
        Fit(load_config(path), lambda: TrainingParts(model, loader), StartupTimes()).run()
    for own, other in zip(model.parameters(), bare.model.parameters(), strict=True):
        assert torch.equal(own, other), "the loops have not done the same"
    return loader.steps


def _config(folder: str) -> dict[str, Any]:
    return {
        "exp_dir": f"{folder}/exp",
        "num_threads": 1,
        "optimizer": {"_target_": "torch.optim.AdamW", "lr": 1e-4},
        "trainer": {
            "accelerator": "cpu",
            "devices": 1,
            "gradient_clip_val": _CLIP,
            "max_epochs": 1,
            "enable_progress_bar": False,
        },
    }


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


def find_batch_size(n_layers: int, milliseconds: float) -> int:
    """Return how many samples make a bare step take so long on this machine, undisturbed."""
    batch_size = 1
    while (taken := 1e3 * min(cpu for _, cpu in try_steps(n_layers, batch_size))) < milliseconds:
        batch_size += max(1, int(batch_size * min(1.0, milliseconds / taken - 1)))
    return batch_size


def try_steps(n_layers: int, batch_size: int, n_threads: int = 1) -> list[Clocks]:
    """Do some bare steps, and return how long they took."""
    torch.set_num_threads(n_threads)
    loop = BareLoop(n_layers, batch_size, _STEPS_PER_TRIAL)
    steps = [loop.step() for _ in range(_STEPS_PER_TRIAL)]
    torch.set_num_threads(1)
    return steps[1:]


def measure() -> Iterator[Figure]:
    """Compare steps of several lengths, of which the longest has a limit, and two threads."""
    torch.set_num_threads(1)
    for milliseconds, n_layers in SIZES.items():
        batch_size = find_batch_size(n_layers, milliseconds)
        steps = compare(n_layers, batch_size)
        limit = LIMIT if milliseconds >= LIMITED_FROM else None
        what = f"a step of {milliseconds} ms"
        ours, bare = steps.least(0)
        yield Figure(f"{what}; against a bare loop", ours, "ms", bare, limit)
        ours, bare = steps.least(1)
        yield Figure(f"beside: {what}, time of the CPU", ours, "ms", bare)
    two, one = (
        1e3 * statistics.mean(wall for wall, _ in try_steps(n_layers, batch_size, n_threads))
        for n_threads in (2, 1)
    )
    yield Figure("beside: a bare step with 2 threads, on average; against 1", two, "ms", one)
