import pytest
import torch
from torch import nn

from espnet3.errors import ConfigError
from espnet3.trainer.optimization.model_calls import ModelInputs, ids_of

X = torch.zeros(2, 3)


class Strict(nn.Module):
    def forward(self, speech, text=None):
        return speech


class Open(nn.Module):
    def forward(self, speech, **kwargs):
        return speech


class Whole(nn.Module):
    def forward(self, batch):
        return batch


@pytest.mark.parametrize(
    ("model", "batch", "keys"),
    [
        (Strict(), {"speech": X}, ["speech"]),
        (Strict(), {"speech": X, "utt_id": ["a", "b"], "text": X}, ["speech", "text"]),
        (Strict(), (["a", "b"], {"speech": X}), ["speech"]),
        (Strict(), {"speech": X, "meta": [{"a": 1}], "note": "n"}, ["speech"]),
        (Open(), {"speech": X, "utt_id": ["a"], "more": X}, ["speech", "utt_id", "more"]),
        (torch.compile(Strict()), {"speech": X, "utt_id": ["a"]}, ["speech"]),
        # as torch's own datasets and loaders give them
        (Strict(), [X, X], ["speech", "text"]),
        (Strict(), (X,), ["speech"]),
        (Strict(), X, ["speech"]),
        (Whole(), {"speech": X, "label": X}, ["batch"]),
        (Whole(), [X, X], ["batch"]),
        # nothing is padded, so the lengths say nothing
        (Strict(), {"speech": X, "speech_lengths": torch.tensor([3, 3])}, ["speech"]),
    ],
)
def test_what_goes_in(model, batch, keys):
    assert list(ModelInputs(model).pick(batch)) == keys


@pytest.mark.parametrize(
    ("model", "batch", "words"),
    [
        (Strict(), {"speech": X, "speech_lengths": X}, ["takes no 'speech_lengths'", "**kwargs"]),
        (Strict(), {"speech": X, "parts": [X]}, ["takes no 'parts'"]),
        (Strict(), {"text": X}, ["has no 'speech'", "A batch has: text", "speech, text"]),
        (Open(), {"audio": X}, ["has no 'speech'", "dataloader.collate_fn"]),
        (Strict(), {"audio": X}, ["takes no 'audio'", "has no 'speech'", "Strict.forward"]),
        (Strict(), "abc", ["a str", "collate_fn return one"]),
        (Strict(), [X, X, X], ["A batch has 3 parts", "takes 2: speech, text"]),
        (Strict(), {"speech": X, "speech_lengths": torch.tensor([3, 2])}, ["'speech_lengths'"]),
    ],
)
def test_what_does_not_fit_is_named(model, batch, words):
    with pytest.raises(ConfigError) as caught:
        ModelInputs(model).pick(batch)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("batch", "ids"),
    [
        ({"utt_id": ["a", "b"]}, ["a", "b"]),
        ({"utt_id": "a"}, ["a"]),
        ({"ids": torch.tensor([3, 4])}, ["3", "4"]),
        ((("a", "b"), {"speech": X}), ["a", "b"]),
        ({"speech": X}, []),
        (X, []),
    ],
)
def test_ids(batch, ids):
    assert ids_of(batch) == ids
