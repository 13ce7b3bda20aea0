"""Settings that could not work were ignored in silence, or ended in a bare TypeError."""

import pytest

from espnet3.errors import ConfigError
from espnet3.parallel import BaseRunner, use_parallel
from tests.helpers.providers import Provider


class Echo(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx


def test_item_timeout_in_this_process_is_told(caplog):
    with use_parallel({"item_timeout": 1.0}):
        Echo(Provider())(range(2))
    assert "set parallel.n_workers: 2" in caplog.text


def test_max_errors_without_skip_is_told(caplog):
    Echo(Provider(), max_errors=3)
    assert 'needs on_error="skip"' in caplog.text


@pytest.mark.parametrize("costs", [["a", "b"], 5, [[1], [2]]])
def test_costs_that_are_no_numbers_are_refused(costs):
    with pytest.raises(ConfigError, match="Give one number per item"):
        Echo(Provider())(range(2), costs=costs)


def test_a_number_in_place_of_indices_is_refused():
    with pytest.raises(ConfigError, match="range"):
        Echo(Provider())(10)
