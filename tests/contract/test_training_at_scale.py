"""The `trainer` blocks of the documentation reach Lightning as printed, and mistakes come first."""

import os
import sys

import lightning.fabric.accelerators.cuda as fabric_cuda
import lightning.pytorch.accelerators.cuda as pytorch_cuda
import pytest
import torch
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins import TorchSyncBatchNorm
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.strategies import DDPStrategy

from espnet3.cli.recipe import run_recipe
from espnet3.config.load import load_config
from espnet3.systems.base.system import BaseSystem
from espnet3.trainer.module import TrainingModule
from espnet3.trainer.optimization.optimization_config import OptimizationConfig
from espnet3.trainer.trainer import build_trainer, quiet_lightning
from tests.helpers.snippets import SNIPPETS
from tests.helpers.training_recipe import TRAINING, TrainingRecipe

REST = """
optimizer: {_target_: torch.optim.AdamW, lr: 0.001}
exp_dir: exp/asr
"""


def snippet(name: str) -> str:
    return (SNIPPETS / f"{name}.yaml.txt").read_text(encoding="utf-8")


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that loads a config of snippets and further lines."""
    monkeypatch.chdir(tmp_path)

    def load_text(text: str, *overrides: str):
        file = tmp_path / "training.yaml"
        file.write_text(text + REST)
        return load_config(file, overrides)

    return load_text


@pytest.fixture
def gpus(monkeypatch):
    """Return a function that lets Lightning see a number of GPUs."""

    def show(n_gpus: int) -> None:
        for module in (fabric_cuda, pytorch_cuda):
            monkeypatch.setattr(module, "num_cuda_devices", lambda: n_gpus)

    return show


def built(loaded):
    with quiet_lightning():
        return build_trainer(loaded, exp_dir="exp/asr")


# Devices of a node, nodes.
BLOCKS = {
    "trainer_multi_node": (4, 2),
    "trainer_logger": (4, 2),
    "trainer_interpolated": (4, 1),
    "trainer_one_node": (4, 1),
    "trainer_large": (8, 2),
}


@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled")
@pytest.mark.parametrize("name", BLOCKS)
def test_a_printed_block_reaches_lightning_as_written(load, gpus, name):
    n_devices, n_nodes = BLOCKS[name]
    gpus(n_devices)
    trainer = built(load("expdir: exp/asr\n" + snippet(name)))
    assert (trainer.num_devices, trainer.num_nodes) == (n_devices, n_nodes)
    assert trainer.world_size == n_devices * n_nodes
    assert type(trainer.strategy) is DDPStrategy
    assert isinstance(trainer.accelerator, CUDAAccelerator)
    assert trainer.precision == ("16-mixed" if name == "trainer_multi_node" else "32-true")


@pytest.mark.parametrize("name", BLOCKS)
def test_only_the_accelerator_changes_for_cpus(load, name):
    n_devices, n_nodes = BLOCKS[name]
    overrides = ["trainer.accelerator=cpu", "expdir=exp/asr"]
    if name == "trainer_multi_node":
        overrides.append("trainer.precision=bf16-mixed")
    trainer = built(load(snippet(name), *overrides))
    assert (trainer.num_devices, trainer.num_nodes) == (n_devices, n_nodes)
    assert type(trainer.strategy) is DDPStrategy
    assert isinstance(trainer.accelerator, CPUAccelerator)


def test_clipping_and_logging_arrive_where_they_are_carried_out(load):
    loaded = load(snippet("trainer_multi_node"), "trainer.accelerator=cpu", "trainer.precision=32")
    trainer = built(loaded)
    assert trainer.log_every_n_steps == 200
    assert trainer.gradient_clip_val is None  # Lightning would refuse it for several optimizers
    optimization = OptimizationConfig.from_config(loaded)
    assert optimization.optimizers["optimizer"].gradient_clip_val == 1.0
    module = TrainingModule(torch.nn.Linear(2, 2), optimization)
    assert module.automatic_optimization is False


def test_the_printed_logger_writes_where_the_key_of_the_user_points(load):
    trainer = built(
        load("expdir: some/where\n" + snippet("trainer_logger"), "trainer.accelerator=cpu")
    )
    (logger,) = trainer.loggers
    assert isinstance(logger, TensorBoardLogger)
    assert logger.save_dir == "some/where/tensorboard"
    assert logger.name == "tb_logger"


def test_one_key_changes_devices_and_another_nodes(load):
    overrides = ("trainer.accelerator=cpu", "num_device=3", "num_nodes=2")
    trainer = built(load(snippet("trainer_interpolated"), *overrides))
    assert (trainer.num_devices, trainer.num_nodes) == (3, 2)


MORE = """
trainer:
  accelerator: cpu
  strategy: {_target_: lightning.pytorch.strategies.DDPStrategy, find_unused_parameters: true}
  devices: 2
  max_epochs: 7
  limit_val_batches: 0.5
  logger:
    - {_target_: lightning.pytorch.loggers.CSVLogger, save_dir: "${exp_dir}/csv"}
    - {_target_: lightning.pytorch.loggers.TensorBoardLogger}
  callbacks:
    - {_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: valid/loss, patience: 5}
    - {_target_: lightning.pytorch.callbacks.LearningRateFinder, num_training_steps: 10}
  plugins:
    - {_target_: lightning.pytorch.plugins.TorchSyncBatchNorm}
  profiler: {_target_: lightning.pytorch.profilers.SimpleProfiler, filename: times}
"""


def test_objects_by_target_arrive_with_all_other_arguments(load):
    trainer = built(load(MORE))
    assert isinstance(trainer.strategy, DDPStrategy)
    assert trainer.strategy._ddp_kwargs["find_unused_parameters"] is True
    assert [type(logger) for logger in trainer.loggers] == [CSVLogger, TensorBoardLogger]
    (stopping,) = [c for c in trainer.callbacks if isinstance(c, EarlyStopping)]
    assert (stopping.monitor, stopping.patience) == ("valid/loss", 5)
    assert isinstance(trainer.strategy._layer_sync, TorchSyncBatchNorm)
    assert isinstance(trainer.profiler, SimpleProfiler)
    assert (trainer.max_epochs, trainer.limit_val_batches) == (7, 0.5)
    assert trainer._accelerator_connector.use_distributed_sampler is False


def test_one_object_may_stand_without_a_list(load):
    text = "trainer: {accelerator: cpu, callbacks: {_target_: %s, monitor: valid/loss}}\n"
    trainer = built(load(text % "lightning.pytorch.callbacks.EarlyStopping"))
    assert any(isinstance(callback, EarlyStopping) for callback in trainer.callbacks)


PARTS = '''\
"""Whatever is built leaves a trace."""

from pathlib import Path

import torch


class Model(torch.nn.Module):
    def __init__(self):
        Path("built").touch()


class Organizer:
    def __init__(self, **kwargs):
        Path("built").touch()
'''
MISSPELT = {
    "accelerater": "accelerator", "device": "devices", "num_node": "num_nodes",
    "stratgy": "strategy", "precison": "precision", "gradient_clip_value": "gradient_clip_val",
    "log_every_n_step": "log_every_n_steps", "loger": "logger", "callback": "callbacks",
    "plugin": "plugins", "profilr": "profiler", "max_epoch": "max_epochs",
    "accumulate_grad_batch": "accumulate_grad_batches", "val_check_intervall": "val_check_interval",
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "right"), MISSPELT.items())
def test_a_misspelt_key_is_told_before_data_or_model_are_built(
    tmp_path, monkeypatch, capfd, wrong, right
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "recipe"
    (recipe / "conf").mkdir(parents=True)
    (recipe / "seed_parts.py").write_text(PARTS)
    text = TRAINING.replace("src.model.Tones", "seed_parts.Model")
    text = text.replace("dataset:\n", "dataset:\n  _target_: seed_parts.Organizer\n", 1)
    (recipe / "conf" / "training.yaml").write_text(f"{text}  {wrong}: 1\n")
    before = sorted(path for path in recipe.rglob("*") if "__pycache__" not in path.parts)
    command = ["--stage", "4", "--training_config", "conf/training.yaml"]
    try:
        assert run_recipe(BaseSystem, command, recipe_dir=recipe) == 1
    finally:
        os.chdir(tmp_path)
        sys.modules.pop("seed_parts", None)
    message = capfd.readouterr().err
    assert f"trainer.{wrong} (set in conf/training.yaml:26) is no argument" in message
    assert f"Did you mean {right!r}? Write: {right}: 1" in message
    assert sorted(p for p in recipe.rglob("*") if "__pycache__" not in p.parts) == before


def test_the_printed_block_trains_by_the_printed_number_of_the_stage(tmp_path):
    recipe = TrainingRecipe(tmp_path / "my corpus's" / "asr")
    rest = TRAINING[: TRAINING.index("trainer:")]
    text = f"{rest}expdir: ${{exp_dir}}\n{snippet('trainer_logger')}"
    (recipe.folder / "conf" / "training.yaml").write_text(text)
    recipe.run(
        "--stage", "4", "trainer.accelerator=cpu", "trainer.devices=1", "trainer.num_nodes=1",
        "trainer.max_epochs=1",
    )  # fmt: skip
    assert list((recipe.exp_dir / "tensorboard" / "tb_logger").glob("events.*"))
    assert (recipe.exp_dir / "valid.loss.ave_2best.safetensors").exists()
