"""Batches were joined to make the steps of ranks even, without a look at what a batch may hold."""

import numpy as np
import pytest
import torch

from espnet3.components.data.loader import build_loader
from espnet3.components.data.loader_config import LoaderConfig

RATE = 100


class Speech:
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return len(self.seconds)

    def durations(self):
        return self.seconds

    def __getitem__(self, index):
        return {"utt_id": f"utt{index}", "speech": np.zeros(int(self.seconds[index] * RATE))}


def batches_of_all_ranks(monkeypatch, seconds, n_ranks, **settings):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: n_ranks)
    found = []
    for rank in range(n_ranks):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        config = LoaderConfig(**settings)
        loader = build_loader(Speech(seconds), config, collate_fn=None, seed=1, split="train")
        found.append([batch.tolist() for batch in loader.sampler.begin()])
    assert len({len(batches) for batches in found}) == 1
    return [batch for batches in found for batch in batches]


@pytest.mark.parametrize("n_ranks", [2, 3, 4, 8])
def test_seconds_of_a_batch_on_every_rank(monkeypatch, n_ranks):
    seconds = [30.0, 31, 32, 33, 34, 29, 28, 8, 27, 35, 33]
    batches = batches_of_all_ranks(monkeypatch, seconds, n_ranks, batch_seconds=40)
    assert max(len(batch) * max(seconds[i] for i in batch) for batch in batches) <= 40
    assert sum(map(len, batches)) > len(seconds) - n_ranks


@pytest.mark.parametrize("n_ranks", [2, 3, 4])
def test_samples_of_a_batch_on_every_rank(monkeypatch, n_ranks):
    batches = batches_of_all_ranks(monkeypatch, [1.0] * 11, n_ranks, batch_size=1)
    assert set(map(len, batches)) == {1}
    assert sum(map(len, batches)) == 11 // n_ranks * n_ranks


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_numbers_of_a_batch_with_several_shapes(monkeypatch, tmp_path, n_ranks):
    """Speech and text are padded each to its own longest, which may be of two samples."""
    speech, text = [90, 10, 80, 20, 70, 30, 60], [10, 90, 20, 80, 30, 70, 40]
    files = []
    for name, sizes in (("speech", speech), ("text", text)):
        files.append(tmp_path / name)
        files[-1].write_text("".join(f"utt{i} {size}\n" for i, size in enumerate(sizes)))
    shapes = tuple(map(str, files))
    batches = batches_of_all_ranks(
        monkeypatch, [1.0] * 7, n_ranks, batch_bins=300, shape_file=shapes
    )
    padded = [len(b) * (max(speech[i] for i in b) + max(text[i] for i in b)) for b in batches]
    assert max(padded) <= 300
