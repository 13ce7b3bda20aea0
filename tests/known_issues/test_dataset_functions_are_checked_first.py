"""A misspelt `transform` or `preprocessor` was found after `create_dataset` had run."""

import pytest

from espnet3.components.data.data_organizer import DataOrganizer, check_datasets
from espnet3.config.load import load_config
from espnet3.errors import ConfigError

KALDI = "{name: a, data_src: kaldi, data_src_args: {path: x}"


class Louder:
    """Needs an argument, so its path alone does not make one."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, sample):
        return sample


@pytest.mark.parametrize(
    ("block", "key"),
    [
        (f"test: [{KALDI}, transform: os.path.joyn}}]", "dataset.test.0.transform"),
        (f"test: [{KALDI}}}], preprocessor: os.path.joyn", "dataset.preprocessor"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_with_its_place(tmp_path, block, key):
    file = tmp_path / "a.yaml"
    file.write_text(f"dataset: {{{block}}}\n")
    with pytest.raises(ConfigError, match=rf"^{key} is 'os.path.joyn' .*a.yaml:1.*os.path.join"):
        check_datasets(load_config(file))


def test_a_class_that_needs_arguments_is_refused_with_its_key():
    with pytest.raises(ConfigError, match=r"dataset.preprocessor .*Write: factor: VALUE"):
        DataOrganizer(preprocessor=f"{__name__}.Louder")
