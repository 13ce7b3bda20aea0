"""Batches of utterances through ESPnet2's encoders, which give what single utterances give."""

import logging

import pytest
import torch
from torch import nn

from espnet3.components.models.conformer import DepthwiseConv
from espnet3.systems.espnet2.encoding import Encoding
from espnet3.systems.espnet2.inference import ESPnet2Inference
from tests.helpers.espnet2_models import noise, write_asr

LATEST = {"rel_pos_type": "latest"}


def load(folder):
    return ESPnet2Inference("asr", folder / "config.yaml", folder / "model.pth", decoder="espnet3")


def speech_of(n=6, seed=4):
    return [torch.from_numpy(one) for one in noise(n, seed)]


@pytest.fixture(scope="module")
def folders(models, tmp_path_factory):
    """Models whose encoders differ in what they do with padding."""
    folder = tmp_path_factory.mktemp("encoders")
    conformer = {"encoder": "conformer"}
    return {
        "conformer": write_asr(folder / "conformer", **conformer, encoder_conf=LATEST),
        "legacy": write_asr(
            folder / "legacy", **conformer, encoder_conf={"rel_pos_type": "legacy"}
        ),
        "transformer": write_asr(folder / "transformer", encoder="transformer"),
        "e_branchformer": write_asr(
            folder / "e_branchformer", encoder="e_branchformer", encoder_conf=LATEST
        ),
        "linear": write_asr(
            folder / "linear", **conformer, encoder_conf={**LATEST, "input_layer": "linear"}
        ),
        "conv2d6": write_asr(
            folder / "conv2d6", **conformer, encoder_conf={**LATEST, "input_layer": "conv2d6"}
        ),
    }


@pytest.mark.parametrize(
    "name", ["conformer", "e_branchformer", "transformer", "linear", "conv2d6"]
)
def test_a_padded_batch_gives_what_single_utterances_give(folders, name, caplog):
    with caplog.at_level(logging.INFO, "espnet3"):
        model = load(folders[name])
    encoding = model._encode
    assert encoding.is_batched
    assert "encoding in batches: padding does not change the results" in caplog.text
    speech = speech_of()
    with torch.inference_mode():
        together = encoding._encode(speech)
        for one, other in zip(speech, together, strict=True):
            (alone,) = encoding._encode([one])
            assert alone.shape == other.shape
            assert torch.allclose(alone, other, atol=1e-4)


def test_what_padding_changes_is_encoded_one_by_one_and_the_log_says_why(folders, caplog):
    with caplog.at_level(logging.INFO, "espnet3"):
        model = load(folders["legacy"])
    assert not model._encode.is_batched
    assert "encoding one by one: padding changes results by" in caplog.text
    assert "Legacy" in caplog.text
    speech = speech_of()
    with torch.inference_mode():
        encoded, lengths = model._encode(speech)
        for one, other, n in zip(speech, encoded, lengths.tolist(), strict=True):
            (alone,) = model._encode._encode([one])
            assert torch.equal(alone, other[:n])


def test_without_the_corrections_padding_changes_results(folders):
    theirs = ESPnet2Inference(
        "asr", folders["conformer"] / "config.yaml", folders["conformer"] / "model.pth",
        decoder="espnet2",
    )._theirs.asr_model  # fmt: skip
    speech = speech_of(2)
    lengths = torch.tensor([len(one) for one in speech])
    padded = nn.utils.rnn.pad_sequence(speech, batch_first=True)
    with torch.inference_mode():
        both, _ = theirs.encode(padded, lengths)
        short = int(lengths.argmin())
        alone, n = theirs.encode(speech[short][None], lengths[short, None])
    assert not torch.allclose(both[short, : n[0]], alone[0], atol=1e-3)


def test_a_batch_is_of_like_lengths_and_not_too_long(folders):
    encoding = load(folders["transformer"])._encode
    lengths = [16000 * n for n in (1, 9, 1, 10, 1, 30, 1)]
    assert encoding._batches(lengths) == [[5], [3], [1], [0, 2, 4, 6]]


def test_a_model_that_takes_no_batch_is_encoded_one_by_one(folders, caplog):
    model = load(folders["transformer"])._joint.model
    encode = model.encode

    def alone(speech, speech_lengths):
        if len(speech) > 1:
            raise NotImplementedError("one at a time")
        return encode(speech=speech, speech_lengths=speech_lengths)

    model.encode = alone
    with caplog.at_level(logging.INFO, "espnet3"):
        encoding = Encoding(model, 16000)
    assert not encoding.is_batched
    assert "a padded batch raises NotImplementedError: one at a time" in caplog.text


def test_depthwise_convolutions_are_those_of_our_conformer(folders):
    encoder = load(folders["e_branchformer"])._joint.model.encoder
    depthwise = [m for m in encoder.modules() if isinstance(m, nn.Conv1d) and m.groups > 1]
    assert depthwise
    assert all(type(one) is DepthwiseConv for one in depthwise)
