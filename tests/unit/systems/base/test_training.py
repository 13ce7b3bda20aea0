import pytest
import torch

from espnet3.components.data.dataset import CombinedDataset
from espnet3.components.data.loader import build_loader
from espnet3.components.data.loader_config import LoaderConfig
from espnet3.systems.base.training import _padding


class Tones:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"utt_id": str(index)}

    def durations(self):
        return [1.0, 2.0, 3.0, 4.0]


def test_the_padding_of_samples_that_come_several_times_is_known():
    torch.set_num_threads(1)
    dataset = CombinedDataset([Tones()], [2.0])
    config = LoaderConfig(batch_size=8)
    loader = build_loader(dataset, config, collate_fn=list, seed=0, split="train")
    assert _padding(loader, dataset.durations()) == pytest.approx(1 - 20 / 32)
