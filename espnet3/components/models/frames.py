"""Frames of padded batches: which are real, and convolutions that turn them into fewer."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from espnet3.errors import ConfigError


def valid_frames(lengths: Tensor, n_frames: int, device: torch.device | None = None) -> Tensor:
    """Return [batch, n_frames], true where a frame lies before the end of its item.

    Args:
        lengths: Frames of each item.
        n_frames: Frames of the padded batch.
        device: Of the mask; None for that of `lengths`.

    Example:
        >>> valid_frames(torch.tensor([1, 3]), 3).int().tolist()
        [[1, 0, 0], [1, 1, 1]]
    """
    lengths = lengths if device is None else lengths.to(device)
    return torch.arange(n_frames, device=lengths.device) < lengths[:, None]


def zero_padding(values: Tensor, lengths: Tensor) -> Tensor:
    """Return [batch, time, ...] with 0 behind the end of each item."""
    is_padding = ~valid_frames(lengths, values.shape[1], values.device)
    return values.masked_fill(is_padding.view(is_padding.shape + (1,) * (values.dim() - 2)), 0.0)


_HALVINGS = {1: 0, 2: 1, 4: 2, 8: 3}


def n_halvings(subsampling: int) -> int:
    """Return how often the frames are halved.

    Raises:
        ConfigError: The number is none of 1, 2, 4 and 8.

    Example:
        >>> n_halvings(8)
        3
    """
    if subsampling not in _HALVINGS:
        raise ConfigError(
            f"model.encoder.subsampling is {subsampling!r}, but frames can be joined by "
            f"{', '.join(map(str, _HALVINGS))}.",
            fix="Write: subsampling: 4",
        )
    return _HALVINGS[subsampling]


def halved(lengths: Tensor) -> Tensor:
    """Return the frames left by a convolution of stride 2, kernel 3 and padding 1.

    That is half of them, rounded up, so an item with at least one frame keeps at least one.

    Example:
        >>> import torch
        >>> halved(torch.tensor([1, 4, 5])).tolist()
        [1, 2, 3]
    """
    return (lengths + 1) // 2


class Subsampling(nn.ModuleList):
    """Convolutions over time, each of stride 2 and normalised.

    They are not over time and frequency, as is usual: on a CPU these cost a fifth of the training
    of a small Conformer, which then learnt more slowly, and without a normalisation not at all.

    Args:
        input_size: Of a frame of features.
        output_size: Of a frame that comes out.
        subsampling: Frames that become one: 1, 2, 4 or 8; with 1, one convolution of stride 1.
        dropout: While training.

    Raises:
        ConfigError: The subsampling is unknown.
    """

    def __init__(
        self, input_size: int, output_size: int, subsampling: int = 4, dropout: float = 0.0
    ) -> None:
        n_layers = max(1, n_halvings(subsampling))
        sizes = [input_size] + n_layers * [output_size]
        self.stride = min(2, subsampling)
        super().__init__(
            TimeConvolution(n_in, n_out, 3, stride=self.stride, dropout=dropout)
            for n_in, n_out in pairwise(sizes)
        )

    def forward(self, feats: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return [batch, frames, output_size], and how many frames each item has."""
        # A convolution looks beyond the end of an item, and must not see what a batch has there.
        hidden = zero_padding(feats, lengths)
        for layer in self:
            lengths = halved(lengths) if self.stride == 2 else lengths
            # The bias and the normalisation fill padding with other values again.
            hidden = zero_padding(layer(hidden), lengths)
        return hidden, lengths


class TimeConvolution(nn.Module):
    """A convolution, normalised over its channels, which padding cannot disturb, and a ReLU.

    The frames that it sees are put side by side and multiplied once: the same numbers as
    `nn.Conv1d`, forward and backward in three quarters of its time on a CPU, as nothing has to be
    transposed for the normalisation.

    Args:
        n_in: Channels that come in.
        n_out: Channels that come out.
        kernel_size: Frames that it sees; odd.
        stride: Of so many frames, one comes out.
        dilation: Distance of the frames that it sees.
        dropout: While training.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        kernel_size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride
        self.dilation = dilation
        self.linear = nn.Linear(kernel_size * n_in, n_out)
        self.norm = nn.LayerNorm(n_out)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return [batch, frames / stride, n_out], rounded up; beyond the ends is 0."""
        reach = self.dilation * (self.kernel_size // 2)
        n_span = hidden.shape[1]
        padded = nn.functional.pad(hidden, (0, 0, reach, reach))
        starts = [i * self.dilation for i in range(self.kernel_size)]
        seen = torch.cat([padded[:, i : i + n_span : self.stride] for i in starts], dim=-1)
        normalized: Tensor = self.norm(self.linear(seen))
        return self.dropout(nn.functional.relu(normalized))  # type: ignore[no-any-return]
