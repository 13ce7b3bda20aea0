"""Our transducer loss as ESPnet2 calls it."""

import sys

import pytest
import torch

from espnet3.components.models.losses import rnnt_loss
from espnet3.errors import ConfigError
from espnet3.systems.espnet2.transducer_loss import RNNTLoss, provide_loss


def test_padding_is_no_token_and_the_mean_is_over_utterances():
    logits = torch.randn(2, 5, 3, 4, requires_grad=True)
    tokens = torch.tensor([[1, 2], [3, -1]], dtype=torch.int32)
    lengths = torch.tensor([5, 4], dtype=torch.int32)
    n_tokens = torch.tensor([2, 1], dtype=torch.int32)
    each = rnnt_loss(logits, lengths.long(), tokens.long().clamp_min(0), n_tokens.long())
    loss = RNNTLoss(blank=0)(logits, tokens, lengths, n_tokens)
    assert loss.item() == pytest.approx(each.mean().item())
    loss.backward()
    assert torch.isfinite(logits.grad).all()
    total = RNNTLoss(reduction="sum")(logits, tokens, lengths, n_tokens)
    assert total.item() == pytest.approx(each.sum().item())


def test_what_our_loss_does_not_have_is_refused():
    with pytest.raises(ConfigError, match=r"Write: fastemit_lambda: 0\.0"):
        RNNTLoss(fastemit_lambda=0.1)


def test_the_package_of_espnet2_wins_where_it_is_installed(monkeypatch):
    there = object()
    monkeypatch.setitem(sys.modules, "warprnnt_pytorch", there)
    provide_loss()
    assert sys.modules["warprnnt_pytorch"] is there


def test_without_it_ours_is_found_by_its_name(monkeypatch):
    # Restores the absence afterwards.
    monkeypatch.setitem(sys.modules, "warprnnt_pytorch", None)
    monkeypatch.delitem(sys.modules, "warprnnt_pytorch")
    provide_loss()
    from warprnnt_pytorch import RNNTLoss as found

    assert found is RNNTLoss
