import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.environments import LightningEnvironment
from omegaconf import OmegaConf

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.trainer import AtomicCheckpointIO, build_trainer, quiet_lightning


class First(pl.Callback):
    pass


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Return a function that builds a trainer from the lines of its block."""
    monkeypatch.chdir(tmp_path)

    def build_block(*lines: str, callbacks=()):
        text = "".join(f"  {line}\n" for line in ("accelerator: cpu", *lines))
        (tmp_path / "training.yaml").write_text(f"trainer:\n{text}")
        with quiet_lightning():
            return build_trainer(load_config("training.yaml"), callbacks, exp_dir="exp/a")

    return build_block


def test_files_go_to_the_experiment_and_nothing_is_written_yet(build, tmp_path):
    trainer = build()
    assert trainer.default_root_dir.endswith("exp/a")
    (logger,) = trainer.loggers
    assert isinstance(logger, TensorBoardLogger)
    assert logger.log_dir.rstrip("/") == "exp/a/tensorboard"
    assert [path.name for path in tmp_path.iterdir()] == ["training.yaml"]


def test_our_callbacks_come_before_those_of_the_user(build):
    stopping = "{_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: valid/loss}"
    first = First()
    trainer = build(f"callbacks: [{stopping}]", callbacks=[first])
    assert trainer.callbacks.index(first) == 0
    assert trainer.early_stopping_callback in trainer.callbacks


def test_checkpoints_are_written_by_us_unless_a_plugin_does(build):
    assert isinstance(build().strategy.checkpoint_io, AtomicCheckpointIO)
    own = "{_target_: lightning.pytorch.plugins.io.AsyncCheckpointIO}"
    assert not isinstance(build(f"plugins: [{own}]").strategy.checkpoint_io, AtomicCheckpointIO)


def test_the_environment_of_the_user_wins(build):
    name = f"{LightningEnvironment.__module__}.{LightningEnvironment.__qualname__}"
    trainer = build("devices: 2", "strategy: ddp", f"plugins: [{{_target_: {name}}}]")
    assert type(trainer.strategy.cluster_environment) is LightningEnvironment


def test_a_bar_of_the_user_stays_and_that_of_lightning_does_not(build):
    assert build("enable_progress_bar: true").progress_bar_callback is None
    bar = "{_target_: lightning.pytorch.callbacks.RichProgressBar}"
    assert isinstance(build(f"callbacks: {bar}").progress_bar_callback, RichProgressBar)


def test_what_our_loaders_and_module_do_is_left_out(build):
    trainer = build("gradient_clip_val: 1.0", "accumulate_grad_batches: 4")
    assert trainer.gradient_clip_val is None
    assert trainer.accumulate_grad_batches == 1
    assert trainer._accelerator_connector.use_distributed_sampler is False


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("max_epochs: -5", "trainer.max_epochs is -5 (set in training.yaml:3), which Lightning"),
        ("limit_val_batches: 1.5", "trainer.limit_val_batches is 1.5 (set in training.yaml:3)"),
        ("max_time: soon", "trainer.max_time is 'soon' (set in training.yaml:3)"),
        ("strategy: deepspeed", "pip install"),
        ("callbacks: [3]", "trainer.callbacks.0 (set in training.yaml:3) is 3, no callback"),
        ("callbacks: EarlyStopping", "is 'EarlyStopping', no callback of Lightning. Write: "),
        ("callbacks: {_target_: builtins.dict}", "is a dict, no callback"),
    ],
)
def test_what_lightning_refuses_is_told_with_its_place(build, line, words):
    with pytest.raises(ConfigError) as refused:
        build(line)
    assert words in str(refused.value)


BLOCK = {"accelerator": "cpu", "devices": 1, "max_epochs": 3, "logger": False}


@pytest.mark.parametrize(
    "config",
    [
        {"trainer": BLOCK},
        OmegaConf.create({"n": 3, "trainer": {**BLOCK, "max_epochs": "${n}"}}),
        load_config({"trainer": BLOCK}),
        BLOCK,
        OmegaConf.create({"n": 3, "trainer": {**BLOCK, "max_epochs": "${n}"}}).trainer,
    ],
    ids=["dict", "omegaconf", "loaded", "block", "part"],
)
def test_a_config_of_any_kind_is_read(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with quiet_lightning():
        assert build_trainer(config).max_epochs == 3


def test_files_are_read_and_their_folder_is_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("exp_dir: exp/b\ntrainer: {accelerator: cpu, logger: false}\n")
    with quiet_lightning():
        trainer = build_trainer(["a.yaml", {"trainer": {"max_epochs": 2}}])
        assert build_trainer(tmp_path / "a.yaml", exp_dir="c").default_root_dir == "c"
    assert (trainer.max_epochs, trainer.default_root_dir) == (2, "exp/b")


def test_a_misspelt_argument_of_a_dict_is_told():
    with pytest.raises(ConfigError, match="Did you mean 'max_epochs'"), quiet_lightning():
        build_trainer({"trainer": {"accelerator": "cpu", "max_epoch": 3}})


def test_what_another_module_must_do_itself_is_told(caplog):
    with quiet_lightning():
        build_trainer({**BLOCK, "gradient_clip_val": 1.0})
    assert "trainer.gradient_clip_val is 1.0" in caplog.text
