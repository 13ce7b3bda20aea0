import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.optimization.optimization_config import OptimizationConfig

ADAM = {"_target_": "torch.optim.Adam", "lr": 0.001}
STEP = {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 1}
PLATEAU = {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau"}
GAN = {
    "generator": {"optimizer": ADAM, "params": "generator"},
    "discriminator": {"optimizer": ADAM, "params": ["discriminator.a", "discriminator.b"]},
}


def read(**config):
    return OptimizationConfig.from_config(config)


def test_one_optimizer_with_what_the_trainer_block_says():
    trainer = {
        "accumulate_grad_batches": 4, "gradient_clip_val": 1, "gradient_clip_algorithm": "value",
        "max_epochs": 3,
    }  # fmt: skip
    config = read(optimizer=ADAM, trainer=trainer, model={"_target_": "x"})
    only = config.optimizers["optimizer"]
    assert (only.n_accumulated, only.gradient_clip_val) == (4, 1.0)
    assert only.gradient_clip_algorithm == "value"
    assert config.max_nonfinite_batches == 20
    assert config.schedulers == {}


def test_several_keep_their_order_and_their_own_settings():
    optimizers = {**GAN, "third": {"optimizer": ADAM, "params": "c", "accum_grad_steps": 1}}
    trainer = {"accumulate_grad_batches": 2, "gradient_clip_val": 5.0}
    config = read(
        optimizers=optimizers,
        trainer=trainer,
        schedulers={"discriminator": {"scheduler": STEP, "interval": "epoch"}},
        max_nonfinite_batches=3,
    )
    assert list(config.optimizers) == ["generator", "discriminator", "third"]
    assert config.optimizers["generator"].params == ("generator",)
    assert config.optimizers["generator"].n_accumulated == 2
    assert config.optimizers["third"].n_accumulated == 1
    assert config.optimizers["third"].gradient_clip_val == 5.0
    assert config.schedulers["discriminator"].interval == "epoch"
    assert config.max_nonfinite_batches == 3


def test_the_scheduler_of_the_one_optimizer():
    config = read(optimizer=ADAM, scheduler=PLATEAU, scheduler_monitor="valid/acc")
    assert config.schedulers["optimizer"].monitor == "valid/acc"
    assert config.schedulers["optimizer"].interval == "step"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, ["no optimizer", "optimizer: {_target_: torch.optim.AdamW, lr: 0.001}"]),
        ({"optimizer": {"lr": 0.1}}, ["optimizer", "needs a _target_"]),
        ({"optimizer": {"_target_": "torch.optim.Adm"}}, ["optimizer._target_", "Did you mean"]),
        ({"optimizer": {"_target_": "torch.optim.LBFGS"}}, ["_target_: torch.optim.AdamW"]),
        ({"optimizer": ADAM, "optimizers": GAN}, ["Keep one"]),
        ({"optimizers": GAN, "scheduler": STEP}, ["schedulers: {generator:"]),
        ({"optimizers": GAN, "schedulers": {"generatorr": {"scheduler": STEP}}},
         ["schedulers.generatorr", "Did you mean 'generator'?"]),
        ({"optimizers": {"a": {"optimizer": ADAM, "paramz": "a"}}},
         ["optimizers.a.paramz", "Did you mean 'params'?"]),
        ({"optimizers": {"a": {"optimizer": ADAM, "accum_grad_steps": 0}}},
         ["optimizers.a.accum_grad_steps"]),
        ({"optimizer": ADAM, "scheduler": PLATEAU}, ["scheduler_monitor: valid/loss"]),
        ({"optimizers": GAN, "schedulers": {"generator": {"scheduler": PLATEAU}}},
         ["schedulers.generator.monitor", "Write: monitor: valid/loss"]),
        ({"optimizer": ADAM, "scheduler": STEP, "scheduler_monitor": "valid/loss"},
         ["looks at no metric", "Delete the line"]),
        ({"optimizer": ADAM, "scheduler_interval": "epoch"}, ["there is no scheduler"]),
        ({"optimizer": ADAM, "scheduler": STEP, "scheduler_interval": "steps"},
         ["scheduler_interval", "Did you mean 'step'?"]),
        ({"optimizer": ADAM, "scheduler": {"step_size": 1}}, ["scheduler", "WarmupLR"]),
        ({"optimizer": ADAM, "trainer": {"gradient_clip_algorithm": "nrm"}},
         ["trainer.gradient_clip_algorithm", "Did you mean 'norm'?"]),
        ({"optimizer": ADAM, "max_nonfinite_batches": -1}, ["max_nonfinite_batches"]),
    ],
)  # fmt: skip
def test_mistakes(config, words):
    with pytest.raises(ConfigError) as caught:
        OptimizationConfig.from_config(config)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_errors_name_file_and_line(tmp_path):
    file = tmp_path / "training.yaml"
    file.write_text("model: {}\noptimizer:\n  _target_: torch.optim.Adm\n")
    with pytest.raises(ConfigError, match=r"training\.yaml:3"):
        OptimizationConfig.from_config(load_config(file))


def test_values_of_a_file_are_plain_and_resolved(tmp_path):
    file = tmp_path / "training.yaml"
    file.write_text("rate: 0.5\noptimizer: {_target_: torch.optim.Adam, lr: '${rate}'}\n")
    config = OptimizationConfig.from_config(load_config(file))
    assert config.optimizers["optimizer"].optimizer["lr"] == 0.5
