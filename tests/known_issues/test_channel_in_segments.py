"""The channel that a line of `segments` may end with was ignored: both sides were decoded."""

import numpy as np
import pytest
import soundfile

from espnet3.components.data.sources.kaldi import Dataset
from espnet3.errors import RecordError


def test_is_refused_with_what_to_write(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros((8000, 2)), 8000)
    (tmp_path / "wav.scp").write_text(f"r {tmp_path / 'a.wav'}\n")
    (tmp_path / "segments").write_text("u r 0.0 0.5 1\n")
    with pytest.raises(RecordError, match=r"segments:1 .*'1'.*channel: 0"):
        Dataset(tmp_path)
    (tmp_path / "segments").write_text("u r 0.0 0.5\n")
    assert Dataset(tmp_path, channel=1)[0]["speech"].shape == (4000,)
