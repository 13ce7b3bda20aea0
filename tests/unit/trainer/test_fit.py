"""One training in this process, from its config to the last checkpoint."""

import os
from pathlib import Path

import pytest
import torch

from espnet3.components.data.collate import PadCollate
from espnet3.components.data.loader import build_loader
from espnet3.components.data.loader_config import LoaderConfig
from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.config import load_training_config
from espnet3.trainer.fit import Fit, TrainingParts, check_fit
from espnet3.trainer.launching.process_rank import LAUNCHED
from espnet3.trainer.optimization.optimization_config import OptimizationConfig
from espnet3.trainer.reporting.summary import StartupTimes

CONFIG = """\
exp_dir: exp
seed: 3
num_threads: 1
optimizer: {_target_: torch.optim.SGD, lr: 0.1}
best_model_criterion: [[valid/loss, 1, min]]
trainer: {accelerator: cpu, devices: 1, max_epochs: 2, logger: false, enable_progress_bar: false}
"""
DATA = [{"utt_id": str(i), "x": [float(i), 1.0], "y": float(i % 2)} for i in range(8)]


class Model(torch.nn.Module):
    def __init__(self, size=2):
        super().__init__()
        self.layer = torch.nn.Linear(size, 1)

    def forward(self, x, y, **others):
        assert os.environ[LAUNCHED] == "train"  # what Lightning starts from here knows its stage
        loss = ((self.layer(x.float())[:, 0] - y) ** 2).mean()
        return {"loss": loss}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that loads the config with overrides; threads stay as they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "training.yaml").write_text(CONFIG)
    return lambda *overrides: load_config("training.yaml", overrides)


class Parts:
    """Builds model and loaders, and counts how often."""

    def __init__(self, **settings) -> None:
        self.n_built = 0
        self.settings = settings

    def __call__(self) -> TrainingParts:
        self.n_built += 1
        config = LoaderConfig(batch_size=4)
        train, valid = (
            build_loader(DATA, config, collate_fn=PadCollate(), seed=3, split=split)
            for split in ("train", "valid")
        )
        return TrainingParts(Model(**self.settings), train, valid)


def fit(loaded, parts=None, started=None) -> bool:
    def on_start(point) -> None:
        if started is not None:
            started.append(os.listdir("exp"))

    config, optimization = load_training_config(loaded), OptimizationConfig.from_config(loaded)
    with loaded.naming_places():
        return Fit(config, optimization, parts or Parts(), StartupTimes(), on_start).run()


def position() -> tuple[int, int]:
    last = torch.load("exp/last.ckpt", weights_only=True)
    return last["epoch"], last["global_step"]


def test_a_training_ends_and_a_second_call_builds_nothing(load):
    parts = Parts()
    assert fit(load(), parts) is True
    assert position() == (1, 4)
    assert fit(load(), parts) is False
    assert parts.n_built == 1
    assert LAUNCHED not in os.environ
    assert fit(load("trainer.max_epochs=3"), parts) is True
    assert position() == (2, 6)


def test_the_folder_is_touched_only_when_all_is_built(load):
    fit(load())
    before = Path("exp/last.ckpt").read_bytes()
    started: list[list[str]] = []
    with pytest.raises(ConfigError, match="another model"):
        fit(load("trainer.max_epochs=3"), Parts(size=3), started)

    def fails():
        raise ConfigError("no data")

    with pytest.raises(ConfigError, match="no data"):
        fit(load("resume=never"), fails, started)
    assert started == []
    assert Path("exp/last.ckpt").read_bytes() == before
    fit(load("resume=never", "trainer.max_epochs=1"), started=started)
    assert Path("exp/previous.1/last.ckpt").read_bytes() == before
    assert "last.ckpt" not in started[0]


def test_weights_to_start_from_may_be_those_that_are_put_aside(load):
    fit(load())
    old = torch.load("exp/last.ckpt", weights_only=True)["state_dict"]["model.layer.weight"]
    fit(load("resume=never", "init=exp/last.ckpt", "trainer.max_epochs=1", "optimizer.lr=0.0"))
    new = torch.load("exp/last.ckpt", weights_only=True)["state_dict"]["model.layer.weight"]
    assert torch.equal(old, new)


def test_weights_that_are_missing_are_told_before_anything_is_built(load):
    parts = Parts()
    with pytest.raises(ConfigError, match=r"init\.path is 'a\.ckpt' .*does not exist"):
        fit(load("init.path=a.ckpt"), parts)
    assert parts.n_built == 0
    fit(load("trainer.max_epochs=1"))
    assert fit(load("init.path=a.ckpt"), parts) is True  # it goes on, and needs them no more


def test_a_trial_leaves_nothing_and_does_not_resume(load):
    started: list[list[str]] = []
    trial = load("trainer.fast_dev_run=true")
    assert fit(trial, started=started) is True
    assert not [path for path in Path("exp").rglob("*") if path.is_file()]
    fit(load("trainer.max_epochs=1"))
    before = {path: path.read_bytes() for path in Path("exp").rglob("*") if path.is_file()}
    assert fit(trial, started=started) is True
    assert {path: path.read_bytes() for path in Path("exp").rglob("*") if path.is_file()} == before
    assert started == []


def test_a_training_without_end_is_warned_about(load, caplog):
    fit(
        load(
            "trainer.max_epochs=null",
            "trainer.limit_train_batches=1",
            "trainer.max_time=00:00:00:00",
        )
    )
    assert "does not say when training ends" not in caplog.text
    with pytest.raises(ConfigError, match="no data"):
        fit(load("trainer.max_epochs=null", "exp_dir=b"), _no_data)
    assert "does not say when training ends" in caplog.text
    assert "Write: max_epochs: 20" in caplog.text


def _no_data() -> TrainingParts:
    raise ConfigError("no data")


def test_a_limit_that_lightning_refuses_later_is_placed(load):
    with pytest.raises(ValueError, match="val_check_interval") as refused:
        fit(load("trainer.val_check_interval=100"))
    place = "set in command line: trainer.val_check_interval=100"
    assert refused.value.__notes__ == [f"trainer.val_check_interval is 100 ({place})."]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["fit.ckpt_pth=a"], "Did you mean 'ckpt_path'? It takes: ckpt_path, weights_only."),
        (["fit.ckpt_path=a.ckpt"], "delete the line: training resumes from exp/last.ckpt"),
        (["fit.ckpt_path=training.yaml", "resume=never", "exp_dir=."], "or write: resume: auto"),
        (["checkpoint.every_n_step=3"], "Did you mean 'every_n_steps'?"),
        (["init.pth=a"], "Did you mean 'path'?"),
        (["best_model_criterion=valid/loss"], "Write: best_model_criterion: [[valid/loss, 3, "),
        (["optimizer.lrr=3"], "Did you mean 'lr'? Write: optimizer.lr=3"),
    ],
)  # fmt: skip
def test_keys_are_checked_before_the_training(load, overrides, words):
    with pytest.raises(ConfigError) as refused:
        check_fit(load(*overrides))
    assert words in str(refused.value)
    assert f"(set in command line: {overrides[0]})" in str(refused.value)
