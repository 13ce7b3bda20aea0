import pytest
import torch

from espnet3.components.models.tdnn import TDNN
from espnet3.errors import ConfigError
from tests.helpers.encoder_parts import assert_padding_has_no_say, padded_features


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.mark.parametrize("subsampling", [1, 2, 4, 8])
@pytest.mark.parametrize("dilations", [(1,), (1, 3)])
def test_padding_has_no_say(subsampling, dilations):
    encoder = TDNN(40, 16, 3, subsampling, dilations=dilations)
    assert_padding_has_no_say(encoder, *padded_features([57, 40, 17, 2, 1]))


@pytest.mark.parametrize("subsampling", [1, 2, 4, 8])
def test_frames_are_rounded_up_so_one_is_left(subsampling):
    encoder = TDNN(4, 8, 1, subsampling)
    for n_frames in range(1, 41):
        encoded, lengths = encoder(torch.zeros(1, n_frames, 4), torch.tensor([n_frames]))
        assert lengths.item() == encoded.shape[1] == -(-n_frames // subsampling)
    assert (encoder.input_size, encoder.output_size, encoder.subsampling) == (4, 8, subsampling)


def test_a_frame_is_seen_as_far_as_kernels_and_dilations_reach():
    encoder = TDNN(4, 8, 3, 1, kernel_size=3, dilations=(1, 4))
    feats = torch.randn(1, 61, 4, requires_grad=True)
    encoded, _ = encoder.eval()(feats, torch.tensor([61]))
    (gradient,) = torch.autograd.grad(encoded[0, 30].sum(), feats)
    seen = gradient[0].abs().sum(-1).nonzero().flatten()
    reach = 1 + (1 + 4 + 1)  # the first layer, then dilations 1, 4, 1
    assert (seen.min().item(), seen.max().item()) == (30 - reach, 30 + reach)


def test_the_default_is_small():
    n_parameters = sum(p.numel() for p in TDNN(40).parameters())
    assert n_parameters == 559_104


def test_the_same_seed_gives_the_same_weights_and_dropout():
    def run():
        torch.manual_seed(3)
        encoder = TDNN(40, 16, 2)
        return encoder(*padded_features([30, 20]))[0]

    assert torch.equal(run(), run())


def test_weights_survive_a_round_trip():
    feats, lengths = padded_features([30, 20])
    first, second = TDNN(40, 16, 2).eval(), TDNN(40, 16, 2).eval()
    assert not torch.equal(first(feats, lengths)[0], second(feats, lengths)[0])
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(feats, lengths)[0], second(feats, lengths)[0])


def test_half_precision_is_close():
    feats, lengths = padded_features([30, 20])
    encoder = TDNN(40, 16, 2).eval()
    expected, _ = encoder(feats, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        encoded, _ = encoder(feats, lengths)
    torch.testing.assert_close(encoded.float(), expected, atol=0.1, rtol=0.05)


def test_it_can_be_exported_for_any_batch_and_length():
    encoder = TDNN(40, 16, 1, 4).eval()
    auto = torch.export.Dim.AUTO
    shapes = ({0: auto, 1: auto}, {0: auto})
    exported = torch.export.export(encoder, padded_features([40, 30, 5]), dynamic_shapes=shapes)
    feats, lengths = padded_features([33, 8])
    expected = encoder(feats, lengths)
    encoded, n_frames = exported.module()(feats, lengths)
    torch.testing.assert_close(encoded, expected[0])
    assert torch.equal(n_frames, expected[1])


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"subsampling": 3}, "subsampling: 4"),
        ({"kernel_size": 4}, "kernel_size: 5"),
        ({"dilations": ()}, r"dilations: \[1\]"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, hint):
    with pytest.raises(ConfigError, match=hint):
        TDNN(40, **options)
