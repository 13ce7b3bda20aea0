import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.reporting.monitors import configured_monitors

STOPPING = "lightning.pytorch.callbacks.EarlyStopping"


def monitors(tmp_path, text: str):
    (tmp_path / "training.yaml").write_text(text)
    return configured_monitors(load_config(tmp_path / "training.yaml"))


def test_each_place_that_names_a_metric_is_found_with_the_line_to_write(tmp_path):
    found = monitors(
        tmp_path,
        f"""
best_model_criterion: [[valid/loss, 3, min], [valid/acc, 1, max]]
scheduler_monitor: valid/cer
schedulers:
  generator: {{monitor: valid/mel}}
  discriminator: {{interval: step}}
trainer:
  callbacks:
    - {{_target_: lightning.pytorch.callbacks.LearningRateFinder}}
    - {{_target_: {STOPPING}, monitor: train/loss}}
""",
    )
    assert [(m.name, m.key) for m in found] == [
        ("valid/loss", "best_model_criterion.0"),
        ("valid/acc", "best_model_criterion.1"),
        ("valid/cer", "scheduler_monitor"),
        ("valid/mel", "schedulers.generator.monitor"),
        ("train/loss", "trainer.callbacks.1.monitor"),
    ]
    assert [m.line.format("X") for m in found] == [
        "best_model_criterion: [[X, 3, min]]",
        "best_model_criterion: [[X, 1, max]]",
        "scheduler_monitor: X",
        "monitor: X",
        "monitor: X",
    ]


def test_one_callback_without_a_list_counts(tmp_path):
    text = f"trainer: {{callbacks: {{_target_: {STOPPING}, monitor: valid/loss}}}}\n"
    assert [m.name for m in monitors(tmp_path, text)] == ["valid/loss"]


def test_a_config_that_goes_by_nothing_has_none(tmp_path):
    assert monitors(tmp_path, "seed: 1\ntrainer: null\n") == []


def test_a_wrong_criterion_is_told(tmp_path):
    with pytest.raises(ConfigError, match="list of lists"):
        monitors(tmp_path, "best_model_criterion: [valid/loss, 3, min]\n")
