"""Batches by duration: their padding, their planning, and what our loader adds to torch's."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from benchmarks.figures import Figure, best_of, seconds
from espnet3.components.data.batching import in_steps
from espnet3.components.data.collate import PadCollate
from espnet3.components.data.loader import BatchLoader, build_loader
from espnet3.components.data.loader_config import LoaderConfig
from espnet3.components.data.sources import kaldi, tar
from espnet3.components.data.tar_writer import write_tar_shards

N_ITEMS = 10_000
TIMES = 10
BATCH_SECONDS = 120.0
N_BATCHES = 100
N_FILES = 400
RANKS = (2, 8)
RATE = 16_000
MAX_PADDING = 8.0
MAX_WAITING = 5.0
LIMIT_GROWTH = 1.5
LIMIT_COST = 1.2
LIMIT_TAR = 1.3
_N_ROUNDS = 8

Batches = Sequence[Any]


def make_durations(n_items: int) -> Any:
    """Return seconds of utterances, spread as those of read speech are."""
    return np.random.default_rng(0).lognormal(np.log(11), 0.55, n_items).clip(1, 35)


class Speech:
    """Silence of those durations, from memory."""

    def __init__(self, durations: Any) -> None:
        self._lengths = (durations * RATE).astype(int)
        self._durations = durations
        self._speech = np.zeros(int(self._lengths.max()), np.float32)

    def __len__(self) -> int:
        return len(self._lengths)

    def durations(self) -> Any:
        return self._durations

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"utt_id": f"utt{index}", "speech": self._speech[: self._lengths[index]]}


def make_loader(dataset: Any, batch_seconds: float = BATCH_SECONDS) -> BatchLoader:
    """Do all that happens before the first sample of an epoch is read."""
    config = LoaderConfig(batch_seconds=batch_seconds)
    loader = build_loader(dataset, config, collate_fn=PadCollate(), seed=0, split="train")
    len(loader)  # makes the batches of the epoch
    return loader


def measure() -> Iterator[Figure]:
    """Look at the plans, then run both loaders over the same batches."""
    torch.set_num_threads(1)
    few, many = (Speech(make_durations(n_items)) for n_items in (N_ITEMS, N_ITEMS * TIMES))
    for speech in (few, many):
        yield from quality(speech)
    once, larger = best_of(3, lambda: make_loader(few), lambda: make_loader(many))
    what = f"{len(many):,} utterances planned; against {TIMES} times {len(few):,}"
    yield Figure(what, larger, "s", once * TIMES, LIMIT_GROWTH)
    yield from read_files()
    ours, bare = batch_cost(make_loader(few), few, N_BATCHES)
    yield Figure(f"beside: a batch of {BATCH_SECONDS:g} s from memory", ours, "ms", bare)


def quality(speech: Speech) -> Iterator[Figure]:
    """Measure what of a plan is padding, and what of the ranks' time is waiting for each other."""
    durations = speech.durations()
    batches = make_loader(speech).sampler.begin()
    equal = np.array_split(np.random.default_rng(0).permutation(len(speech)), len(batches))
    by_seconds = f"{len(speech):,} utterances, batch_seconds"
    by_count = "beside: by count, shuffled"
    yield Figure(f"{by_seconds}: padding", padding(batches, durations), "%", limit=MAX_PADDING)
    yield Figure(f"{by_count}: padding", padding(equal, durations), "%")
    for n_ranks in RANKS:
        what = f"{n_ranks} ranks, waiting for the slowest"
        share = waiting(batches, durations, n_ranks)
        yield Figure(f"{by_seconds}: {what}", share, "%", limit=MAX_WAITING)
        yield Figure(f"{by_count}: {what}", waiting(equal, durations, n_ranks), "%")


def padded_seconds(batches: Batches, durations: Any) -> Any:
    """Return the seconds of each batch, padding included."""
    return np.array([durations[batch].max() * len(batch) for batch in batches])


def padding(batches: Batches, durations: Any) -> float:
    """Return the percentage of all batches that is padding."""
    return float(100 * (1 - durations.sum() / padded_seconds(batches, durations).sum()))


def waiting(batches: Batches, durations: Any, n_ranks: int) -> float:
    """Return the percentage of time for which ranks wait, if time goes by padded seconds."""
    dealt = in_steps(batches, n_ranks, drop_last=False)
    steps = padded_seconds(dealt, durations).reshape(-1, n_ranks)
    return float(100 * (1 - steps.mean() / steps.max(axis=1).mean()))


def batch_cost(loader: BatchLoader, dataset: Any, n_batches: int) -> tuple[float, float]:
    """Return the milliseconds of a batch from our loader and from torch's, in this process.

    They give the same batches, one after the other in turns; of each batch the shortest counts.
    """
    batches = [batch.tolist() for batch in loader.sampler.begin()[:n_batches]]
    bare = torch.utils.data.DataLoader(dataset, batch_sampler=batches, collate_fn=PadCollate())
    least = np.full((len(batches), 2), np.inf)
    for _ in range(_N_ROUNDS):
        loader.sampler.set_epoch(1)
        loader.sampler.set_epoch(0)  # from its start
        both = iter(loader), iter(bare)
        for row in least:
            row[:] = [min(best, seconds(it.__next__)) for best, it in zip(row, both, strict=True)]
    ours, plain = 1e3 * least.mean(axis=0)
    return float(ours), float(plain)


def read_files() -> Iterator[Figure]:
    """Read a small corpus: in batches, and in random order from tar shards."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_files(folder / "files")
        ours, bare = batch_cost(make_loader(files, BATCH_SECONDS / 4), files, N_FILES)
        what = f"a batch of {BATCH_SECONDS / 4:g} s from FLAC files; against torch's DataLoader"
        yield Figure(what, ours, "ms", bare, LIMIT_COST)
        write_tar_shards(files, folder / "shards", samples_per_shard=N_FILES // 4)
        shards = tar.Dataset(folder / "shards")
        order = np.random.default_rng(0).permutation(N_FILES).tolist()
        assert all(shards[i]["utt_id"] == files[i]["utt_id"] for i in order[:10])
        ours, plain = best_of(
            3, lambda: [shards[i] for i in order], lambda: [files[i] for i in order]
        )
    what = f"{N_FILES} utterances read from tar shards; against single files"
    yield Figure(what, ours * 1e3 / N_FILES, "ms", plain * 1e3 / N_FILES, LIMIT_TAR)


def write_files(folder: Path) -> kaldi.Dataset:
    """Write FLAC files of 2 seconds, and the data directory that lists them."""
    folder.mkdir()
    noise = np.random.default_rng(0).normal(0, 0.1, RATE * 2 + N_FILES)
    lines: dict[str, list[str]] = {"wav.scp": [], "text": [], "utt2dur": []}
    for number in range(N_FILES):
        path = folder / f"utt{number:03d}.flac"
        soundfile.write(path, noise[number : number + RATE * 2], RATE)
        for name, value in (("wav.scp", path), ("text", "one two"), ("utt2dur", "2.0")):
            lines[name].append(f"utt{number:03d} {value}\n")
    for name, content in lines.items():
        (folder / name).write_text("".join(content))
    return kaldi.Dataset(folder)
