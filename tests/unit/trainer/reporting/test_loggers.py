"""Where the metrics of a run are kept."""

import importlib.util
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from espnet3.config.load import load_config
from espnet3.errors import ConfigError, MissingExtraError
from espnet3.trainer.reporting.history import read_history
from espnet3.trainer.reporting.loggers import History, build_loggers
from tests.helpers.report_parts import fit

TENSORBOARD = "lightning.pytorch.loggers.TensorBoardLogger"


def read_events(folder) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


@pytest.mark.parametrize("value", [None, True])
def test_tensorboard_is_the_default_and_nothing_is_hidden(tmp_path, value):
    fit(tmp_path, [], logger=build_loggers(value, tmp_path / "exp"), max_epochs=1)
    events = read_events(tmp_path / "exp" / "tensorboard")
    assert [step for step, _ in events["train/loss"]] == [1, 3, 5]  # Lightning counts from 0
    assert events["valid/loss"] == [(5, 3.0)]
    assert [path.name for path in (tmp_path / "exp").iterdir()] == ["tensorboard"]
    # No hparams.yaml, which would be empty.
    names = [path.name for path in (tmp_path / "exp" / "tensorboard").iterdir()]
    assert [name for name in names if not name.startswith("events.out.tfevents")] == []
    assert [path.name for path in tmp_path.iterdir()] == ["exp"]


def test_false_means_none(tmp_path):
    assert build_loggers(False, tmp_path) == []


def test_what_a_stopped_run_logged_beyond_its_checkpoint_is_hidden(tmp_path):
    keeper = ModelCheckpoint(tmp_path, every_n_train_steps=4, save_top_k=-1, filename="{step}")
    logs = tmp_path / "tensorboard"
    for ckpt_path in (None, tmp_path / "step=8.ckpt"):
        fit(
            tmp_path,
            [History(tmp_path), keeper],
            logger=build_loggers(None, tmp_path),
            enable_checkpointing=True,
            max_epochs=2,
            ckpt_path=ckpt_path,
        )
        steps = [1, 3, 5, 7, 9, 11]
        assert [step for step, _ in read_events(logs)["train/loss"]] == steps
        assert [step for step, _ in read_events(logs)["valid/loss"]] == [5, 11]
    assert len(list(logs.glob("events*"))) == 2
    assert len(read_history(tmp_path)) == 8


def test_the_list_of_the_seed_is_built_as_written(tmp_path):
    config = OmegaConf.create(
        {
            "expdir": str(tmp_path),
            "logger": [
                {"_target_": TENSORBOARD, "save_dir": "${expdir}/tensorboard", "name": "tb_logger"}
            ],
        }
    )
    [logger] = build_loggers(config.logger, tmp_path / "elsewhere")
    assert isinstance(logger, TensorBoardLogger)
    assert Path(logger.log_dir) == tmp_path / "tensorboard" / "tb_logger"


@pytest.mark.parametrize(
    ("node", "folder"),
    [
        ({"_target_": TENSORBOARD}, "tensorboard"),
        ({"_target_": TENSORBOARD, "version": "v3"}, "tensorboard/v3"),
        ({"_target_": "lightning.pytorch.loggers.CSVLogger"}, "csv/version_0"),
    ],
)
def test_a_logger_without_folder_stays_in_that_of_the_experiment(tmp_path, node, folder):
    [logger] = build_loggers(node, tmp_path)
    assert Path(logger.log_dir) == tmp_path / folder


def test_going_on_does_not_empty_the_table_of_the_csv_logger(tmp_path):
    for _ in range(2):
        [logger] = build_loggers([{"_target_": "lightning.pytorch.loggers.CSVLogger"}], tmp_path)
        assert isinstance(logger, CSVLogger)
        logger.log_metrics({"a": 1.0}, step=1)
        logger.save()
    assert len(list(tmp_path.rglob("metrics.csv"))) == 2


@pytest.mark.parametrize("target", ["WandbLogger", "MLFlowLogger", "CometLogger"])
def test_a_logger_whose_package_is_missing_says_what_to_install(tmp_path, target):
    package = {"WandbLogger": "wandb", "MLFlowLogger": "mlflow", "CometLogger": "comet-ml"}[target]
    if importlib.util.find_spec(package.replace("-", "_")):
        pytest.skip("it is installed")
    node = [{"_target_": f"lightning.pytorch.loggers.{target}"}]
    with pytest.raises(MissingExtraError, match=rf"trainer\.logger\.0 .*pip install {package}$"):
        build_loggers(node, tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("tensorboard", r"trainer.logger is 'tensorboard' \(set in .*yaml:2\), but must be true"),
        ([{"save_dir": "x"}], r"trainer.logger.0 is .*must be a mapping with the class of"),
        ([{"_target_": "fractions.Fraction"}], r"no logger of Lightning but a Fraction"),
        ([{"_target_": "lightning.pytorch.loggers.TensorboardLogger"}], "Did you mean 'TensorBo"),
        ([{"_target_": TENSORBOARD, "save_dri": "x"}], "logger.0.save_dri .*mean 'save_dir'"),
    ],
)
def test_a_value_that_is_no_logger_is_refused_with_the_line_to_write(tmp_path, value, message):
    file = tmp_path / "training.yaml"
    OmegaConf.save({"trainer": {"logger": value}}, file)
    with pytest.raises(ConfigError, match=message) as caught, load_config(file).naming_places():
        build_loggers(value, tmp_path)
    if "mean" not in message:
        assert "Write: logger: [{_target_: lightning.pytorch.loggers.Tensor" in str(caught.value)
