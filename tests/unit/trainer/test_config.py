import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.trainer.config import (
    blamed_argument,
    check_trainer,
    has_goal,
    lightning_arguments,
    plain_arguments,
)
from espnet3.trainer.trainer_block import trainer_block

STOPPING = "lightning.pytorch.callbacks.EarlyStopping"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that loads a config with a `trainer` block."""
    monkeypatch.chdir(tmp_path)

    def load_block(block: str, *overrides: str):
        (tmp_path / "training.yaml").write_text(f"trainer:{block}")
        return load_config("training.yaml", overrides)

    return load_block


def refusal(loaded) -> str:
    with pytest.raises(ConfigError) as refused:
        check_trainer(loaded)
    return str(refused.value)


def test_no_block_is_an_empty_one(load, tmp_path):
    (tmp_path / "training.yaml").write_text("seed: 1\n")
    assert trainer_block(load_config("training.yaml")) == {}
    assert check_trainer(load("\n")) == {}


def test_interpolations_are_resolved_and_the_config_is_not_changed(load):
    loaded = load(" {devices: '${n}', max_epochs: 3}\n", "n=2")
    block = check_trainer(loaded)
    block["devices"] = 7
    assert trainer_block(loaded) == {"devices": 2, "max_epochs": 3}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("max_epoch: 3", "Did you mean 'max_epochs'? Write: max_epochs: 3"),
        ("colour: blue", "See the arguments of lightning.pytorch.Trainer"),
        ("max_epochs: many", "must be a valid integer. Write: max_epochs: 20"),
        ('max_epochs: "3"', "Write it without quotes: max_epochs: 3"),
        ("max_steps: 1e5", "Write: max_steps: 100000"),
        ("log_every_n_steps: 10.5", "must be a valid integer. Write: log_every_n_steps: 50"),
        ("detect_anomaly: 1", "trainer.detect_anomaly is 1"),
        ("limit_val_batches: all", "Write: limit_val_batches: 1.0"),
        ("use_distributed_sampler: true", "our loaders spread the samples"),
        ("barebones: true", "Delete the line"),
        ("enable_checkpointing: false", "resumes from last.ckpt"),
    ],
)
def test_a_wrong_name_or_value_is_told_with_its_place(load, line, words):
    message = refusal(load(f"\n  devices: 1\n  {line}\n"))
    assert words in message
    assert "(set in training.yaml:3)" in message


@pytest.mark.parametrize(
    "line",
    [
        "fast_dev_run: true", "fast_dev_run: 2", "limit_train_batches: 10", "max_time: 00:12:00:00",
        "limit_train_batches: 0.5", "deterministic: warn", "max_epochs: null", "max_steps: -1",
        "val_check_interval: 0.25", "enable_checkpointing: true", "barebones: false",
        "devices: auto", "precision: bf16-mixed", "gradient_clip_val: 5", "overfit_batches: 2",
        "check_val_every_n_epoch: null", "num_sanity_val_steps: -1",
    ],
)  # fmt: skip
def test_what_lightning_takes_is_taken(load, line):
    check_trainer(load(f"\n  {line}\n"))


def test_all_plain_arguments_of_lightning_are_known():
    names = set(plain_arguments().model_fields)
    assert {"max_epochs", "max_steps", "log_every_n_steps", "limit_val_batches"} <= names
    assert not names & {"callbacks", "logger", "devices", "strategy", "gradient_clip_val"}


def test_what_our_module_carries_out_does_not_reach_lightning():
    block = {
        "accumulate_grad_batches": 2, "gradient_clip_val": 1.0, "gradient_clip_algorithm": "value",
        "use_distributed_sampler": False, "barebones": False, "devices": 2,
    }  # fmt: skip
    assert lightning_arguments(block) == {"devices": 2}


def test_a_list_of_targets_becomes_a_list_of_objects():
    node = {"_target_": STOPPING, "monitor": "valid/loss"}
    arguments = lightning_arguments({"callbacks": [node, node], "plugins": []})
    assert type(arguments["callbacks"]) is list
    assert [type(callback).__name__ for callback in arguments["callbacks"]] == ["EarlyStopping"] * 2
    assert arguments["plugins"] == []


def test_lists_and_dicts_in_a_target_are_plain_ones():
    node = {"_target_": "builtins.dict", "sizes": [1, {"a": [2]}]}
    assert repr(lightning_arguments({"profiler": node})["profiler"]) == repr(
        {"sizes": [1, {"a": [2]}]}
    )


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (" {callbacks: [EarlyStopping]}\n", "trainer.callbacks.0 is 'EarlyStopping'"),
        (" {callbacks: [{monitor: valid/loss}]}\n", "_target_: lightning.pytorch.callbacks"),
        (" {strategy: {find_unused_parameters: true}}\n", "_target_: lightning.pytorch.strategies"),
        (f" {{callbacks: [{{_target_: {STOPPING}, monitr: a}}]}}\n", "Did you mean 'monitor'?"),
        (f" {{callbacks: [{{_target_: {STOPPING}}}]}}\n", "Write: monitor: VALUE"),
        (" {profiler: {_target_: lightning.pytorch.profilers.Simple}}\n", "has no 'Simple'"),
    ],
)
def test_what_cannot_be_built_is_told_with_its_place(load, block, words):
    loaded = load(block)
    with pytest.raises(ConfigError) as refused, loaded.naming_places():
        lightning_arguments(trainer_block(loaded))
    assert words in str(refused.value)
    assert "(set in training.yaml:1)" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("`max_epochs` must be a non-negative integer", "max_epochs"),
        ("You set `Trainer(devices=3)`", "devices"),
        ("Found invalid type for plugin <object>", "plugins"),
        ("To use the `DeepSpeedStrategy`, you must have DeepSpeed installed", "strategy"),
        ("something else", None),
    ],
)
def test_the_argument_that_lightning_speaks_of_is_found(text, name):
    block = {"max_epochs": -5, "devices": 3, "plugins": [1], "strategy": "deepspeed"}
    assert blamed_argument(block, ValueError(text)) == name


def test_whether_a_training_ends_is_known():
    assert has_goal({"max_epochs": 3})
    assert has_goal({"max_time": "00:12:00:00"})
    assert not has_goal({"max_epochs": None, "devices": 2})
