"""A keyword that the environment also has was replaced by the environment's, in silence.

With a parameter of the item's own name in the environment, every item was computed from that value.
"""

from functools import partial

import pytest

from espnet3.errors import ProviderError
from espnet3.parallel import BaseRunner, get_client, parallel_map, use_parallel
from espnet3.parallel.driver import map_in_memory
from espnet3.parallel.parallel import get_parallel_config
from espnet3.parallel.tasks import bind


def scale(item, factor=1):
    return item * factor


def environment():
    return {"factor": 10, "item": 100}


class Provider:
    def __init__(self, **env):
        self.env = env

    def build_env_local(self):
        return self.env

    def build_worker_setup_fn(self):
        return partial(dict, **self.env)


class Scale(BaseRunner):
    @staticmethod
    def forward(idx, factor=1, **env):
        return idx * factor

    def settings(self):
        return {"unit": "m"}


def mapped(fn, **env):
    with use_parallel({"n_workers": 1}):
        return map_in_memory(fn, [1, 2], partial(dict, **env), get_parallel_config(), None)


def test_a_given_argument_that_the_environment_has_is_refused():
    with pytest.raises(ProviderError, match=r"scale was given factor=2, and the environment has"):
        mapped(partial(scale, factor=2), factor=10)


def test_a_given_argument_that_it_lacks_is_used():
    assert mapped(partial(scale, factor=2), other=10) == [2, 4]


def test_the_environment_takes_the_place_of_a_default():
    assert mapped(scale, factor=10) == [10, 20]


@pytest.mark.parametrize("n_workers", [1, 2])
def test_an_item_whose_name_the_environment_has_is_refused(n_workers):
    with (
        use_parallel({"n_workers": n_workers}),
        pytest.raises(
            ProviderError,
            match=r"the item as its first argument, 'idx'.*Write: def forward\(item, ",
        ),
    ):
        Scale(Provider(idx=3))(range(2))


def test_the_first_argument_is_the_item():
    def swapped(dataset, idx):
        return idx

    with pytest.raises(ProviderError, match=r"first argument, 'dataset'.*Write: def swapped\(idx"):
        bind(swapped, ["idx"], {"dataset": 1})


@pytest.mark.parametrize("function", [lambda: 0, lambda *, dataset: 0])
def test_a_function_without_a_place_for_the_item_is_refused(function):
    with pytest.raises(ProviderError, match=r"takes no item\. Write: lambda idx, "):
        bind(function, ["idx"], {"dataset": 1})


def test_what_the_runner_gives_itself_is_refused_in_the_environment():
    with (
        use_parallel({"n_workers": 1}),
        pytest.raises(
            ProviderError, match=r"environment has 'unit', which the runner hands to forward"
        ),
    ):
        Scale(Provider(unit="km"))(range(2))


def test_params_that_the_environment_has_otherwise_are_told(caplog):
    provider = Provider(factor=3, lm=object())
    provider.params = {"factor": 2, "lm": "a path", "secret": "hidden"}
    with use_parallel({"n_workers": 1}):
        assert Scale(provider)(range(2)) == [0, 3]
    assert "params of the provider has another factor than the environment" in caplog.text
    assert "another lm" not in caplog.text  # it was made of the path
    assert "hidden" not in caplog.text


def test_a_partial_that_lacks_an_argument_is_told():
    def scale_both(item, other, factor):
        return item

    with pytest.raises(ProviderError, match=r"scale_both needs 'other'"):
        mapped(partial(scale_both, factor=2))


@pytest.mark.parametrize("fn", [partial(scale, factor=2), scale])
def test_on_a_cluster_as_well(dask_address, fn):
    with (
        get_client(dask_address, setup_fn=environment),
        pytest.raises(ProviderError, match="and the environment has"),
    ):
        parallel_map(fn, [1, 2])
