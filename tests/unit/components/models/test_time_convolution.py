import pytest
import torch
from torch import nn

from espnet3.components.models.frames import TimeConvolution


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 3])
def test_it_is_a_convolution(kernel_size, stride, dilation):
    torch.manual_seed(0)
    layer = TimeConvolution(6, 8, kernel_size, stride=stride, dilation=dilation)
    conv = nn.Conv1d(6, 8, kernel_size, stride, dilation * (kernel_size // 2), dilation)
    conv.weight.data = layer.linear.weight.data.view(8, kernel_size, 6).transpose(1, 2)
    conv.bias.data = layer.linear.bias.data
    for n_frames in (1, 2, 11, 12):
        hidden = torch.randn(2, n_frames, 6)
        expected = nn.functional.relu(layer.norm(conv(hidden.transpose(1, 2)).transpose(1, 2)))
        torch.testing.assert_close(layer(hidden), expected)
