"""An artifact that cannot be opened was said to be damaged, with the advice to delete it."""

import errno

import numpy as np
import pytest

from espnet3.io.artifacts import read_artifact, write_artifact
from tests.helpers.unreachable_files import unreachable

VALUES = {"wav": np.zeros(8, dtype="int16"), "npy": [1], "json": [1], "text": "a"}


@pytest.mark.parametrize("type", VALUES)
def test_what_cannot_be_read_from_here_is_no_damage(tmp_path, type):
    # libsndfile opened wav files itself, and says "System error" for any trouble.
    path = write_artifact(VALUES[type], tmp_path / "a", type, sample_rate=8000)
    with unreachable(r"/a\.\w+$", "EIO"), pytest.raises(OSError) as caught:
        read_artifact(path)
    assert caught.value.errno == errno.EIO
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_artifact(path)
