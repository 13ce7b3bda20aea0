import pytest
import torch

from espnet3.trainer.module import StatMeter


def test_a_mean_is_weighted_and_over_the_batches_that_have_it():
    meter = StatMeter()
    meter.add({"loss": torch.tensor(1.0), "cer": 0.5}, torch.tensor(3))
    meter.add({"loss": 5.0}, 1)
    assert meter.take() == {"loss": 2.0, "cer": 0.5}
    assert meter.take() == {}


def test_prefixes_keep_optimizers_apart():
    meter = StatMeter()
    meter.add({"loss": 1.0}, 1, "generator/")
    meter.add({"loss": 2.0}, 1, "discriminator/")
    assert meter.take() == {"generator/loss": 1.0, "discriminator/loss": 2.0}


def test_sums_do_not_round_away():
    meter = StatMeter()
    value = torch.tensor(0.1, dtype=torch.bfloat16)
    for _ in range(3000):
        meter.add({"loss": value}, 1)
    assert meter.take()["loss"] == pytest.approx(float(value), rel=1e-12)


def test_a_weight_of_zero_is_no_mean():
    meter = StatMeter()
    meter.add({"loss": 1.0}, 0)
    assert meter.take() == {}


def test_values_keep_no_graph():
    meter = StatMeter()
    meter.add({"loss": torch.tensor(1.0, requires_grad=True)}, 1)
    assert not any(part.requires_grad for part in meter._sums["loss"] if torch.is_tensor(part))
