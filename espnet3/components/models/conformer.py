"""The Conformer: relative self-attention for what is far, convolution for what is near."""

import torch
from torch import Tensor, nn

from espnet3.components.models.frames import Subsampling, valid_frames
from espnet3.components.models.token_transformer import sinusoids
from espnet3.errors import ConfigError


class Conformer(nn.Module):
    """An encoder of Conformer blocks (arXiv 2005.08100) behind convolutions that lower the rate.

    Differs from the paper in that the convolutions are normalised over channels instead of over
    the batch: padding and the other utterances of a batch then have no say.

    Args:
        input_size: Of a frame of features; `n_mels` of the front end.
        hidden: Of a frame between the blocks, and of what comes out; even.
        n_layers: Blocks.
        subsampling: Frames that become one: 1, 2, 4 or 8.
        n_heads: Of the attention; they share `hidden`.
        feed_forward: Size within the feed-forward networks; None: four times `hidden`.
        kernel_size: Frames that the convolutions see; odd.
        dropout: While training.

    Raises:
        ConfigError: The subsampling is unknown, the kernel even, or the heads do not fit.
    """

    def __init__(
        self,
        input_size: int,
        hidden: int = 144,
        n_layers: int = 4,
        subsampling: int = 4,
        *,
        n_heads: int = 4,
        feed_forward: int | None = None,
        kernel_size: int = 15,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.output_size = hidden
        self.subsampling = subsampling
        self.subsample = Subsampling(input_size, hidden, subsampling, dropout)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            ConformerLayer(
                hidden,
                n_heads,
                feed_forward=feed_forward or 4 * hidden,
                kernel_size=kernel_size,
                dropout=dropout,
            )
            for _ in range(n_layers)
        )

    def forward(self, feats: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return [batch, frames, hidden], and how many frames each item has.

        Args:
            feats: [batch, frames, input_size].
            lengths: Frames of each item.
        """
        frames, lengths = self.subsample(feats, lengths)
        # An item without a frame attends to one of padding: attention to nothing is not a number.
        is_valid = valid_frames(lengths.clamp_min(1), frames.shape[1], frames.device)
        distances = self.dropout(distance_vectors(frames))
        for layer in self.layers:
            frames = layer(frames, distances, is_valid)
        return frames.masked_fill(~is_valid[..., None], 0.0), lengths


class ConformerLayer(nn.Module):
    """Half a feed-forward network, attention, convolution, the other half; each adds to its input.

    Args:
        size: Of a frame.
        n_heads: Of the attention.
        feed_forward: Size within the feed-forward networks.
        kernel_size: Of the convolution.
        dropout: While training.
    """

    def __init__(
        self, size: int, n_heads: int, *, feed_forward: int, kernel_size: int, dropout: float
    ) -> None:
        super().__init__()
        self.before = _feed_forward(size, feed_forward, dropout)
        self.attention_norm = nn.LayerNorm(size)
        self.attention = RelativeAttention(size, n_heads, dropout)
        self.convolution = Convolution(size, kernel_size)
        self.behind = _feed_forward(size, feed_forward, dropout)
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, frames: Tensor, distances: Tensor, is_valid: Tensor) -> Tensor:
        """Return [batch, frames, size]; see `RelativeAttention.forward`."""
        frames = frames + 0.5 * self.dropout(self.before(frames))
        attended = self.attention(self.attention_norm(frames), distances, is_valid)
        frames = frames + self.dropout(attended)
        frames = frames + self.dropout(self.convolution(frames, is_valid))
        frames = frames + 0.5 * self.dropout(self.behind(frames))
        return self.norm(frames)  # type: ignore[no-any-return]


class Convolution(nn.Module):
    """A gated convolution over the frames around each, channel by channel.

    Args:
        size: Of a frame.
        kernel_size: Frames that it sees; odd.

    Raises:
        ConfigError: The kernel is even.
    """

    def __init__(self, size: int, kernel_size: int) -> None:
        super().__init__()
        if kernel_size % 2 == 0:
            raise ConfigError(
                f"model.encoder.kernel_size is {kernel_size}, which has no middle.",
                fix=f"Write: kernel_size: {kernel_size + 1}",
            )
        self.input = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.GLU())
        self.conv = DepthwiseConv(size, size, kernel_size, padding=kernel_size // 2, groups=size)
        self.output = nn.Sequential(nn.LayerNorm(size), nn.SiLU(), nn.Linear(size, size))

    def forward(self, frames: Tensor, is_valid: Tensor) -> Tensor:
        """Return [batch, frames, size]; frames of padding count as 0."""
        gated = self.input(frames).masked_fill(~is_valid[..., None], 0.0)
        return self.output(self.conv(gated.mT).mT)  # type: ignore[no-any-return]


class DepthwiseConv(nn.Conv1d):
    """`nn.Conv1d` with a channel for each group, several times as fast on a CPU.

    Weights and names are the same, and results up to rounding. Frames that come as a
    transposed view of `[batch, frames, channels]`, as in a Conformer, need not be copied.

    Example:
        >>> conv = DepthwiseConv(4, 4, 3, padding=1, groups=4)
        >>> conv(torch.zeros(2, 7, 4).mT).shape
        torch.Size([2, 4, 7])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return [batch, channels, frames]."""
        is_plain = input.dim() == 3 and self.padding_mode == "zeros"
        if input.device.type != "cpu" or not is_plain or isinstance(self.padding, str):
            return super().forward(input)
        # As an image of one row whose pixels are frames: oneDNN has a kernel for channels that lie
        # side by side only of images.
        row = input.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        out = nn.functional.conv2d(
            row,
            self.weight.unsqueeze(2),
            self.bias,
            stride=(1, *self.stride),
            padding=(0, *self.padding),
            dilation=(1, *self.dilation),
            groups=self.groups,
        )
        return out.squeeze(2)


def _feed_forward(size: int, inner: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(size),
        nn.Linear(size, inner),
        nn.SiLU(),
        nn.Dropout(dropout),
        nn.Linear(inner, size),
    )


class RelativeAttention(nn.Module):
    """Attention with several heads, whose scores depend on content and on distance.

    The score of frame i for frame j is `(q_i + u) k_j + (q_i + v) r_(i-j)`, divided by the root of
    the size of a head, as in Transformer-XL (arXiv 1901.02860): `r` is a projection of sines and
    cosines of the distance, `u` and `v` are learnt.

    Args:
        size: Of a frame; even.
        n_heads: Attentions beside each other; they share `size`.
        dropout: Of the attention, while training.

    Raises:
        ConfigError: The heads cannot share the size evenly.
    """

    def __init__(self, size: int, n_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if n_heads < 1 or size % n_heads or size % 2:
            raise ConfigError(
                f"model.encoder has hidden: {size} and n_heads: {n_heads}, but hidden must be even "
                "and a multiple of n_heads.",
                fix=f"Write for example: hidden: {64 * max(1, n_heads)}",
            )
        self.n_heads = n_heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(size, 3 * size)
        self.distance = nn.Linear(size, size, bias=False)
        self.output = nn.Linear(size, size)
        self.content_bias = nn.Parameter(torch.zeros(n_heads, 1, size // n_heads))
        self.distance_bias = nn.Parameter(torch.zeros(n_heads, 1, size // n_heads))

    def forward(self, frames: Tensor, distances: Tensor, is_valid: Tensor) -> Tensor:
        """Return [batch, frames, size].

        Args:
            frames: [batch, frames, size].
            distances: What `distance_vectors` returned for as many frames.
            is_valid: [batch, frames]; false where a frame is padding, to which none attends.
        """
        query, key, value = (self._split(x) for x in self.query_key_value(frames).chunk(3, -1))
        scale = query.shape[-1] ** -0.5
        by_distance = (query + self.distance_bias) @ self._split(self.distance(distances)).mT
        # As an additive mask, for the fused kernel, which scales only its own product.
        bias = (shift(by_distance) * scale).masked_fill(~is_valid[:, None, None], float("-inf"))
        attended = nn.functional.scaled_dot_product_attention(
            query + self.content_bias,
            key,
            value,
            attn_mask=bias,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.output(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split(self, values: Tensor) -> Tensor:
        """Return [..., n, size] as [..., n_heads, n, size / n_heads]."""
        *others, size = values.shape
        # Not -1, whose meaning torch.export cannot work out for every length.
        return values.view(*others, self.n_heads, size // self.n_heads).transpose(-3, -2)


def distance_vectors(frames: Tensor) -> Tensor:
    """Return [2 n - 1, size] for n frames: the distances from n - 1 down to 1 - n."""
    n = frames.shape[1]
    return sinusoids(2 * n - 1, frames.shape[2], start=1 - n, like=frames).flip(0)


def shift(by_distance: Tensor) -> Tensor:
    """Turn scores of [frame, distance] into scores of [frame, other frame].

    Row i of the input has the distances from n - 1 down to 1 - n; what row i of the output wants
    is i to i - n + 1, so each row begins one column before the one above it. A step from row to
    row that is shorter by one reads that without copying.

    Args:
        by_distance: [..., n, 2 n - 1].

    Example:
        >>> shift(torch.tensor([[1.0, 0.0, -1.0], [1.0, 0.0, -1.0]])).tolist()
        [[0.0, -1.0], [1.0, 0.0]]
    """
    *others, n, _ = by_distance.shape
    # as_strided() steps through storage, so rows must lie directly behind each other.
    scores = by_distance.contiguous()
    *steps, step, _ = scores.stride()
    offset = scores.storage_offset() + n - 1
    return scores.as_strided((*others, n, n), (*steps, step - 1, 1), offset)
