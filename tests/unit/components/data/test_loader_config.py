import pytest

from espnet3.components.data.collate import PadCollate
from espnet3.components.data.loader_config import (
    DataLoaderConfig,
    LoaderConfig,
    build_collate,
    check_collate,
)
from espnet3.config.load import load_config
from espnet3.errors import ConfigError


def test_the_block_of_a_config_is_read():
    block = {
        "collate_fn": {"_target_": "espnet3.components.data.collate.PadCollate", "int_pad": 0},
        "train": {"batch_seconds": 120, "batch_size": 64, "num_workers": 4, "prefetch_factor": 3},
        "valid": {"batch_size": 8},
    }
    config = DataLoaderConfig.from_config(block)
    assert config.for_split("train").batch_seconds == 120
    assert config.for_split("valid") == LoaderConfig(batch_size=8)
    assert build_collate(config.collate_fn).int_pad == 0
    assert isinstance(build_collate(None), PadCollate)
    assert build_collate("espnet3.components.data.collate.as_tensor")(3) == 3


def test_validation_takes_after_training_but_for_what_is_of_training():
    train = {"batch_bins": 100, "shape_file": "stats/train/speech_shape", "num_workers": 2,
             "drop_last": True, "shuffle": True, "max_seconds": 20, "min_seconds": 1}  # fmt: skip
    valid = DataLoaderConfig.from_config({"train": train}).for_split("valid")
    assert valid.batch_bins == 100
    assert valid.num_workers == 2
    assert valid.shape_file == "stats/valid/speech_shape"
    assert (valid.drop_last, valid.shuffle, valid.max_seconds) == (False, None, None)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"batch_secods": 3}, r"train.batch_secods is not a known key.*'batch_seconds'"),
        ({}, "does not say how large a batch is. Write batch_size: 16 .* or batch_seconds: 120"),
        ({"batch_size": 0}, "dataloader.train.batch_size is 0"),
        ({"batch_bins": 9}, r"no shape_file. Run the stage collect_stats.*speech_shape"),
        ({"batch_bins": 9, "batch_seconds": 9, "shape_file": "x"}, "Remove one of them"),
        ({"batch_size": 9, "shape_file": "x"}, "needs batch_bins: .*or sample_rate: 16000"),
        ({"batch_size": 9, "batch_sampler": {"_target_": "a.b"}}, "Remove batch_size"),
        ({"batch_seconds": 9, "sampler": {"_target_": "a.b"}}, "go by count. Write: batch_size"),
        ({"batch_size": 9, "timeout": 3}, "no workers to use it. Write num_workers: 2"),
        ({"batch_size": 9, "persistent_workers": True}, "Write num_workers: 2, or remove it"),
        ({"batch_size": 9, "on_error": "ignore"}, "'raise' or 'skip'"),
        ({"batch_size": 9, "max_padding": 8}, "max_padding is 8"),
    ],
)
def test_settings_that_are_wrong_say_what_to_write(tmp_path, train, message):
    import yaml

    file = tmp_path / "training.yaml"
    file.write_text(yaml.safe_dump({"dataloader": {"train": train}}))
    loaded = load_config(file)
    with pytest.raises(ConfigError, match=message) as caught, loaded.naming_places():
        DataLoaderConfig.from_config(loaded.config.dataloader)
    assert "training.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("espnet3.components.data.collate.PadColate", "Did you mean"),
        ({"_target_": "fractions.Fraction"}, "cannot be called. Write the dotted path"),
        (3, "cannot be called"),
    ],
)
def test_a_collate_fn_that_is_none_is_refused(node, message):
    with pytest.raises(ConfigError, match=rf"dataloader.collate_fn is .*{message}"):
        build_collate(node)


def test_a_collate_fn_is_looked_for_before_it_is_needed():
    check_collate(None)
    check_collate("espnet3.components.data.collate.PadCollate")
    check_collate({"_target_": "not.looked.at.Yet"})
    with pytest.raises(ConfigError, match=r"dataloader\.collate_fn is .*Did you mean 'PadCollate'"):
        check_collate("espnet3.components.data.collate.PadColate")
