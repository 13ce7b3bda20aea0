"""An object in `params` or in a provider was known by its type, whatever its attributes were."""

import argparse
import json
import logging
import re
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from espnet3.config.fingerprint import flatten
from espnet3.errors import StaleRunError
from espnet3.parallel import BaseRunner
from espnet3.shards.layout import manifest_path
from tests.helpers.providers import Provider


class Decoder:
    def __init__(self, beam, path=None):
        self.beam, self._path = beam, path
        self.owner = self
        self.lock = threading.Lock()
        self.log = logging.getLogger("decoder")


class Slotted:
    __slots__ = ("beam",)

    def __init__(self, beam):
        self.beam = beam


class Echo(BaseRunner):
    @staticmethod
    def forward(idx, **env):
        return idx


def run(output_dir, value):
    return Echo(Provider(value=value), output_dir=output_dir)(range(2))


@pytest.mark.parametrize(
    "make",
    [
        *(Decoder, Slotted, lambda n: argparse.Namespace(beam=n), lambda n: SimpleNamespace(a=[n])),
        *(lambda n: re.compile(f"a{n}"), lambda n: Decoder(Slotted(n))),
        lambda n: SimpleNamespace(table=np.full(3, n)),
    ],
)
def test_another_attribute_is_noticed(tmp_path, make):
    run(tmp_path, make(5))
    run(tmp_path, make(5))
    with pytest.raises(StaleRunError, match=r"env\.value\."):
        run(tmp_path, make(8))


def test_what_a_call_leaves_in_a_cache_is_no_change(tmp_path):
    value = SimpleNamespace(beam=5, _word_cache={})
    run(tmp_path, value)
    value._word_cache["a"] = 1
    run(tmp_path, value)


def test_the_content_of_a_file_that_it_names_is_compared(tmp_path):
    model = tmp_path / "model.pt"
    model.write_bytes(b"1")
    run(tmp_path / "out", Decoder(5, model))
    model.write_bytes(b"2")
    with pytest.raises(StaleRunError, match=r"env\.value\._path: the file .* has other content"):
        run(tmp_path / "out", Decoder(5, model))


def test_a_run_of_an_earlier_version_goes_on(tmp_path, caplog):
    run(tmp_path, Decoder(5))
    path = manifest_path(tmp_path)
    values = json.loads(path.read_text())
    del values["versions"]["fingerprint"]
    old = values["fingerprint"]
    values["fingerprint"] = {k: v for k, v in old.items() if not k.startswith("env.value.")}
    values["fingerprint"]["env.value"] = "object of tests.Decoder"
    path.write_text(json.dumps(values))
    with caplog.at_level(logging.WARNING, "espnet3"):
        run(tmp_path, Decoder(5))
    assert "env.value" in caplog.text


def test_what_is_flattened_without_its_state_is_as_before():
    assert list(flatten({"a": Decoder(5)})) == ["a"]
