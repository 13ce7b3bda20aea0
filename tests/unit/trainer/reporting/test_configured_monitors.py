import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.config import load_training_config
from espnet3.trainer.optimization.optimization_config import OptimizationConfig
from espnet3.trainer.reporting.monitors import configured_monitors

STOPPING = "lightning.pytorch.callbacks.EarlyStopping"
ADAM = "{_target_: torch.optim.AdamW}"
PLATEAU = "{_target_: torch.optim.lr_scheduler.ReduceLROnPlateau}"


def monitors(tmp_path, text: str):
    (tmp_path / "training.yaml").write_text(text)
    loaded = load_config(tmp_path / "training.yaml", below={"exp_dir": "exp"})
    return configured_monitors(load_training_config(loaded), OptimizationConfig.from_config(loaded))


def test_each_place_that_names_a_metric_is_found_with_the_line_to_write(tmp_path):
    found = monitors(
        tmp_path,
        f"""
best_model_criterion: [[valid/loss, 3, min], [valid/acc, 1, max]]
optimizers:
  generator: {{optimizer: {ADAM}, params: generator}}
  discriminator: {{optimizer: {ADAM}, params: discriminator}}
schedulers:
  generator: {{scheduler: {PLATEAU}, monitor: valid/mel}}
  discriminator: {{scheduler: {{_target_: torch.optim.lr_scheduler.ConstantLR}}}}
trainer:
  callbacks:
    - {{_target_: lightning.pytorch.callbacks.LearningRateFinder}}
    - {{_target_: {STOPPING}, monitor: train/loss}}
""",
    )
    assert [(m.name, m.key) for m in found] == [
        ("valid/loss", "best_model_criterion.0"),
        ("valid/acc", "best_model_criterion.1"),
        ("valid/mel", "schedulers.generator.monitor"),
        ("train/loss", "trainer.callbacks.1.monitor"),
    ]
    assert [m.line.format("X") for m in found] == [
        "best_model_criterion: [[X, 3, min]]",
        "best_model_criterion: [[X, 1, max]]",
        "monitor: X",
        "monitor: X",
    ]


def test_the_metric_of_the_only_scheduler_is_found(tmp_path):
    text = f"optimizer: {ADAM}\nscheduler: {PLATEAU}\nscheduler_monitor: valid/cer\n"
    (found,) = monitors(tmp_path, text)
    assert (found.name, found.key) == ("valid/cer", "scheduler_monitor")
    assert found.line.format("X") == "scheduler_monitor: X"


def test_one_callback_without_a_list_counts(tmp_path):
    callback = f"{{_target_: {STOPPING}, monitor: valid/loss}}"
    text = f"optimizer: {ADAM}\ntrainer: {{callbacks: {callback}}}\n"
    assert [m.name for m in monitors(tmp_path, text)] == ["valid/loss"]


def test_a_config_that_goes_by_nothing_has_none(tmp_path):
    assert monitors(tmp_path, f"optimizer: {ADAM}\ntrainer: null\n") == []


def test_a_wrong_criterion_is_told(tmp_path):
    with pytest.raises(ConfigError, match="list of lists"):
        monitors(tmp_path, "best_model_criterion: [valid/loss, 3, min]\n")
