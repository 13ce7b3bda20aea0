import gc

import pytest

from espnet3.memory import rare_collections


@pytest.fixture(autouse=True)
def threshold():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def collections_of(n_objects):
    counted = []
    gc.callbacks.append(lambda phase, info: counted.append(phase))
    try:
        kept = [[] for _ in range(n_objects)]
    finally:
        gc.callbacks.pop()
    assert len(kept) == n_objects
    return counted.count("start")


def test_what_is_loaded_is_looked_through_rarely():
    usual = collections_of(50_000)
    with rare_collections():
        rare = collections_of(50_000)
    assert rare <= 1 < 50 < usual
    assert gc.get_threshold() == (700, 10, 10)


def test_it_ends_with_an_error_too():
    with pytest.raises(OSError, match="no model"), rare_collections():
        raise OSError("no model")
    assert gc.get_threshold() == (700, 10, 10)


def test_what_the_user_s_code_sets_while_it_is_loaded_stays():
    with rare_collections():
        gc.set_threshold(5_000, 5, 5)
    assert gc.get_threshold() == (5_000, 5, 5)


@pytest.mark.parametrize("threshold", [(0, 10, 10), (1_000_000, 10, 10)])
def test_one_who_has_it_off_or_rarer_keeps_that(threshold):
    gc.set_threshold(*threshold)
    with rare_collections():
        assert gc.get_threshold() == threshold
    assert gc.get_threshold() == threshold
