import dataclasses
import enum
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from espnet3.config.fingerprint import diff, digest, file_identity, files_in, flatten, same_file
from espnet3.config.schema import FrozenConfig
from espnet3.errors import ConfigError

ROOT = Path(__file__).parents[3]

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars | st.binary(max_size=4) | st.frozensets(st.integers() | st.text(max_size=3)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 3), inner, max_size=4)
    ),
    max_leaves=12,
)
mappings = st.dictionaries(st.text(max_size=5), values, max_size=5)


def reversed_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_order(value[key]) for key in reversed(value)}
    return [reversed_order(item) for item in value] if isinstance(value, list) else value


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Beam:
    size: int = 5


class Model(FrozenConfig):
    name: str = "x"
    beam: int = 5


class Plain:
    def method(self) -> None: ...


# flatten


@given(mappings)
def test_flat_values_survive_json_and_a_second_flattening(mapping):
    flat = flatten(mapping)
    assert json.loads(json.dumps(flat, allow_nan=False)) == flat
    assert flatten(flat) == flat
    assert list(flat) == sorted(flat)


@given(mappings)
def test_digest_and_diff_do_not_depend_on_the_order_of_keys(mapping):
    other = reversed_order(mapping)
    assert digest(mapping) == digest(other) == digest(flatten(mapping))
    assert diff(mapping, other) == []


@given(mappings, mappings)
def test_the_digest_differs_exactly_where_the_diff_has_lines(one, two):
    assert (digest(one) == digest(two)) == (diff(one, two) == [])


def test_nested_values_get_dotted_keys_and_a_prefix():
    value = {"b": {"l": [1, (2, 3)]}, "a": None, "e": {}, "f": []}
    assert flatten(value, "p") == {
        "p.a": None,
        "p.b.l.0": 1,
        "p.b.l.1.0": 2,
        "p.b.l.1.1": 3,
        "p.e": "{}",
        "p.f": "[]",
    }
    assert flatten(5, "p") == {"p": 5}
    assert flatten({}) == {}


def test_configs_dataclasses_and_models_are_flattened_by_field():
    config = OmegaConf.create({"a": {"b": "${c}"}, "c": 3, "l": [1], "m": "???"})
    assert flatten(config) == {"a.b": 3, "c": 3, "l.0": 1, "m": "???"}
    assert flatten({"x": config.a, "y": config.l}) == {"x.b": 3, "y.0": 1}
    assert flatten(Beam(), "b") == {"b.__class__": f"{__name__}.Beam", "b.size": 5}
    assert flatten(Model())["beam"] == 5


def test_an_interpolation_to_nowhere_is_an_error_rather_than_a_stale_result():
    with pytest.raises(ConfigError, match=r"c\.a cannot be resolved"):
        flatten({"c": OmegaConf.create({"a": "${nowhere}"})})


def test_leaves_are_described_without_memory_addresses():
    flat = flatten(
        {
            "path": Path("a/b"),
            "enum": Colour.RED,
            "function": os.path.join,
            "builtin": len,
            "class": Beam,
            "method": Plain().method,
            "object": Plain(),
            "partial": functools.partial(max, 3, key=abs),
            "range": range(3),
            "floats": [float("nan"), float("inf"), -float("inf"), 0.1],
        }
    )
    assert flat == {
        "path": "a/b",
        "enum": f"{__name__}.Colour.RED",
        "function": "posixpath.join",
        "builtin": "builtins.len",
        "class": f"{__name__}.Beam",
        "method": f"{__name__}.Plain.method",
        "object": f"object of {__name__}.Plain",
        "partial.func": "builtins.max",
        "partial.args.0": 3,
        "partial.keywords.key": "builtins.abs",
        "range": "builtins.range:range(0, 3)",
        "floats.0": "float:nan",
        "floats.1": "float:inf",
        "floats.2": "float:-inf",
        "floats.3": 0.1,
    }


def test_arrays_and_bytes_become_a_digest_with_type_and_shape():
    array = np.arange(6, dtype="float32").reshape(2, 3)
    text = flatten(array, "a")["a"]
    assert isinstance(text, str)
    assert text.startswith("sha256:")
    assert text.endswith(" <f4[2, 3]")
    assert flatten(np.asfortranarray(array), "a") == flatten(array, "a")
    different = [array.T, array.reshape(3, 2), array.astype("f8"), array + 1, b"x", array.tobytes()]
    assert len({digest({"a": value}) for value in [array, *different]}) == 7


def test_numpy_scalars_count_as_numbers_and_object_arrays_by_their_items():
    assert flatten({"i": np.int64(3), "f": np.float32(0.5), "z": np.array(2)}) == {
        "i": 3,
        "f": 0.5,
        "z": 2,
    }
    objects = np.array(["x", None], dtype=object)
    assert flatten(objects, "o")["o.items.0"] == "x"
    assert digest({"o": np.array(Plain(), dtype=object)}) == digest(
        {"o": np.array(Plain(), dtype=object)}
    )


def test_tensors_are_compared_by_content():
    import torch

    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        one, two = torch.zeros(2, 3, dtype=dtype), torch.ones(2, 3, dtype=dtype)
        assert digest({"t": one}) == digest({"t": one.clone()}) != digest({"t": two})
    assert flatten(torch.float16, "d") == {"d": "torch.float16"}
    assert flatten(torch.device("cuda", 1), "d") == {"d": "cuda:1"}


def test_sets_are_sorted_also_where_their_items_do_not_compare():
    assert flatten({"s": {"b", "a"}}) == {"s.0": "a", "s.1": "b"}
    assert digest({"s": {1, "a", None, (2,)}}) == digest({"s": {None, (2,), "a", 1}})


def test_keys_that_collide_are_all_kept():
    assert len(flatten({"a.b": 1, "a": {"b": 2}})) == 2
    assert len(flatten({1: "x", "1": "y"})) == 2
    assert digest({(1, 2): 1, (3, 4): 2}) == digest({(3, 4): 2, (1, 2): 1})


@pytest.mark.parametrize(("one", "two"), [(1, True), (1, 1.0), (0, None), ("1", 1), ([], {})])
def test_values_that_python_calls_equal_or_prints_alike_are_told_apart(one, two):
    assert digest({"a": one}) != digest({"a": two})
    assert diff({"a": one}, {"a": two}) != []


def test_the_digest_is_the_same_in_every_process_and_loads_no_heavy_package():
    code = """
import sys
from espnet3.config.fingerprint import digest
print(digest({"s": {"a", "b", 1, (2, 3)}, "f": frozenset("xyz"), "k": {"q": 1.5, 2: None}}))
heavy = {"omegaconf", "pydantic", "numpy", "torch", "yaml", "hydra"} & set(sys.modules)
assert not heavy, heavy
"""
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1
    # Frozen: another value would make every existing run folder stale.
    assert digest({"beam": 5, "a": {"b": [1.5, None]}}).startswith("54c8a3858197aa82")


# diff


def test_a_diff_shows_old_and_new_ordered_by_key():
    old = {"params": {"beam_size": 5, "gone": 1}, "same": [1]}
    new = {"same": [1], "params": {"beam_size": 8}, "config": {"lm_path": "lm.pt"}}
    assert diff(old, new) == [
        "config.lm_path: (not set) -> 'lm.pt'",
        "params.beam_size: 5 -> 8",
        "params.gone: 1 -> (not set)",
    ]


def test_nan_is_no_change():
    assert diff({"a": float("nan")}, {"a": float("nan")}) == []


def test_long_values_are_cut_around_the_change():
    (line,) = diff({"a": "x" * 500 + "OLD"}, {"a": "x" * 500 + "NEW"})
    assert len(line) < 200
    assert "OLD" in line
    assert "NEW" in line
    (line,) = diff({"a": "x" * 500}, {"a": "x" * 500 + "MORE"})
    assert "MORE" in line


# Files


def test_touching_a_file_is_no_change_and_new_content_of_the_same_size_is(tmp_path):
    path = tmp_path / 'it\'s a "model".pt'
    path.write_bytes(b"weights")
    identity = file_identity(path)
    assert identity["size"] == 7
    os.utime(path, ns=(1, 1))
    assert same_file(identity, path)
    path.write_bytes(b"WEIGHTS")
    assert not same_file(identity, path)
    path.write_bytes(b"longer weights")
    assert not same_file(identity, path)
    path.unlink()
    assert not same_file(identity, path)


def test_files_in_finds_files_and_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model.pt").write_bytes(b"x")
    Path("folder").mkdir()
    flat = {
        "relative": "model.pt",
        "path": tmp_path / "model.pt",
        "folder": str(tmp_path / "folder"),
        "missing": "nope.pt",
        "empty": "",
        "long": "x" * 100_000,
        "null": "a\0b",
        "number": 3,
        "none": None,
        "dots": "..",
        "separator": "/",
        "device": "/dev/null",
    }
    found = files_in(flat)
    assert list(found) == ["relative", "path", "folder"]
    assert found["path"] == file_identity("model.pt")
    assert found["folder"] == file_identity("folder")
