"""What every encoder is tested for: what lies behind the end of an item has no say."""

import torch
from torch import nn


def padded_features(lengths, size=40, seed=0):
    """Return random features with garbage, even infinities, behind the end of each item."""
    generator = torch.Generator().manual_seed(seed)
    feats = torch.randn(len(lengths), max(lengths), size, generator=generator)
    for row, length in zip(feats, lengths, strict=True):
        row[length:] = float("inf")
    return feats, torch.tensor(lengths)


def assert_padding_has_no_say(module: nn.Module, feats, lengths, tolerance=1e-5):
    """Compare a padded batch with its items alone, and look at the gradients."""
    module.eval()
    together, n_together = module(feats, lengths)
    for i, length in enumerate(lengths.tolist()):
        alone, n_alone = module(feats[i : i + 1, :length], lengths[i : i + 1])
        assert n_alone.item() == n_together[i].item() == alone.shape[1]
        torch.testing.assert_close(
            together[i, : n_alone.item()], alone[0], rtol=tolerance, atol=tolerance
        )
        assert not together[i, n_alone.item() :].any()
    together.square().mean().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
