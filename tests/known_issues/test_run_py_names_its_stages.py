"""`run.py` of each recipe says where its stages are, which others look for there."""

import importlib
import re

import pytest

from tests.helpers.recipe_copy import ROOT

SCRIPTS = sorted((ROOT / "egs3").glob("*/*/run.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.parent.name)
def test_the_docstring_names_the_class_and_the_option_that_lists_them(script):
    text = script.read_text()
    assert "python run.py --list-stages" in text
    named, module = re.search(r"methods of (\w+) in ([\w.]+)", text).groups()
    assert f"run_recipe({named})" in text
    assert f"from {module} import {named}" in text
    if module.startswith("espnet3."):
        assert hasattr(importlib.import_module(module), named)
