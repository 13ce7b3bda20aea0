"""lhotse adds lines with the whole cut to its errors, which hid what was wrong."""

import numpy as np
import pytest
import soundfile

from espnet3.components.data.errors import AudioError
from espnet3.components.data.sources.lhotse import Dataset


def test_the_reason_alone_is_told(tmp_path):
    lhotse = pytest.importorskip("lhotse")
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 8000)
    cut = lhotse.Recording.from_file(tmp_path / "a.wav").to_cut()
    cut.start = 5.0
    lhotse.CutSet.from_cuts([cut]).to_file(tmp_path / "cuts.jsonl")
    with pytest.raises(AudioError, match="smaller than the requested offset") as caught:
        Dataset(tmp_path / "cuts.jsonl")[0]
    assert "\n" not in str(caught.value)
