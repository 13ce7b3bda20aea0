from functools import partial

import jiwer
import numpy as np
import pytest
import torch

from espnet3.components.data.collate import PadCollate
from espnet3.components.data.errors import DataError
from espnet3.components.models.attention_decoder import TransformerDecoder
from espnet3.components.models.conformer import Conformer
from espnet3.components.models.log_mel import LogMel
from espnet3.components.models.normalization import UtteranceNormalization
from espnet3.components.models.spec_augment import SpecAugment
from espnet3.components.models.tdnn import TDNN
from espnet3.components.text.tokenizer import CharacterTokenizer
from espnet3.config.instantiate import instantiate
from espnet3.errors import ConfigError
from espnet3.systems.asr.model import ASRModel

RATE = 8000
TOKENIZER = CharacterTokenizer.from_texts(["abcd efgh"])
TEXTS = ["abc de", "fgh", "hgf edcb a", "bad cafe"]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def _tones(text, seconds=0.12):
    """Return a tone for each character, with a little noise."""
    times = np.arange(int(seconds * RATE)) / RATE
    tones = [np.sin(2 * np.pi * (300 + 300 * id) * times) for id in TOKENIZER.encode(text)]
    noise = np.random.default_rng(len(text)).normal(scale=0.01, size=len(text) * len(times))
    return (0.3 * np.concatenate(tones) + noise).astype(np.float32)


def _batch(texts=TEXTS):
    samples = [
        {"speech": _tones(text), "tokens": np.array(TOKENIZER.encode(text), np.int64)}
        for text in texts
    ]
    return dict(PadCollate()(samples))


def _model(encoder=None, **options):
    encoder = encoder or TDNN(40, 32, 2)
    return ASRModel(TOKENIZER, LogMel(RATE, 40), encoder, **options)


def _decoder():
    return partial(TransformerDecoder, n_layers=1, n_heads=2, hidden=32)


def test_a_model_without_decoder_reports_ctc():
    loss, stats, weight = _model()(**_batch())
    assert set(stats) == {"loss", "loss_ctc", "too_short"}
    assert weight == len(TEXTS)
    assert loss.requires_grad
    assert not stats["loss"].requires_grad
    assert stats["loss"] == stats["loss_ctc"] == loss.detach()
    assert stats["too_short"] == 0


def test_a_hybrid_weighs_both_losses():
    loss, stats, _ = _model(decoder=_decoder(), ctc_weight=0.25)(**_batch())
    assert set(stats) == {"loss", "loss_ctc", "too_short", "loss_att", "acc"}
    torch.testing.assert_close(loss.detach(), 0.25 * stats["loss_ctc"] + 0.75 * stats["loss_att"])
    assert 0 <= stats["acc"] <= 1
    assert _model(decoder=_decoder()).ctc_weight == 0.3


def test_every_parameter_of_a_hybrid_gets_a_gradient():
    model = _model(decoder=_decoder(), normalize=UtteranceNormalization())
    model(**_batch())[0].backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not missing


@pytest.mark.parametrize("encoder", [TDNN(40, 32, 2), Conformer(40, 16, 1, n_heads=2)])
@pytest.mark.parametrize("decoder", [None, _decoder()])
def test_statistics_of_a_padded_batch_are_means_of_its_utterances(encoder, decoder):
    model = _model(encoder, decoder=decoder, normalize=UtteranceNormalization()).eval()
    _, together, _ = model(**_batch())
    alone = [model(**_batch([text]))[1] for text in TEXTS]
    for name, value in together.items():
        mean = sum(float(stats[name]) for stats in alone) / len(TEXTS)
        assert float(value) == pytest.approx(mean, rel=1e-4, abs=1e-5), name


def test_utterances_that_are_too_short_are_counted_and_harm_nothing():
    batch = _batch()
    batch["speech_lengths"][1] = 100  # one frame for three tokens
    model = _model()
    loss, stats, _ = model(**batch)
    loss.backward()
    assert stats["too_short"] == 0.25
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_empty_audio_and_empty_texts_give_finite_losses():
    batch = _batch(["abc", "d"])
    batch["speech_lengths"][1] = 0
    batch["tokens_lengths"][1] = 0
    for decoder in (None, _decoder()):
        loss, stats, _ = _model(decoder=decoder, normalize=UtteranceNormalization()).eval()(**batch)
        assert loss.isfinite()
        assert all(np.isfinite(float(value)) for value in stats.values())


def test_error_rates_are_those_of_the_greedy_texts():
    model = _model().eval()
    batch = _batch()
    encoded, lengths = model.encode(batch["speech"], batch["speech_lengths"])
    best = model.ctc_log_probs(encoded).argmax(-1)
    texts = []
    for row, n in zip(best.tolist(), lengths.tolist(), strict=True):
        path = row[:n]
        texts.append(
            TOKENIZER.decode([k for i, k in enumerate(path) if i == 0 or k != path[i - 1]])
        )
    _, stats, _ = model(**batch)
    pairs = list(zip(TEXTS, texts, strict=True))
    assert stats["cer"] == pytest.approx(100 * np.mean([jiwer.cer(r, h) for r, h in pairs]))
    assert stats["wer"] == pytest.approx(100 * np.mean([jiwer.wer(r, h) for r, h in pairs]))


def test_augmentation_is_only_for_training():
    model = _model(spec_augment=SpecAugment(max_time_width=20))
    batch = _batch()
    del batch["tokens"], batch["tokens_lengths"]

    def encode():
        return model.encode(batch["speech"], batch["speech_lengths"])[0]

    model.eval()
    assert torch.equal(encode(), encode())
    model.spec_augment.train()
    assert not torch.equal(encode(), encode())


def test_the_encoder_hears_normalised_features():
    batch = _batch()
    for normalize, is_same in ((UtteranceNormalization(), True), (None, False)):
        model = _model(normalize=normalize).eval()
        loud, _ = model.encode(batch["speech"], batch["speech_lengths"])
        quiet, _ = model.encode(0.5 * batch["speech"], batch["speech_lengths"])
        assert torch.allclose(loud, quiet, atol=1e-3) == is_same


def test_features_for_statistics_are_those_before_the_normalisation():
    model = _model(normalize=UtteranceNormalization())
    batch = _batch()
    collected = model.collect_feats(**batch, text=TEXTS)
    feats, lengths = model.frontend(batch["speech"], batch["speech_lengths"])
    assert torch.equal(collected["feats"], feats)
    assert torch.equal(collected["feats_lengths"], lengths)


def test_attributes_that_decoding_needs():
    model = _model()
    assert model.n_tokens == len(TOKENIZER.tokens) == 12
    assert model.sample_rate == RATE
    assert model.frame_seconds == pytest.approx(0.04)
    assert model.decoder is None
    log_probs = model.ctc_log_probs(torch.randn(2, 3, 32))
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, 3))


def test_log_probabilities_and_losses_stay_in_32_bits_under_autocast():
    model = _model(decoder=_decoder()).eval()
    exact = model(**_batch())[0]
    with torch.autocast("cpu", torch.bfloat16):
        loss, _, _ = model(**_batch())
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.05, atol=0.05)


def test_it_is_built_from_yaml_and_its_weights_survive_a_round_trip(awkward):
    TOKENIZER.save(awkward)
    parts = "espnet3.components.models"
    config = {
        "_target_": "espnet3.systems.asr.model.ASRModel",
        "tokenizer": str(awkward),
        "frontend": {"_target_": f"{parts}.log_mel.LogMel", "sample_rate": RATE, "n_mels": 40},
        "normalize": {"_target_": f"{parts}.normalization.UtteranceNormalization"},
        "spec_augment": {"_target_": f"{parts}.spec_augment.SpecAugment"},
        "encoder": {
            "_target_": f"{parts}.tdnn.TDNN",
            "input_size": 40,
            "n_channels": 16,
            "dilations": [1, 2],
        },
        "decoder": {
            "_target_": f"{parts}.attention_decoder.TransformerDecoder",
            "_partial_": True,
            "hidden": 16,
        },
        "ctc_weight": 0.3,
    }
    first, second = (instantiate(config, key="model").eval() for _ in range(2))
    assert first(**_batch())[0] != second(**_batch())[0]
    second.load_state_dict(first.state_dict())
    assert first(**_batch())[0] == second(**_batch())[0]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"encoder": TDNN(80, 8, 1)}, "input_size: 40"),
        ({"ctc_weight": 1.5}, "ctc_weight: 1.0"),
        ({"ctc_weight": -0.1, "decoder": _decoder()}, "ctc_weight: 0.3"),
        ({"ctc_weight": 0.3}, "no model.decoder.*_partial_: true"),
        ({"ctc_weight": 1, "decoder": _decoder()}, "ctc_weight: 0.3, or take the decoder out"),
        ({"decoder": TransformerDecoder(12, 32, hidden=8)}, "_partial_: true"),
        ({"label_smoothing": 1.0}, "label_smoothing: 0.1"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options, hint):
    with pytest.raises(ConfigError, match=hint):
        _model(**options)


def test_without_a_tokenizer_the_stage_that_makes_it_is_named(tmp_path):
    with pytest.raises(ConfigError, match="--stages train_tokenizer"):
        ASRModel(tmp_path / "none", LogMel(RATE, 40), TDNN(40, 8, 1))


def test_tokens_of_another_tokenizer_are_refused():
    batch = _batch()
    batch["tokens"][0, 0] = 12
    with pytest.raises(DataError, match=r"token 12, but .* has 12.*tokenizer\.save_path"):
        _model()(**batch)


@pytest.mark.parametrize(
    ("encoder", "decoder", "lr", "n_steps"),
    [
        (partial(TDNN, 40, 64, 2, 4, dropout=0.0), None, 3e-3, 40),
        (partial(Conformer, 40, 32, 1, 4, n_heads=2, dropout=0.0), None, 5e-3, 60),
        (partial(TDNN, 40, 64, 2, 4, dropout=0.0), _decoder(), 5e-3, 80),
    ],
    ids=["TDNN", "Conformer", "hybrid"],
)
def test_it_learns_four_utterances_by_heart(encoder, decoder, lr, n_steps):
    model = _model(encoder(), decoder=decoder, normalize=UtteranceNormalization())
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    batch = _batch()
    before = model.eval()(**batch)[1]
    model.train()
    for _ in range(n_steps):
        optimizer.zero_grad()
        model(**batch)[0].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    _, stats, _ = model.eval()(**batch)
    assert before["wer"] > 50
    assert stats["cer"] == stats["wer"] == 0
    if decoder is not None:
        assert before["acc"] < 0.5
        assert stats["acc"] == 1
