import pytest
import torch
from torch import nn

from espnet3.components.models.conformer import Conformer, DepthwiseConv
from espnet3.errors import ConfigError
from tests.helpers.encoder_parts import assert_padding_has_no_say, padded_features


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def _small(subsampling=4, **options):
    settings = {"n_heads": 2, "kernel_size": 5, **options}
    return Conformer(40, 16, 2, subsampling, **settings)


@pytest.mark.parametrize("subsampling", [1, 2, 4, 8])
def test_padding_has_no_say(subsampling):
    assert_padding_has_no_say(_small(subsampling), *padded_features([57, 40, 17, 2, 1]))


@pytest.mark.parametrize("subsampling", [2, 4, 8])
def test_frames_are_rounded_up_so_one_is_left(subsampling):
    encoder = _small(subsampling).eval()
    for n_frames in range(1, 41):
        encoded, lengths = encoder(torch.zeros(1, n_frames, 40), torch.tensor([n_frames]))
        assert lengths.item() == encoded.shape[1] == -(-n_frames // subsampling)
    assert (encoder.input_size, encoder.output_size, encoder.subsampling) == (40, 16, subsampling)


def test_an_item_without_frames_does_not_poison_the_batch():
    encoder = _small()
    encoded, lengths = encoder(torch.randn(2, 20, 40), torch.tensor([20, 0]))
    assert lengths.tolist() == [5, 0]
    encoded.sum().backward()
    assert encoded.isfinite().all()
    assert all(p.grad.isfinite().all() for p in encoder.parameters())


def test_every_frame_is_seen_by_every_other():
    encoder = _small().eval()
    feats = torch.randn(1, 80, 40, requires_grad=True)
    encoded, _ = encoder(feats, torch.tensor([80]))
    (gradient,) = torch.autograd.grad(encoded[0, 0].square().sum(), feats)
    assert (gradient[0].abs().sum(-1) > 0).all()


def test_the_same_seed_gives_the_same_weights_and_dropout():
    def run():
        torch.manual_seed(3)
        return _small()(*padded_features([30, 20]))[0]

    assert torch.equal(run(), run())


def test_weights_survive_a_round_trip():
    feats, lengths = padded_features([30, 20])
    first, second = _small().eval(), _small().eval()
    assert not torch.equal(first(feats, lengths)[0], second(feats, lengths)[0])
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(feats, lengths)[0], second(feats, lengths)[0])


def test_half_precision_is_close():
    feats, lengths = padded_features([30, 20])
    encoder = _small().eval()
    expected, _ = encoder(feats, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        encoded, _ = encoder(feats, lengths)
    torch.testing.assert_close(encoded.float(), expected, atol=0.1, rtol=0.05)


@pytest.mark.exhaustive  # torch.export takes seconds
def test_it_can_be_exported_for_any_batch_and_length():
    encoder = Conformer(8, 8, 1, 4, n_heads=2, kernel_size=3).eval()
    auto = torch.export.Dim.AUTO
    shapes = ({0: auto, 1: auto}, {0: auto})
    example = padded_features([40, 30, 5], size=8)
    exported = torch.export.export(encoder, example, dynamic_shapes=shapes)
    feats, lengths = padded_features([33, 8], size=8)
    encoded, n_frames = exported.module()(feats, lengths)
    expected = encoder(feats, lengths)
    torch.testing.assert_close(encoded, expected[0])
    assert torch.equal(n_frames, expected[1])


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"subsampling": 16}, "subsampling: 4"),
        ({"kernel_size": 8}, "kernel_size: 9"),
        ({"n_heads": 3}, "hidden: 192"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, hint):
    with pytest.raises(ConfigError, match=hint):
        _small(**options)


@pytest.mark.parametrize("kernel_size", [3, 31])
def test_a_depthwise_convolution_is_that_of_torch(kernel_size):
    options = {"padding": kernel_size // 2, "groups": 6}
    ours = DepthwiseConv(6, 6, kernel_size, **options)
    theirs = nn.Conv1d(6, 6, kernel_size, **options)
    theirs.load_state_dict(ours.state_dict())
    frames = torch.randn(3, 40, 6)
    results = []
    for conv in (ours, theirs):
        given = frames.clone().requires_grad_()
        out = conv(given.mT)
        out.square().sum().backward()
        results.append([out, given.grad, conv.weight.grad, conv.bias.grad])
    for mine, other in zip(*results, strict=True):
        assert torch.allclose(mine, other, atol=1e-4)
