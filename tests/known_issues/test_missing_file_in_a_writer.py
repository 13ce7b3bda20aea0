"""A file that a writer hook did not find was told as a full disk, without traceback."""

from pathlib import Path

import pytest

from espnet3.errors import ItemError, ProviderError
from espnet3.parallel import BaseRunner
from tests.helpers.providers import Provider


class Lexicon(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx

    @staticmethod
    def write_record(writers, result, lexicon):
        if result == 2:
            Path(lexicon).read_text()
        writers.write(result)

    def merge(self, shard_dirs):
        return None


class LexiconAtOpen(Lexicon):
    @staticmethod
    def open_writers(shard_dir, lexicon):
        Path(lexicon).read_text()


def test_it_is_an_error_of_the_item(tmp_path):
    provider = Provider(lexicon="missing.txt")
    with pytest.raises(ItemError, match="in write_record"):
        Lexicon(provider, output_dir=tmp_path / "raise")(range(5))
    Lexicon(provider, output_dir=tmp_path / "skip", on_error="skip")(range(5))


def test_it_is_an_error_of_the_runner(tmp_path):
    with pytest.raises(ProviderError, match="in open_writers"):
        LexiconAtOpen(Provider(lexicon="missing.txt"), output_dir=tmp_path)(range(5))
