"""What a training that goes on does not take from its config is said."""

import pytest

from tests.helpers.linear_training import batches, fit, make

ADAM = {"_target_": "torch.optim.AdamW", "lr": 0.05}
SCHEDULERS = "torch.optim.lr_scheduler"
COSINE = {"_target_": f"{SCHEDULERS}.CosineAnnealingLR"}


def resume(tmp_path, caplog, before, now, max_epochs=2, **arguments):
    """Train an epoch with one config, go on with another, and return the warnings."""
    trainer = fit(make(**before), batches(), **arguments)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    caplog.clear()
    path = tmp_path / "last.ckpt"
    fit(make(**now), batches(), max_epochs=max_epochs, ckpt_path=path, **arguments)
    return [r.getMessage() for r in caplog.records if r.name.startswith("espnet3")]


def test_another_learning_rate_has_no_effect_and_is_told(tmp_path, caplog):
    now = {"optimizer": {**ADAM, "lr": 0.001, "weight_decay": 0.5}}
    [warning] = resume(tmp_path, caplog, {"optimizer": ADAM}, now)
    assert "lr of optimizer (0.05 in the checkpoint, 0.001 here)" in warning
    assert "weight_decay of optimizer (0.01 in the checkpoint, 0.5 here)" in warning
    assert f"exp_tag=NEW_NAME 'init={{path: {tmp_path}/last.ckpt}}'" in warning


def test_a_schedule_that_was_planned_for_fewer_steps_is_told(tmp_path, caplog):
    config = {"optimizer": ADAM, "scheduler": COSINE}
    [warning] = resume(tmp_path, caplog, config, config)
    assert "T_max of optimizer (6 in the checkpoint, 12 here)" in warning


PLATEAU = {"_target_": f"{SCHEDULERS}.ReduceLROnPlateau", "patience": 0, "threshold": 1.0}
CHANGES = {
    "no schedule": ({}, {"lr": 0.001, "weight_decay": 0.5}, {}),
    "steps": (
        {"scheduler": {"_target_": f"{SCHEDULERS}.StepLR", "step_size": 2}},
        {"lr": 0.001},
        {"step_size": 4, "gamma": 0.3},
    ),
    "a cycle of rates and betas": (
        {"scheduler": {"_target_": f"{SCHEDULERS}.OneCycleLR", "max_lr": 0.1, "total_steps": 12}},
        {},
        {"max_lr": 0.02, "total_steps": 20, "pct_start": 0.5},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_accepted_changes_are_as_if_they_had_always_been(tmp_path, caplog, name):
    schedule, optimizer, scheduler = CHANGES[name]
    before = {"optimizer": ADAM, **schedule}
    now = {"optimizer": {**ADAM, **optimizer}}
    if schedule:
        now["scheduler"] = {**schedule["scheduler"], **scheduler}
    trainer = fit(make(**before), batches())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    changed = ("optimizer.lr", "scheduler.max_lr")
    module = make(**now)
    module._changed = changed
    fit(module, batches(), max_epochs=2, ckpt_path=tmp_path / "last.ckpt")
    undisturbed = make(**now)
    fit(undisturbed, batches(), max_epochs=2)

    def settings(one):
        group = one.optimizers().optimizer.param_groups[0]
        return {name: value for name, value in group.items() if name != "params"}

    assert settings(module) == settings(undisturbed)


def test_a_schedule_by_a_metric_keeps_the_steps_down_that_it_took(tmp_path):
    config = {"scheduler": PLATEAU, "scheduler_monitor": "train/loss"}
    trainer = fit(make(optimizer=ADAM, **config), batches(), max_epochs=3)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    before = trainer.lightning_module.optimizers().optimizer.param_groups[0]["lr"]
    now = {**config, "scheduler": {**PLATEAU, "patience": 50}}
    module = make(optimizer={**ADAM, "weight_decay": 0.5}, **now)
    module._changed = ("optimizer.weight_decay", "scheduler.patience")
    fit(module, batches(), max_epochs=4, ckpt_path=tmp_path / "last.ckpt")
    group = module.optimizers().optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (before, 0.5)
    assert module._updaters[0].scheduler.patience == 50


@pytest.mark.parametrize(
    "config",
    [
        {"optimizer": ADAM},
        {"optimizer": ADAM, "scheduler": {**COSINE, "T_max": 12}},
        {
            "optimizer": ADAM,
            "scheduler": {
                "_target_": f"{SCHEDULERS}.OneCycleLR", "max_lr": 0.1, "total_steps": 12,
            },
        },
        {
            "optimizer": ADAM,
            "scheduler": {"_target_": f"{SCHEDULERS}.ReduceLROnPlateau", "patience": 0},
            "scheduler_monitor": "train/loss",
        },
    ],
    ids=["no schedule", "a length", "one that changes betas", "one without a first rate"],
)  # fmt: skip
def test_the_same_config_goes_on_silently(tmp_path, caplog, config):
    assert resume(tmp_path, caplog, config, config) == []
