import pytest
import torch

from espnet3.components.models.frames import Subsampling
from espnet3.errors import ConfigError
from tests.helpers.encoder_parts import assert_padding_has_no_say, padded_features
from tests.helpers.exhaustive import pairs


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.mark.parametrize("subsampling", [1, 2, 4, 8])
def test_padding_has_no_say(subsampling):
    module = Subsampling(40, 16, subsampling)
    assert_padding_has_no_say(module, *padded_features([57, 40, 17, 2, 1]))


@pytest.mark.parametrize(("subsampling", "n_bins"), pairs([1, 2, 4, 8], [1, 7, 23]))
def test_frames_are_rounded_up_and_any_size_will_do(subsampling, n_bins):
    module = Subsampling(n_bins, 8, subsampling)
    for n_frames in range(1, 41):
        reduced, lengths = module(torch.zeros(1, n_frames, n_bins), torch.tensor([n_frames]))
        assert lengths.item() == -(-n_frames // subsampling)
        assert reduced.shape == (1, lengths.item(), 8)


def test_an_unknown_factor_is_refused_with_those_that_are_known():
    with pytest.raises(ConfigError, match=r"subsampling is 6.*by 1, 2, 4, 8.*subsampling: 4"):
        Subsampling(40, 16, 6)
