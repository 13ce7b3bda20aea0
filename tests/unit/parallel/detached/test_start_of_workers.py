"""A detached worker imports little before its first item; all of a cluster's start at once."""

import subprocess
import sys

import pytest

from espnet3.errors import ConfigError
from espnet3.parallel.detached.description import Description

HEAVY = {"dask", "distributed", "dask_jobqueue", "pydantic", "omegaconf", "numpy", "torch"}


@pytest.mark.parametrize("module", ["work", "successor_main"])
def test_it_imports_nothing_heavy(module):
    code = f"import sys, espnet3.parallel.detached.{module}; print(*sys.modules, sep='\\n')"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & {*told.stdout.split()}


def described(**block):
    return Description("id", "name", "python", "/", [], {"env": "local", **block}, {})


def test_its_settings_are_those_of_the_block():
    block = {"options": {"threads_per_worker": 3}, "worker_timeout": 7.5}
    assert described(**block).worker_settings() == (3, 7.5)
    assert described(options={}, worker_timeout=7.5).worker_settings() == (1, 7.5)


def test_settings_that_are_missing_are_those_of_a_block_without_them():
    assert described().worker_settings() == (1, 300.0)


@pytest.mark.parametrize("block", [{"worker_timeout": -1.0}, {"worker_timeout": "long"}])
def test_a_damaged_block_is_refused_with_its_key(block):
    with pytest.raises(ConfigError, match=r"parallel\.worker_timeout"):
        described(**block).worker_settings()
