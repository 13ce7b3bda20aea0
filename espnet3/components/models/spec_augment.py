"""SpecAugment: hide random bands and spans of features while training."""

import torch


class SpecAugment(torch.nn.Module):
    """Sets random bands of frequencies and spans of time to a value, in each sample others.

    In `eval()` mode it does nothing. Masks are drawn from PyTorch's generator of the features'
    device, on each rank from its own.

    Args:
        n_freq_masks: Bands in each sample.
        max_freq_width: Bins of the widest band.
        n_time_masks: Spans in each sample.
        max_time_width: Frames of the longest span.
        max_time_part: No span is longer than this part of the sample.
        value: What hides; the mean of the features, which is 0 where they are normalised.
    """

    def __init__(
        self,
        n_freq_masks: int = 2,
        max_freq_width: int = 27,
        n_time_masks: int = 2,
        max_time_width: int = 40,
        *,
        max_time_part: float = 0.2,
        value: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_freq_masks = n_freq_masks
        self.max_freq_width = max_freq_width
        self.n_time_masks = n_time_masks
        self.max_time_width = max_time_width
        self.max_time_part = max_time_part
        self.value = value

    def forward(self, features: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Return features with parts hidden.

        Args:
            features: [batch, time, bins], or [time, bins].
            lengths: Frames of each sample that are not padding; None for all.
        """
        if not self.training:
            return features
        if features.ndim == 2:
            return self.forward(features[None], lengths)[0]
        n_samples, n_frames, n_bins = features.shape
        if lengths is None:
            lengths = features.new_full((n_samples,), n_frames, dtype=torch.int64)
        frames = lengths.to(features.device)
        bins = torch.full_like(frames, n_bins)
        widest = (frames * self.max_time_part).long().clamp(max=self.max_time_width)
        hidden = _spans(n_frames, frames, widest, self.n_time_masks)[:, :, None]
        band = bins.clamp(max=self.max_freq_width)
        hidden = hidden | _spans(n_bins, bins, band, self.n_freq_masks)[:, None, :]
        return features.masked_fill(hidden, self.value)

    def extra_repr(self) -> str:
        """Return what `print(model)` shows."""
        return (
            f"n_freq_masks={self.n_freq_masks}, max_freq_width={self.max_freq_width}, "
            f"n_time_masks={self.n_time_masks}, max_time_width={self.max_time_width}, "
            f"max_time_part={self.max_time_part}"
        )


def _spans(
    size: int, lengths: torch.Tensor, max_widths: torch.Tensor, n_masks: int
) -> torch.Tensor:
    """Return a mask [batch, size] of `n_masks` random spans within each length."""
    shape = (len(lengths), n_masks)
    # rand() stays below 1, so without + 1 the widest span would never be drawn.
    widths = (torch.rand(shape, device=lengths.device) * (max_widths[:, None] + 1)).long()
    room = lengths[:, None] - widths + 1
    starts = (torch.rand(shape, device=lengths.device) * room).long()
    positions = torch.arange(size, device=lengths.device)
    inside = (positions >= starts[..., None]) & (positions < (starts + widths)[..., None])
    return inside.any(dim=1)
