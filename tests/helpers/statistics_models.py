"""Models for tests of stage 3, and what makes batches for them."""

import torch

from espnet3.components.models.normalization import GlobalNormalization


class Model(torch.nn.Module):
    """Features are frames of four numbers, weighted by a front end with random weights."""

    def __init__(self, frontend=None, n_layers=2, stats_file=None, most=None, scale=1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))
        self.dropout = torch.nn.Dropout(0.5)
        self.normalize = GlobalNormalization(stats_file) if stats_file else None
        self.most, self.scale = most, scale

    def collect_feats(self, speech, speech_lengths):
        assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == 1
        if self.most is not None and len(speech) > self.most:
            raise MemoryError(f"more than {self.most} items")
        lengths = speech_lengths // 4  # frames that hold no padding
        frames = speech[:, : lengths.max() * 4].view(len(speech), -1, 4)
        feats = self.dropout(frames * self.weight * self.scale)
        return {"feats": feats, "feats_lengths": lengths}


class Misbehaved(torch.nn.Module):
    """Returns what it was made with."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def collect_feats(self, **batch):
        return eval(self.output, {"torch": torch, **batch})


class NoFeatures(torch.nn.Module):
    def __init__(self):
        raise AssertionError("There is no need to build it.")


def make_model(has_features=True):
    """Hides what is built."""
    return Model() if has_features else torch.nn.Linear(1, 1)


def collate(samples):
    """Pads with 9, and returns the ids as well, as ESPnet2 does."""
    lengths = torch.tensor([len(sample["speech"]) for sample in samples])
    speech = torch.full((len(samples), max(lengths)), 9.0)
    for row, sample in zip(speech, samples, strict=True):
        row[: len(sample["speech"])] = torch.from_numpy(sample["speech"])
    ids = [sample["utt_id"] for sample in samples]
    return ids, {"speech": speech, "speech_lengths": lengths, "ids": ids}
