import pytest
import torch

from espnet3.components.schedulers import WarmupLR


def test_the_rate_rises_to_that_of_the_optimizer_and_falls_with_the_root():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = WarmupLR(optimizer, warmup_steps=4)
    rates = []
    for _ in range(16):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[:4] == pytest.approx([0.125, 0.25, 0.375, 0.5])
    assert rates[15] == pytest.approx(0.25)


def test_its_state_is_plain(tmp_path):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    torch.save(WarmupLR(optimizer, 4).state_dict(), tmp_path / "state")
    assert torch.load(tmp_path / "state", weights_only=True)["warmup_steps"] == 4


def test_no_warm_up_is_an_error():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    with pytest.raises(ValueError, match="above 0"):
        WarmupLR(optimizer, warmup_steps=0)
