"""Convolutions that turn features into fewer frames."""

from torch import Tensor, nn

from espnet3.components.models.masks import zero_padding
from espnet3.errors import ConfigError

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
            f"{', '.join(map(str, _HALVINGS))}. Write: subsampling: 4"
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


class Subsampling(nn.Module):
    """Convolutions over time and frequency, each of stride 2, a projection and a normalisation.

    Args:
        input_size: Of a frame of features.
        output_size: Of a frame that comes out.
        subsampling: Frames that become one: 1, 2, 4 or 8.
        n_channels: Of the convolutions.

    Raises:
        ConfigError: The subsampling is unknown.
    """

    def __init__(
        self, input_size: int, output_size: int, subsampling: int = 4, n_channels: int = 32
    ) -> None:
        super().__init__()
        self.n_halvings = n_halvings(subsampling)
        self.convs = nn.ModuleList()
        n_bins, n_in = input_size, 1
        for _ in range(max(1, self.n_halvings)):
            stride = (2, 2) if self.n_halvings else (1, 2)
            self.convs.append(nn.Conv2d(n_in, n_channels, 3, stride, padding=1))
            n_bins, n_in = (n_bins + 1) // 2, n_channels
        self.project = nn.Linear(n_bins * n_channels, output_size)
        # Without it, what comes out is a tenth of what the layers behind add to it, each step of
        # the optimizer moves it by more than that, and a small Conformer does not learn.
        self.norm = nn.LayerNorm(output_size)

    def forward(self, feats: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return [batch, frames, output_size], and how many frames each item has."""
        hidden = zero_padding(feats, lengths)[:, None]
        for conv in self.convs:
            lengths = halved(lengths) if self.n_halvings else lengths
            activated = nn.functional.relu(conv(hidden)).transpose(1, 2)
            hidden = zero_padding(activated, lengths).transpose(1, 2)
        projected = self.norm(self.project(hidden.transpose(1, 2).flatten(2)))
        return zero_padding(projected, lengths), lengths
