"""Stage 1 puts the `parallel` block in force around the builders."""

import pytest

from espnet3.config.load import load_config
from espnet3.errors import ConfigError
from espnet3.parallel import get_parallel_config
from espnet3.systems.base.system import BaseSystem

BUILDER = """
from pathlib import Path
from espnet3.components.data.dataset_builder import DatasetBuilder as Base
from espnet3.parallel import get_parallel_config

class DatasetBuilder(Base):
    def is_built(self, data_dir):
        return Path(data_dir, "n_workers").exists()

    def build(self, data_dir):
        Path(data_dir).mkdir()
        Path(data_dir, "n_workers").write_text(str(get_parallel_config().n_workers))
"""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/__init__.py").write_text(BUILDER)
    (tmp_path / "training.yaml").write_text(
        f"recipe_dir: {tmp_path}\ndata_dir: {tmp_path}/data\n"
        "parallel: {env: local, n_workers: 3}\n"
    )
    return tmp_path


def test_a_builder_runs_with_the_parallel_block_of_the_config(recipe):
    system = BaseSystem(training=load_config(recipe / "training.yaml"))
    system.check_create_dataset()
    system.create_dataset()
    assert (recipe / "data/n_workers").read_text() == "3"
    assert get_parallel_config().n_workers == 1


def test_a_wrong_block_is_found_before_anything_is_built(recipe):
    system = BaseSystem(training=load_config(recipe / "training.yaml", ["parallel.n_wokers=2"]))
    with pytest.raises(ConfigError, match="n_workers"):
        system.check_create_dataset()
    assert not (recipe / "data").exists()
