"""Batches by duration: their padding, their planning, and what our loader adds to torch's."""

import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from benchmarks.figures import Figure, best_of
from espnet3.components.data.collate import PadCollate
from espnet3.components.data.dealing import in_steps
from espnet3.components.data.loader import BatchLoader, build_loader
from espnet3.components.data.loader_config import LoaderConfig
from espnet3.components.data.sources import kaldi, tar
from espnet3.components.data.tar_writer import write_tar_shards

N_ITEMS = 10_000
TIMES = 10
BATCH_SECONDS = 120.0
N_BATCHES = 300
N_FILES = 400
RANKS = (2, 8)
RATE = 16_000
MAX_PADDING = 8.0
MAX_WAITING = 5.0
LIMIT_GROWTH = 1.5
LIMIT_COST = 1.5
LIMIT_TAR = 1.2

Batches = Sequence[Any]


def make_durations(n_items: int) -> Any:
    """Return seconds of utterances, spread as those of read speech are."""
    return np.random.default_rng(0).lognormal(np.log(11), 0.55, n_items).clip(1, 35)


class Speech:
    """Waveforms of those durations, from memory: what is measured is not the reading of files.

    Args:
        durations: Of each item.
        rate: Numbers per second.
    """

    def __init__(self, durations: Any, rate: int) -> None:
        self._lengths = (durations * rate).astype(int)
        self._durations = durations
        self._speech = np.zeros(int(self._lengths.max()), np.float32)

    def __len__(self) -> int:
        return len(self._lengths)

    def durations(self) -> Any:
        return self._durations

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"utt_id": f"utt{index}", "speech": self._speech[: self._lengths[index]]}


def plan(n_items: int, rate: int = 1) -> BatchLoader:
    """Do all that happens before the first sample of an epoch is read."""
    durations = make_durations(n_items)
    config = LoaderConfig(batch_seconds=BATCH_SECONDS)
    speech = Speech(durations, rate)
    loader = build_loader(speech, config, collate_fn=PadCollate(), seed=0, split="train")
    len(loader)
    return loader


def measure() -> Iterator[Figure]:
    """Look at the plans, then run both loaders over the same batches; then read shards."""
    torch.set_num_threads(1)
    for n_items in (N_ITEMS, N_ITEMS * TIMES):
        yield from quality(n_items)
    few, many = best_of(3, lambda: plan(N_ITEMS), lambda: plan(N_ITEMS * TIMES))
    what = f"{N_ITEMS * TIMES:,} utterances planned; against {TIMES} times {N_ITEMS:,}"
    yield Figure(what, many, "s", few * TIMES, LIMIT_GROWTH)
    ours, bare = batch_cost(RATE)
    what = f"a batch of {BATCH_SECONDS:g} s of audio; against torch's DataLoader"
    yield Figure(what, ours, "ms", bare, LIMIT_COST)
    ours, bare = batch_cost(1)
    yield Figure("beside: a batch without audio", ours, "ms", bare)
    yield measure_shards()


def quality(n_items: int) -> Iterator[Figure]:
    """Measure what of a plan is padding, and what of the ranks' time is waiting for each other."""
    durations = make_durations(n_items)
    batches = plan(n_items).sampler.begin()
    equal = np.array_split(np.random.default_rng(0).permutation(n_items), len(batches))
    by_seconds, by_count = f"{n_items:,} utterances, batch_seconds", "beside: by count, shuffled"
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


def batch_cost(rate: int) -> tuple[float, float]:
    """Return the milliseconds of a batch from our loader and from torch's, in this process."""
    loader = plan(N_ITEMS, rate)
    dataset = Speech(make_durations(N_ITEMS), rate)
    batches = [batch.tolist() for batch in loader.sampler.begin()[:N_BATCHES]]

    def run() -> None:
        loader.sampler.set_epoch(1)
        loader.sampler.set_epoch(0)  # from its start
        deque(islice(loader, N_BATCHES), maxlen=0)

    def run_bare() -> None:
        bare = torch.utils.data.DataLoader(
            dataset,  # type: ignore[arg-type]
            batch_sampler=batches,
            collate_fn=PadCollate(),
        )
        deque(bare, maxlen=0)

    ours, bare = best_of(7, run, run_bare)
    return ours * 1e3 / N_BATCHES, bare * 1e3 / N_BATCHES


def measure_shards() -> Figure:
    """Read a small corpus in random order from tar shards, against a file for each utterance."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_files(folder / "files")
        write_tar_shards(files, folder / "shards", samples_per_shard=N_FILES // 4)
        shards = tar.Dataset(folder / "shards")
        order = np.random.default_rng(0).permutation(N_FILES).tolist()
        assert all(shards[i]["utt_id"] == files[i]["utt_id"] for i in order[:10])
        ours, plain = best_of(
            3, lambda: [shards[i] for i in order], lambda: [files[i] for i in order]
        )
    what = f"{N_FILES} utterances read from tar shards; against single files"
    return Figure(what, ours * 1e3 / N_FILES, "ms", plain * 1e3 / N_FILES, LIMIT_TAR)


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
