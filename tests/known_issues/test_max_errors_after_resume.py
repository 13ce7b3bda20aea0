"""`max_errors` counted one call only, so that the same command again passed the limit."""

import pytest

from espnet3.errors import ConfigError, ItemError
from espnet3.parallel import BaseRunner
from tests.helpers.providers import Provider


class OddFails(BaseRunner):
    @staticmethod
    def forward(idx):
        if idx % 2:
            raise ValueError("odd")
        return idx


def test_the_limit_holds_over_all_calls(tmp_path):
    runner = OddFails(Provider(), output_dir=tmp_path, on_error="skip", max_errors=2)
    for _ in range(3):
        with pytest.raises(ItemError, match="the runner's retry_failed"):
            runner(range(10))
    runner.max_errors = 5
    assert runner(range(10)).read_text().split() == ["0", "2", "4", "6", "8"]


@pytest.mark.parametrize("limit", ["3", -1, 0.1, True])
def test_a_limit_that_is_no_count_is_refused_at_once(limit):
    with pytest.raises(ConfigError, match=r"max_errors is .*; write max_errors=0 or more"):
        OddFails(Provider(), on_error="skip", max_errors=limit)
