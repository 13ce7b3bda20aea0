"""The transducer as a model to train: it learns, and a batch is what its utterances are."""

from functools import partial

import pytest
import torch

from espnet3.components.decoding.transducer_beam import TransducerBeam
from espnet3.components.decoding.transducer_greedy import TransducerGreedy
from espnet3.components.models.log_mel import LogMel
from espnet3.components.models.normalization import UtteranceNormalization
from espnet3.components.models.tdnn import TDNN
from espnet3.components.models.transducer import LSTMPrediction, StatelessPrediction
from espnet3.components.text.tokenizer import CharacterTokenizer
from espnet3.errors import ConfigError
from espnet3.systems.asr.transducer_model import Transducer

TEXTS = ["one", "two one", "nine", "on to"]
TOKENIZER = CharacterTokenizer.from_texts(TEXTS)


def make_model(prediction=LSTMPrediction, **options):
    torch.manual_seed(0)
    return Transducer(
        TOKENIZER,
        LogMel(sample_rate=8000, n_mels=20),
        TDNN(input_size=20, n_channels=32, n_layers=2, subsampling=4),
        partial(prediction, size=24, dropout=0.0),
        normalize=UtteranceNormalization(),
        joint_size=32,
        **options,
    )


def make_batch():
    """Return four utterances in which each character is a tone that fades away."""
    pitches = {name: 300.0 * (i + 1) for i, name in enumerate(sorted(set("".join(TEXTS))))}
    time = torch.arange(960) / 8000
    # What stays the same over a character does not tell when to say it.
    tones = {
        c: torch.exp(-40 * time) * torch.sin(2 * torch.pi * pitches[c] * time) for c in pitches
    }
    speech = [torch.cat([tones[c] for c in text]) for text in TEXTS]
    speech = [s + 0.01 * torch.randn(s.shape) for s in speech]
    tokens = [torch.tensor(TOKENIZER.encode(text)) for text in TEXTS]
    pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    return {
        "speech": pad(speech),
        "speech_lengths": torch.tensor([len(s) for s in speech]),
        "tokens": pad(tokens, padding_value=-1),
        "tokens_lengths": torch.tensor([len(t) for t in tokens]),
    }


def test_it_learns_four_utterances_by_heart():
    model, batch = make_model(), make_batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        loss, stats, weight = model(**batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if stats["loss"] < 0.015:
            break
    assert weight == 4
    assert stats["loss"] < 0.05
    model.eval()
    with torch.inference_mode():
        _, stats, _ = model(**batch)
        encoded, lengths = model.encode(batch["speech"], batch["speech_lengths"])
    assert stats["wer"] == stats["cer"] == 0
    for decoder in (TransducerGreedy(), TransducerBeam(4)):
        found = decoder(model, encoded, lengths)
        assert [TOKENIZER.decode(nbest[0].tokens) for nbest in found] == TEXTS


def test_a_batch_has_the_mean_loss_of_its_utterances():
    model, batch = make_model().eval(), make_batch()
    loss, stats, _ = model(**batch)
    alone = []
    for i in range(4):
        n, m = batch["speech_lengths"][i], batch["tokens_lengths"][i]
        single = model(
            batch["speech"][i : i + 1, :n], n[None], batch["tokens"][i : i + 1, :m], m[None]
        )
        alone.append(single)
    torch.testing.assert_close(
        loss, torch.stack([one[0] for one in alone]).mean(), rtol=1e-4, atol=0
    )
    assert stats["wer"] == pytest.approx(sum(one[1]["wer"] for one in alone) / 4)
    expected = 0.7 * stats["loss_transducer"] + 0.3 * stats["loss_ctc"]
    torch.testing.assert_close(stats["loss"], expected)


@pytest.mark.parametrize("prediction", [LSTMPrediction, StatelessPrediction])
def test_all_parameters_are_trained(prediction):
    model = make_model(prediction)
    model(**make_batch())[0].backward()
    unused = [name for name, p in model.named_parameters() if p.grad is None]
    assert unused == []


def test_it_can_be_decoded_by_ctc_and_gives_statistics():
    model, batch = make_model().eval(), make_batch()
    encoded, _ = model.encode(batch["speech"], batch["speech_lengths"])
    assert model.ctc_log_probs(encoded).shape[-1] == len(TOKENIZER.tokens)
    assert model.collect_feats(batch["speech"], batch["speech_lengths"])["feats"].shape[-1] == 20


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match=r"ctc_weight: 0\.3"):
        make_model(ctc_weight=0.0)
    parts = LogMel(sample_rate=8000, n_mels=20), TDNN(20, 8, 1)
    with pytest.raises(ConfigError, match="_partial_: true"):
        Transducer(TOKENIZER, *parts, LSTMPrediction(9))
