"""Which modules are the user's own, and that nothing is imported to find out."""

import json
import os
import sys

import numpy
import pytest

import espnet3
from espnet3.parallel.own_modules import find_module, follow_imports, is_own_file
from tests.helpers import inference_parts


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_files_of_python_of_packages_and_of_espnet3_are_not_own(tmp_path):
    for module in (json, os, numpy, espnet3):
        assert not is_own_file(module.__file__)
    assert is_own_file(inference_parts.__file__)
    assert is_own_file(str(tmp_path / "model.py"))
    # Containers have code there, and Python's own library as well.
    assert is_own_file("/usr/src/app/model.py")
    assert not is_own_file("/opt/env/lib/python3.11/site-packages/theirs/model.py")


def test_a_module_is_found_without_importing_it_or_its_packages(folder):
    for name in ("outer_of_us/__init__.py", "outer_of_us/inner/__init__.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("raise RuntimeError\n")
    (folder / "outer_of_us" / "inner" / "leaf.py").write_text("from . import other\n")
    (folder / "outer_of_us" / "inner" / "other.py").write_text("import outer_of_us.inner.leaf\n")
    leaf = find_module("outer_of_us.inner.leaf")
    assert leaf is not None
    assert leaf.package == "outer_of_us.inner"
    names = sorted(module.shown for module in follow_imports([leaf]).values())
    assert names == [f"outer_of_us{n}" for n in ("", ".inner", ".inner.leaf", ".inner.other")]
    assert "outer_of_us" not in sys.modules


def test_namespaces_in_namespaces_are_looked_into(folder):
    (folder / "space_of_us" / "inner").mkdir(parents=True)
    (folder / "space_of_us" / "inner" / "leaf.py").write_text("A = 1\n")
    assert find_module("space_of_us.inner.leaf") is not None
    assert find_module("space_of_us.inner") is None
    assert find_module("space_of_us.nowhere.leaf") is None


@pytest.mark.parametrize("name", ["", ".", "a..b", "no_such_module_here", "json.decoder", "a b"])
def test_what_is_no_module_of_ones_own_is_none(name):
    assert find_module(name) is None
