"""What our training loop, and those of others, cost beyond a bare one, on the same batches."""

import copy
import statistics
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.figures import Figure, Skipped
from benchmarks.two_loops import (
    N_ROUNDS,
    AccelerateLoop,
    BareLoop,
    Clocks,
    Steps,
    compare,
    compare_lightning,
)
from espnet3.components.data.collate import PadCollate
from espnet3.components.data.loader import build_loader
from espnet3.components.data.loader_config import LoaderConfig

LIMIT = 1.03
"""Seconds per step: 1 / 1.03 is 0.97 of the throughput."""
LIMITED_FROM = 40
MOST_OVERHEAD = 1.0
"""Milliseconds that a step of whatever length may take beyond a bare one."""
LIMIT_BESIDE = 1.3
"""Against `accelerate`, which adds less than any other loop, with a step that is nearly nothing."""
STEPS_PER_ROUND = 50
"""With one log point, as `trainer.log_every_n_steps` is 50 by default."""
N_TINY_ROUNDS = 20
"""A step of a millisecond is easily disturbed, and soon done again."""
SIZES = {5: 1, 20: 3, 40: 6}
"""The least milliseconds of a bare step, and the layers of the encoder."""

_SAMPLE_FRAMES = 160
_N_TOKENS = 40
_N_LABELS = 12
_CLIP = 1.0
_CONFIG = {
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 1e-4},
    "trainer": {"gradient_clip_val": _CLIP},
}
_STEPS_PER_TRIAL = 8


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


def bare_loop(n_layers: int, batch_size: int, n_steps: int) -> BareLoop:
    """Return the loop that one would write by hand, with torch's DataLoader."""
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(
        Features(batch_size * n_steps),  # type: ignore[arg-type]
        batch_size=batch_size,
        collate_fn=PadCollate(),
    )
    return BareLoop(Recognizer(n_layers), loader, clip=_CLIP)


def compare_sizes(n_layers: int, batch_size: int) -> Steps:
    """Train the same model with both loops."""
    n_steps = (1 + N_ROUNDS) * STEPS_PER_ROUND
    ours = build_loader(
        Features(batch_size * n_steps),
        LoaderConfig(batch_size=batch_size, shuffle=False),
        collate_fn=PadCollate(),
        seed=0,
        split="train",
    )
    bare = bare_loop(n_layers, batch_size, n_steps)
    return compare(copy.deepcopy(bare.model), ours, bare, _CONFIG, STEPS_PER_ROUND)


class Perceptron(nn.Module):
    """Three layers, of which a step takes about a millisecond."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        inner = (nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU())
        self.layers = nn.Sequential(*inner, nn.Linear(size, _N_LABELS))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor], int]:
        loss = nn.functional.cross_entropy(self.layers(x), y)
        return loss, {"loss": loss.detach()}, len(y)


class Points:
    """Samples for it."""

    def __init__(self, n_samples: int, size: int = 64) -> None:
        self._n_samples = n_samples
        generator = torch.Generator().manual_seed(0)
        self._x = torch.randn(64, size, generator=generator)
        self._y = torch.randint(0, _N_LABELS, (64,), generator=generator)

    def __len__(self) -> int:
        return self._n_samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self._x[index % 64], "y": self._y[index % 64]}


def compare_tiny(batch_size: int = 8) -> Iterator[Figure | Skipped]:
    """Train a model that costs nearly nothing with all loops: what is left is the loops."""
    n_samples = batch_size * (1 + N_TINY_ROUNDS) * STEPS_PER_ROUND
    torch.manual_seed(0)
    model = Perceptron()

    def loader() -> Any:
        return torch.utils.data.DataLoader(Points(n_samples), batch_size=batch_size)  # type: ignore[arg-type]

    def bare_loop() -> BareLoop:
        return BareLoop(copy.deepcopy(model), loader(), clip=_CLIP)

    try:
        beside = AccelerateLoop(copy.deepcopy(model), loader(), clip=_CLIP)
    except ImportError:
        beside = None
    options = LoaderConfig(batch_size=batch_size, shuffle=False)
    collate = torch.utils.data.default_collate
    ours = build_loader(Points(n_samples), options, collate_fn=collate, seed=0, split="train")
    steps = compare(
        copy.deepcopy(model), ours, bare_loop(), _CONFIG, STEPS_PER_ROUND, beside=beside
    )
    yield from figures_of(steps, "a tiny step")
    what = "a tiny step; against accelerate"
    if beside is None:
        yield Skipped(what, "accelerate is not installed: pip install accelerate")
    else:
        milliseconds = steps.least_beside(0)
        yield Figure(what, steps.least(0)[0], "ms", milliseconds, LIMIT_BESIDE)
        what = "beside: a tiny step of accelerate; against a bare loop"
        yield Figure(what, milliseconds, "ms", steps.least(0)[1])
    others = compare_lightning(
        copy.deepcopy(model), loader(), bare_loop(), STEPS_PER_ROUND, clip=_CLIP
    )
    what = "beside: a tiny step of Lightning alone; against a bare loop"
    yield Figure(what, *_with_baseline(others.least(0)))


def figures_of(steps: Steps, what: str, limit: float | None = None) -> Iterator[Figure]:
    """Yield the ratio to a bare loop, and what a step takes beyond it."""
    yield Figure(f"{what}; against a bare loop", *_with_baseline(steps.least(0)), limit)
    yield Figure(f"beside: {what}, time of the CPU", *_with_baseline(steps.least(1)))
    ours, bare = steps.least(0)
    yield Figure(f"{what}; beyond a bare loop", ours - bare, "ms", limit=MOST_OVERHEAD)


def _with_baseline(milliseconds: tuple[float, float]) -> tuple[float, str, float]:
    return milliseconds[0], "ms", milliseconds[1]


def find_batch_size(n_layers: int, milliseconds: float) -> int:
    """Return how many samples make a bare step take so long on this machine, undisturbed."""
    batch_size = 1
    while (taken := 1e3 * min(cpu for _, cpu in try_steps(n_layers, batch_size))) < milliseconds:
        batch_size += max(1, int(batch_size * min(1.0, milliseconds / taken - 1)))
    return batch_size


def try_steps(n_layers: int, batch_size: int, n_threads: int = 1) -> list[Clocks]:
    """Do some bare steps, and return how long they took."""
    torch.set_num_threads(n_threads)
    loop = bare_loop(n_layers, batch_size, _STEPS_PER_TRIAL)
    steps = [loop.step() for _ in range(_STEPS_PER_TRIAL)]
    torch.set_num_threads(1)
    return steps[1:]


def measure() -> Iterator[Figure | Skipped]:
    """Compare steps of several lengths, of which the longest has a limit, and two threads."""
    torch.set_num_threads(1)
    yield from compare_tiny()
    for milliseconds, n_layers in SIZES.items():
        batch_size = find_batch_size(n_layers, milliseconds)
        steps = compare_sizes(n_layers, batch_size)
        limit = LIMIT if milliseconds >= LIMITED_FROM else None
        yield from figures_of(steps, f"a step of {milliseconds} ms", limit)
    two, one = (
        1e3 * statistics.mean(wall for wall, _ in try_steps(n_layers, batch_size, n_threads))
        for n_threads in (2, 1)
    )
    yield Figure("beside: a bare step with 2 threads, on average; against 1", two, "ms", one)
