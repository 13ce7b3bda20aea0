import dask
import distributed  # noqa: F401  # its defaults
import pytest

from espnet3.parallel.clusters.dask_config import quiet_settings

PROFILE, TICK = "distributed.worker.profile", "distributed.admin.tick"


def test_by_its_defaults_dask_is_made_quieter():
    assert quiet_settings() == {f"{PROFILE}.enabled": False, f"{TICK}.interval": "500ms"}


@pytest.mark.parametrize(
    ("key", "value", "left"),
    [
        (f"{PROFILE}.interval", "50ms", f"{TICK}.interval"),
        (f"{PROFILE}.enabled", False, f"{TICK}.interval"),
        (f"{TICK}.limit", "9s", f"{PROFILE}.enabled"),
    ],
)
def test_what_a_program_has_set_stays(key, value, left):
    with dask.config.set({key: value}):
        assert list(quiet_settings()) == [left]


def test_what_a_variable_says_stays_even_if_it_is_the_default(monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "True")
    assert list(quiet_settings()) == [f"{TICK}.interval"]
