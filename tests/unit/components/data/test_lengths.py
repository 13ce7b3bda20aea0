import logging

import numpy as np
import pytest

from espnet3.components.data.loader_config import LoaderConfig
from espnet3.components.data.loader_plan import LengthSource, left_in, read_shapes
from espnet3.errors import ConfigError

KEY = "dataloader.train"


class Silent:
    """A dataset that does not know its durations."""

    def __init__(self, n=3):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return {"utt_id": f"utt {index}"}


class Told(Silent):
    def durations(self):
        return [1.0] * self.n


@pytest.fixture
def shapes(awkward):
    file = awkward / "speech_shape"
    file.write_text("utt 0 16000\nutt 1 32000\nutt 2 8000\n")
    return str(file)


def source(dataset, config=None, **more):
    return LengthSource(dataset, LoaderConfig(batch_seconds=9, **(config or {})), KEY, **more)


def test_durations_come_from_the_caller_the_dataset_or_a_file(shapes):
    on_file = {"shape_file": shapes, "sample_rate": 16000}
    assert source(Told(), on_file, given=[4, 5, 6]).seconds("x").tolist() == [4, 5, 6]
    assert source(Told(), on_file).seconds("x").tolist() == [1, 1, 1]
    assert source(Silent(), on_file).seconds("x").tolist() == [1, 2, 0.5]


def test_unknown_durations_say_three_ways_on():
    with pytest.raises(ConfigError, match=r"dataloader.train.batch_seconds is set") as caught:
        source(Silent()).seconds("batch_seconds")
    for way in ("def durations(self)", "stage collect_stats", "batch_size: 16"):
        assert way in str(caught.value)


def test_bins_are_products_and_sums_of_shapes(tmp_path, shapes):
    other = tmp_path / "feats_shape"
    other.write_text("utt 0 10,80\nutt 1 20,80\nutt 2 5,80\n")
    one = LoaderConfig(batch_bins=9, shape_file=str(other))
    assert LengthSource(Silent(), one, KEY).bins().tolist() == [800, 1600, 400]
    both = LoaderConfig(batch_bins=9, shape_file=(str(other), shapes))
    assert LengthSource(Silent(), both, KEY).bins().tolist() == [16800, 33600, 8400]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("utt 0 1\nutt 1 1\n", "has 2 lines, but the dataset has 3 items. Run the stage"),
        ("utt 1 1\nutt 0 1\nutt 2 1\n", "'utt 1' on line 1, but .* is 'utt 0'. Run the stage"),
        ("utt 0 1\nutt 1 1\nutt 3 1\n", "'utt 3' on line 3"),
        ("utt 0 1\nutt 1\nutt 2 1x\n", r"shape:3 is 'utt 2 1x', but must be .*utt1 512,80"),
    ],
)
def test_a_file_of_other_data_is_refused(tmp_path, text, message):
    file = tmp_path / "shape"
    file.write_text(text)
    config = LoaderConfig(batch_bins=9, shape_file=str(file))
    with pytest.raises(ConfigError, match=message):
        LengthSource(Silent(), config, KEY).bins()


def test_a_missing_file_names_the_stage_that_writes_it(tmp_path):
    with pytest.raises(ConfigError, match=r"does not exist. Run the stage collect_stats"):
        read_shapes(str(tmp_path / "none"))


def test_short_and_long_samples_are_left_out_and_counted(caplog):
    seconds = np.array([0.1, 5.0, 31.0, 10.0, 3600.0])
    config = LoaderConfig(batch_size=1, min_seconds=0.5, max_seconds=30)
    with caplog.at_level(logging.INFO):
        assert left_in(seconds, config, 5, KEY).tolist() == [1, 3]
    assert "3 of 5 samples are left out: 1 shorter than min_seconds 0.5" in caplog.text
    assert "2 longer than max_seconds 30 (1.01 h)" in caplog.text


def test_all_left_out_is_an_error():
    config = LoaderConfig(batch_size=1, max_seconds=30)
    with pytest.raises(ConfigError, match=r"none is left. Durations are in seconds"):
        left_in(np.array([40.0, 50.0]), config, 2, KEY)


@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_what_collect_stats_skipped_is_left_out(tmp_path, caplog, skipped):
    lines = [f"item{i} 0" if i == skipped else f"utt {i} 16000" for i in range(3)]
    file = tmp_path / "shape"
    file.write_text("".join(f"{line}\n" for line in lines))
    found = source(Silent(), {"shape_file": str(file), "sample_rate": 16000})
    with caplog.at_level(logging.INFO):
        items = found.without_empty(np.arange(3))
    assert items.tolist() == [i for i in range(3) if i != skipped]
    assert "1 of 3 samples are left out" in caplog.text
