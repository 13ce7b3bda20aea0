"""`columns` as a list crashed, and an empty duration in a TSV file was a text in the sample."""

import numpy as np
import pytest
import soundfile

from espnet3.components.data.sources.tsv import Dataset
from espnet3.errors import ConfigError


@pytest.fixture
def manifest(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(4000), 8000)
    file = tmp_path / "m.tsv"
    file.write_text("path\tduration\na.wav\t\n")
    return file


def test_columns_that_are_no_mapping_are_refused(manifest):
    with pytest.raises(ConfigError, match=r"columns is \['path'\].* Write: columns: {speech"):
        Dataset(manifest, columns=["path"])


def test_an_empty_duration_is_left_out_and_looked_up(manifest):
    dataset = Dataset(manifest)
    assert "duration" not in dataset[0]
    assert dataset.durations() == [0.5]
