import pytest
import torch

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.optimization.optimization_config import OptimizationConfig, check_optimizers

ADAM = "optimizer: {_target_: torch.optim.AdamW, lr: 0.001}"
LR = "torch.optim.lr_scheduler"


class OnlyMine(torch.optim.SGD):
    """Refuses whatever is not the model it was written for."""

    def __init__(self, params, **kwargs):
        raise AssertionError("built without a model")


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Return a function that checks the lines of a config."""
    monkeypatch.chdir(tmp_path)

    def check_lines(*lines: str):
        (tmp_path / "training.yaml").write_text("".join(f"{line}\n" for line in lines))
        loaded = load_config("training.yaml")
        optimization = OptimizationConfig.from_config(loaded)
        with loaded.naming_places():
            check_optimizers(optimization)
        return optimization

    return check_lines


@pytest.mark.parametrize(
    "scheduler",
    [
        f"{{_target_: {LR}.OneCycleLR, max_lr: 0.1}}",  # the length is told when it is known
        f"{{_target_: {LR}.CosineAnnealingLR}}",
        f"{{_target_: {LR}.SequentialLR, milestones: [5], schedulers: "
        f"[{{_target_: {LR}.LinearLR}}, {{_target_: {LR}.ExponentialLR, gamma: 0.9}}]}}",
        "{_target_: espnet3.components.schedulers.WarmupLR, warmup_steps: 10}",
    ],
)
def test_what_fits_passes(check, scheduler):
    assert list(check(ADAM, f"scheduler: {scheduler}").optimizers) == ["optimizer"]


def test_an_optimizer_of_the_user_is_not_built_without_its_model(check):
    checked = check(f"optimizer: {{_target_: {__name__}.OnlyMine, anything: 3}}")
    assert list(checked.optimizers) == ["optimizer"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["optimizer: adam"], "Write: optimizer: {_target_: torch.optim.AdamW, lr: 0.001}"),
        ([ADAM, "scheduler: warmup"], "Write: scheduler: {_target_: espnet3.components"),
        ([ADAM.replace("lr", "learning_rate")], "optimizer.learning_rate"),
        ([ADAM.replace("0.001", "-1")], "optimizer.lr"),
        ([ADAM.replace("lr:", "betas: [0.9, 2.0], lr:")], "Invalid beta parameter at index 1"),
        ([ADAM.replace("0.001", "fast")], "is not taken by torch.optim.AdamW: "),
        ([ADAM, f"scheduler: {{_target_: {LR}.StepLR}}"], "Write: step_size: VALUE"),
        ([ADAM, f"scheduler: {{_target_: {LR}.StepLR, step_sise: 3}}"], "'step_size'"),
        (
            [ADAM, f"scheduler: {{_target_: {LR}.ChainedScheduler, schedulers: [StepLR]}}"],
            "scheduler.schedulers.0 is 'StepLR'",
        ),
        (
            ["optimizers: {g: {optimizer: {_target_: torch.optim.SGD, lrr: 1}}}"],
            "optimizers.g.optimizer.lrr",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(check, lines, words):
    with pytest.raises(ConfigError) as refused:
        check(*lines)
    assert words in str(refused.value)
    assert f"(set in training.yaml:{len(lines)})" in str(refused.value)
    assert "\n" not in str(refused.value)


def _check(loaded):
    check_optimizers(OptimizationConfig.from_config(loaded), loaded.is_typed)


def test_a_rate_that_the_scheduler_replaces_is_told_with_the_key_that_counts(tmp_path, caplog):
    file = tmp_path / "a.yaml"
    file.write_text(f"{ADAM}\nscheduler: {{_target_: {LR}.OneCycleLR, max_lr: 0.001}}\n")
    _check(load_config(file))
    _check(load_config(file, ["scheduler.max_lr=0.1"]))
    _check(load_config(file, ["optimizer.lr=0.1", "scheduler.max_lr=0.1"]))
    assert not caplog.records
    _check(load_config(file, ["optimizer.lr=0.1"]))
    assert "optimizer.lr is 0.1" in caplog.text
    assert "Write as well: scheduler.max_lr=0.1" in caplog.text
