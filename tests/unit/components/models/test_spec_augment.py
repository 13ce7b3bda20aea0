import pytest
import torch

from espnet3.components.models.spec_augment import SpecAugment


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def test_bands_and_spans_are_hidden_within_each_sample():
    masking = SpecAugment(n_freq_masks=1, max_freq_width=8, n_time_masks=1, max_time_width=10)
    features = torch.ones(64, 100, 40)
    lengths = torch.randint(50, 101, (64,))
    hidden = masking(features, lengths) == 0
    for sample, length in zip(hidden, lengths.tolist(), strict=True):
        rows, columns = sample.all(dim=1), sample.all(dim=0)
        assert torch.equal(sample, rows[:, None] | columns[None, :])
        assert not rows[length:].any()
        assert rows.sum() <= 10
        assert columns.sum() <= 8
        for line in (rows, columns):  # one run each
            assert (line.int().diff(prepend=torch.tensor([0])) == 1).sum() <= 1
    assert (hidden[0] != hidden[1]).any()
    assert 0.05 < hidden.float().mean() < 0.3


def test_every_frame_and_bin_can_be_hidden():
    masking = SpecAugment(1, 3, 1, 3, max_time_part=1.0)
    hidden = masking(torch.ones(4000, 12, 12)) == 0
    assert hidden.all(dim=2).any(dim=0).all()
    assert hidden.all(dim=1).any(dim=0).all()


def test_short_samples_keep_most_of_their_frames():
    masking = SpecAugment(n_freq_masks=0, n_time_masks=1, max_time_width=40, max_time_part=0.2)
    hidden = masking(torch.ones(200, 10, 4), torch.full((200,), 10)) == 0
    assert hidden[:, :, 0].sum(dim=1).max() == 2


def test_it_follows_torchs_generator_and_rests_in_evaluation():
    masking, features = SpecAugment(), torch.randn(2, 60, 80)
    torch.manual_seed(1)
    first = masking(features)
    torch.manual_seed(1)
    assert torch.equal(masking(features), first)
    assert not torch.equal(masking(features), first)
    assert masking(features[0]).shape == (60, 80)
    assert masking.eval()(features) is features
    assert "n_time_masks=2" in repr(masking)
