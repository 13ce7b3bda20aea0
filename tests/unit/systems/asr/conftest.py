"""One small recogniser for all tests of this folder."""

import pytest
import torch

from tests.helpers.recognizer_parts import make_experiment


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def exp_dir(tmp_path_factory):
    """Return an experiment's folder; its tokenizer is named relative to the recipe."""
    return make_experiment(tmp_path_factory.mktemp("my corpus") / "asr")
