"""Our joint search on ESPnet2's weights finds what ESPnet2's own search finds."""

import logging

import pytest

from espnet3.errors import ConfigError
from espnet3.systems.espnet2.inference import ESPnet2Inference
from tests.helpers.espnet2_models import noise

END = "<sos/eos>"


def recognizer(models, name="e_branchformer", lm=None, **settings):
    settings = {"beam_size": 5, "ctc_weight": 0.3, **settings}
    if lm is not None:
        folder = models[lm]
        files = {"lm_train_config": folder / "config.yaml", "lm_file": folder / "model.pth"}
        settings = {**files, "lm_weight": 0.5, **settings}
    folder = models[name]
    return ESPnet2Inference("asr", folder / "config.yaml", folder / "model.pth", **settings)


def check_equal(models, name="e_branchformer", **settings):
    ours = recognizer(models, name, decoder="espnet3", **settings)
    theirs = recognizer(models, name, decoder="espnet2", **settings)
    assert (ours.decoder, theirs.decoder) == ("espnet3", "espnet2")
    speech = noise()
    for mine, other in zip(ours(speech), theirs(speech), strict=True):
        # ESPnet2 leaves a second end in the text where one comes at the very limit.
        assert mine.tokens == tuple(token for token in other.tokens if token != END)
        assert mine.score == pytest.approx(other.score, abs=1e-4)
        for part, score in mine.n_best[0].scores.items():
            assert score == pytest.approx(other.n_best[0].scores[part], abs=1e-3)


@pytest.mark.parametrize("ctc_weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("lm", [None, "transformer", "seq_rnn"])
def test_best_hypothesis_and_score_are_those_of_espnet2(models, ctc_weight, lm):
    check_equal(models, ctc_weight=ctc_weight, lm=lm)


@pytest.mark.parametrize(
    "settings",
    [
        {"maxlenratio": 0.3},
        {"maxlenratio": -4},
        {"maxlenratio": 0.4, "penalty": 0.5},
        {"penalty": 0.7},
        {"penalty": -0.5},
        {"beam_size": 1},
        {"beam_size": 20, "nbest": 3},
    ],
    ids=str,
)
def test_limits_and_penalty_are_as_espnet2_defines_them(models, settings):
    check_equal(models, **settings)


@pytest.mark.parametrize(
    "settings",
    [{}, {"minlenratio": 0.2}, {"minlenratio": -3}, {"minlenratio": 0.5, "maxlenratio": 0.3}],
    ids=str,
)
def test_least_length_is_as_espnet2_defines_it(models, settings):
    check_equal(models, "short", **settings)


def test_a_batch_gives_the_same_as_one_by_one(models):
    model = recognizer(models, lm="transformer")
    speech = noise(7, seed=3)
    batch = model(speech)
    assert [one.text for one in batch] == [model(one).text for one in speech]
    assert len(model([speech[0]])) == 1


def test_ctc_alone_needs_no_decoder(models):
    check_equal(models, "ctc", ctc_weight=1.0)


def test_what_does_not_fit_is_searched_by_espnet2_and_the_log_says_why(models, caplog):
    with caplog.at_level(logging.INFO, "espnet3"):
        model = recognizer(models, "rnn")
    assert model.decoder == "espnet2"
    assert "the decoder is a RNNDecoder" in caplog.text
    assert isinstance(model(noise(1)[0]).text, str)


def test_our_search_where_it_does_not_fit_is_refused_with_the_line_to_write(models):
    with pytest.raises(ConfigError, match="Write decoder: espnet2"):
        recognizer(models, "rnn", decoder="espnet3")


def test_options_of_espnet2s_search_choose_it(models):
    model = recognizer(models, options={"normalize_length": True})
    assert model.decoder == "espnet2"
