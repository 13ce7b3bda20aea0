"""Normalisation: of the corpus by its statistics file, of an item by itself, never of padding."""

import numpy as np
import pytest
import torch

from espnet3.components.data.errors import DataError
from espnet3.components.data.stats import Moments, save_stats
from espnet3.components.models.normalization import GlobalNormalization, UtteranceNormalization

LENGTHS = torch.tensor([5, 3])


@pytest.fixture
def data():
    return np.random.default_rng(0).standard_normal((1000, 3)) * [1, 2, 3] + [10, 0, -5]


@pytest.fixture
def stats_file(awkward, data):
    path = awkward / "feats_stats.npz"
    save_stats(path, Moments.of(data))
    return path


def batch_of(data):
    return torch.tensor(data[:10], dtype=torch.float32).view(2, 5, 3)


def test_the_corpus_has_mean_0_and_variance_1(stats_file, data):
    values, lengths = GlobalNormalization(stats_file)(torch.tensor(data)[None])
    assert lengths is None
    torch.testing.assert_close(values.mean((0, 1)), torch.zeros(3).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(values.var((0, 1), correction=0), torch.ones(3).double())


@pytest.mark.parametrize("normalize", ["global", "utterance"])
def test_padding_is_zero_and_does_not_matter(stats_file, data, normalize):
    module = GlobalNormalization(stats_file) if normalize == "global" else UtteranceNormalization()
    feats = batch_of(data)
    values, lengths = module(feats, LENGTHS)
    assert lengths is LENGTHS
    assert values[1, 3:].abs().max() == 0
    feats[1, 3:] = float("nan")
    torch.testing.assert_close(module(feats, LENGTHS)[0], values)
    torch.testing.assert_close(values[1, :3], module(feats[1:, :3])[0][0])


def test_means_or_variances_alone(stats_file, data):
    feats = batch_of(data)
    means = GlobalNormalization(stats_file, norm_vars=False)(feats)[0]
    torch.testing.assert_close(means, feats - torch.tensor(data.mean(0)).float())
    scaled = GlobalNormalization(stats_file, norm_means=False)(feats)[0]
    torch.testing.assert_close(scaled, feats / torch.tensor(data.std(0)).float())
    own = UtteranceNormalization(norm_means=False)(feats)[0]
    torch.testing.assert_close(own, feats / feats.std(1, correction=0, keepdim=True))
    own = UtteranceNormalization(norm_vars=False)(feats)[0]
    torch.testing.assert_close(own, feats - feats.mean(1, keepdim=True))


def test_an_item_far_from_zero_and_one_of_a_constant_stay_finite():
    feats = 1e4 + torch.randn(1, 200, 2, generator=torch.Generator().manual_seed(0))
    values = UtteranceNormalization()(feats)[0]
    assert abs(values.var(correction=0) - 1) < 1e-2
    assert UtteranceNormalization()(torch.full((1, 5, 2), 3.0))[0].abs().max() == 0


def test_inverse_undoes_it(stats_file, data):
    module, feats = GlobalNormalization(stats_file), batch_of(data)
    values, _ = module(feats, LENGTHS)
    again, _ = module.inverse(values, LENGTHS)
    torch.testing.assert_close(again[0], feats[0])
    torch.testing.assert_close(again[1, :3], feats[1, :3])
    assert again[1, 3:].abs().max() == 0


def test_a_constant_dimension_is_not_divided_by_zero(tmp_path):
    path = tmp_path / "s.npz"
    save_stats(path, Moments.of(np.full((4, 1), 7.0)))
    assert GlobalNormalization(path)(torch.full((1, 2, 1), 7.0))[0].abs().max() == 0


def test_half_precision_comes_back_as_it_came(stats_file, data):
    feats = batch_of(data).bfloat16()
    assert GlobalNormalization(stats_file)(feats)[0].dtype is torch.bfloat16
    assert UtteranceNormalization()(feats)[0].dtype is torch.bfloat16


def test_a_checkpoint_brings_the_values_where_there_is_no_file(stats_file, data, tmp_path):
    trained = torch.nn.Sequential(GlobalNormalization(stats_file))
    torch.save(trained.state_dict(), tmp_path / "model.pt")
    elsewhere = torch.nn.Sequential(GlobalNormalization(tmp_path / "not here.npz"))
    elsewhere.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    feats = batch_of(data)
    torch.testing.assert_close(elsewhere[0](feats)[0], trained[0](feats)[0])


def test_without_file_or_checkpoint_the_stage_to_run_is_told(tmp_path):
    module = GlobalNormalization(tmp_path / "feats_stats.npz")
    with pytest.raises(DataError, match=r"feats_stats.npz does not exist.*--stages collect_stats"):
        module(torch.zeros(1, 2, 3))


def test_statistics_of_other_features_are_refused(stats_file):
    with pytest.raises(DataError, match=r"\[1, 2, 4\][\s\S]*\[3\].*collect_stats.resume=false"):
        GlobalNormalization(stats_file)(torch.zeros(1, 2, 4))


def test_a_waveform_is_normalised_as_well(tmp_path):
    path = tmp_path / "speech_stats.npz"
    save_stats(path, Moments.of(np.array([1.0, 3.0])))
    values, _ = GlobalNormalization(path)(torch.tensor([[3.0, 1.0]]), torch.tensor([1]))
    assert values.tolist() == [[1.0, 0.0]]
