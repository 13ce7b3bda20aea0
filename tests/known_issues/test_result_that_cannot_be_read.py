"""A result that pickles but does not unpickle ended the driver with a bare TypeError."""

import pytest

from espnet3.errors import ProviderError
from espnet3.parallel import BaseRunner, use_parallel
from tests.helpers.providers import Provider


class OddError(Exception):
    def __init__(self, code, text):
        super().__init__(text)


class ReturnsError(BaseRunner):
    @staticmethod
    def forward(idx):
        return OddError(1, "x") if idx == 3 else idx


def test_the_items_are_named(tmp_path):
    with use_parallel({"n_workers": 2}):
        with pytest.raises(ProviderError, match=r"items 3 to 3 cannot be read.*Return plain data"):
            ReturnsError(Provider())(range(5))
