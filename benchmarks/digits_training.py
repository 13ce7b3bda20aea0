"""How fast the recipe `digits` trains, against a bare PyTorch loop with the same batches."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.digits_recipe import digits_recipe
from benchmarks.figures import Figure
from benchmarks.two_loops import N_ROUNDS, BareLoop, Steps, compare
from espnet3.components.data.collate import PadCollate
from espnet3.components.data.dataset import sample_rng
from espnet3.components.data.loader import BatchLoader
from espnet3.config.load import LoadedConfig
from espnet3.config.resolve import resolved
from espnet3.systems.base.datasets import build_sets
from espnet3.systems.base.training import build_model, build_split_loader, load_loader_config

LIMIT = 1.05
N_TRAIN = 240
_INPUTS = ("speech", "speech_lengths", "tokens", "tokens_lengths")

Batch = tuple[int, tuple[int, ...]]
"""The number of a round, and which samples."""


class Rounds:
    """Gives the batches of our loader several times over, each time in another epoch."""

    def __init__(self, loader: BatchLoader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return (1 + N_ROUNDS) * len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for number in range(1 + N_ROUNDS):
            self._loader.sampler.set_epoch(number)
            yield from self._loader


class Samples:
    """What torch's DataLoader reads: the very samples, with the same speeds, in whole batches."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitems__(self, batch: Batch) -> list[Any]:
        number, indices = batch
        draw = partial(sample_rng, self._seed, number)
        return [self._dataset.sample_with(index, draw(index)) for index in indices]


def compare_loops(loaded: LoadedConfig) -> tuple[Steps, float]:
    """Train with both loops; return what the steps took, and the seconds of audio of one."""
    dataset, seed = build_sets(loaded.plain())["train"], int(loaded.config.seed)
    loader = build_split_loader(dataset, load_loader_config(loaded), "train", seed)
    batches: list[Batch] = []
    audio: list[float] = []
    for _ in Rounds(loader):
        assert loader.last_batch is not None
        batches.append((loader.sampler.epoch, loader.last_batch.indices))
        audio.append(loader.last_batch.seconds or 0.0)
    values = resolved(loaded.config, loaded=loaded)
    torch.manual_seed(seed)
    model = build_model(loaded.plain())
    bare = BareLoop(
        copy.deepcopy(model),
        torch.utils.data.DataLoader(
            Samples(dataset, seed),  # type: ignore[arg-type]
            batch_sampler=batches,  # type: ignore[arg-type]
            collate_fn=PadCollate(),
            generator=torch.Generator(),
        ),
        lr=values["optimizer"]["lr"],
        weight_decay=values["optimizer"]["weight_decay"],
        clip=values["trainer"]["gradient_clip_val"],
        inputs=_INPUTS,
        make_scheduler=partial(
            torch.optim.lr_scheduler.OneCycleLR,
            max_lr=values["scheduler"]["max_lr"],
            total_steps=len(batches),
        ),
    )
    kept = {name: values[name] for name in ("seed", "optimizer", "scheduler")}
    names = ("gradient_clip_val", "log_every_n_steps")
    kept["trainer"] = {name: values["trainer"][name] for name in names}
    steps = compare(model, Rounds(loader), bare, kept, len(loader))
    return steps, float(np.mean(audio))


def measure() -> Iterator[Figure]:
    """Compare how many seconds of audio each loop gets through in a second."""
    torch.set_num_threads(1)
    # No workers that read samples: they would do so while the other loop has its turn.
    overrides = ("dataloader.train.num_workers=0", "dataloader.train.shuffle=false")
    with digits_recipe(n_train=N_TRAIN, n_test=1) as recipe:
        steps, audio = compare_loops(recipe.training("default", *overrides))
    what = f"a step of egs3/digits/asr, {audio:.1f} s of audio"
    ours, bare = steps.least(0)
    yield Figure(f"{what}; against a bare loop", ours, "ms", bare, LIMIT)
    own, other = steps.least(1)
    yield Figure(f"beside: {what}, time of the CPU", own, "ms", other)
    speeds = [1e3 * audio / milliseconds for milliseconds in (ours, bare)]
    what = "beside: audio trained on in a second; against a bare loop"
    yield Figure(what, speeds[0], "s", speeds[1])
