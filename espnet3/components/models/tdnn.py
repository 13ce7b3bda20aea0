"""A time-delay neural network: the small and fast encoder."""

from collections.abc import Sequence

from torch import Tensor, nn

from espnet3.components.models.frames import Subsampling, TimeConvolution, zero_padding
from espnet3.errors import ConfigError


class TDNN(nn.Module):
    """Convolutions over time: a few with stride 2, then residual ones at the lower rate.

    Args:
        input_size: Of a frame of features; `n_mels` of the front end.
        n_channels: Of each layer, and of what comes out.
        n_layers: Residual layers, behind those that lower the rate.
        subsampling: Frames that become one: 1, 2, 4 or 8.
        kernel_size: Frames that a residual layer sees; odd.
        dilations: Distance of these frames, layer by layer; repeated if there are more layers.
        dropout: While training.

    Raises:
        ConfigError: The subsampling is unknown, the kernel even, or there are no dilations.
    """

    def __init__(
        self,
        input_size: int,
        n_channels: int = 128,
        n_layers: int = 6,
        subsampling: int = 4,
        *,
        kernel_size: int = 5,
        dilations: Sequence[int] = (1,),
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if kernel_size % 2 == 0:
            raise ConfigError(
                f"model.encoder.kernel_size is {kernel_size}, which has no middle.",
                fix=f"Write: kernel_size: {kernel_size + 1}",
            )
        if not dilations:
            raise ConfigError("model.encoder.dilations is empty.", fix="Write: dilations: [1]")
        self.input_size = input_size
        self.output_size = n_channels
        self.subsampling = subsampling
        self.subsample = Subsampling(input_size, n_channels, subsampling, dropout)
        self.layers = nn.ModuleList(
            TimeConvolution(
                n_channels,
                n_channels,
                kernel_size,
                dilation=dilations[i % len(dilations)],
                dropout=dropout,
            )
            for i in range(n_layers)
        )

    def forward(self, feats: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return [batch, frames, n_channels], and how many frames each item has.

        Args:
            feats: [batch, frames, input_size].
            lengths: Frames of each item.
        """
        hidden, lengths = self.subsample(feats, lengths)
        for layer in self.layers:
            # Both terms are 0 in padding, so the next layer sees zeros beyond the end as well.
            hidden = hidden + zero_padding(layer(hidden), lengths)
        return hidden, lengths
