"""`exp_dir: null` or `exp_dir: 5` ended in a traceback; `recipe_dir: null` wrote to None/exp."""

import pytest

from espnet3.errors import ConfigError
from espnet3.systems.base.context import load_configs


@pytest.mark.parametrize(
    "line", ["exp_dir: null", "exp_dir: 5", "exp_dir: [a]", "recipe_dir: null", "exp_tag: ''"]
)
def test_is_refused_with_its_place_and_the_usual_value(tmp_path, line):
    file = tmp_path / "inference.yaml"
    file.write_text(f"{line}\n")
    key = line.partition(":")[0]
    with pytest.raises(ConfigError, match=rf'^{key} is .*inference.yaml:1.* Write: {key}: "'):
        load_configs({"inference": [file]}, recipe_dir=tmp_path)


def test_a_number_may_be_a_tag(tmp_path):
    file = tmp_path / "inference.yaml"
    file.write_text("exp_tag: 2024\n")
    configs = load_configs({"inference": [file]}, recipe_dir=tmp_path)
    assert configs.inference.config.exp_dir == "./exp/2024"
