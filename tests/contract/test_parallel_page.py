"""Pages on parallel work: tables are those of the code, blocks are right, the Python runs."""

import re
import subprocess
import sys

import pytest
import yaml

from espnet3.parallel import BaseRunner, EnvironmentProvider
from espnet3.parallel.clusters.registry import BACKENDS, check_resources
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.parallel import as_parallel_config
from espnet3.systems.base.system import BaseSystem
from tests.helpers.pages import DOCS, blocks, code_in, named_files, table
from tests.helpers.recipe_copy import RecipeCopy

CONFIG, RUNNER = DOCS / "parallel-config.md", DOCS / "provider-and-runner.md"
FILES = {**named_files(RUNNER), **named_files(DOCS / "inference-provider.md")}
BLOCKS = [block for block in blocks(CONFIG, "yaml") if "parallel:" in block.text]


def test_the_table_has_every_key_with_its_default():
    rows = {code_in(row[0])[0]: row for row in table(CONFIG, "# Parallel config")}
    assert list(rows) == list(dict.fromkeys([*rows, *ParallelConfig.model_fields]))
    default = ParallelConfig()
    for key, row in rows.items():
        assert yaml.safe_load(code_in(row[2])[0]) == getattr(default, key), key
    assert code_in(rows["env"][1]) == list(BACKENDS)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_a_block_can_be_copied(block, monkeypatch):
    gpus = [str(number) for number in range(4)]
    monkeypatch.setattr("espnet3.parallel.clusters.gpus.visible_gpus", lambda _: gpus)
    check_resources(as_parallel_config(yaml.safe_load(block.text)["parallel"]))


def test_the_table_of_hooks_has_all_that_may_be_overridden():
    told = {
        re.match(r"`(\w+)\(", row[0])[1]: row[0] for row in table(RUNNER, "# Provider and runner")
    }
    methods = {
        name: method
        for cls in (BaseRunner, EnvironmentProvider)
        for name, method in vars(cls).items()
        if callable(method) and not name.startswith("_")
    }
    assert set(told) == set(methods) - {"costs_of"}  # which calls `cost`
    for name, cell in told.items():
        assert ("static" in cell) == isinstance(methods[name], staticmethod), name


def test_the_script_runs_as_printed(tmp_path):
    (tmp_path / "words.py").write_text(FILES["words.py"])
    for _ in range(2):  # the second time it finds all done
        done = subprocess.run(
            [sys.executable, "words.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "exp/counts/counts\n"
    assert (tmp_path / "exp/counts/counts").read_text() == "1\n2\n" * 50


def test_the_provider_of_the_page_serves_infer_of_a_new_recipe(tmp_path):
    recipe = RecipeCopy("TEMPLATE/asr", tmp_path / "it's mine")
    for name in ("src/providers.py", "conf/first.yaml"):
        (recipe.folder / name).write_text(FILES[name])
    words = ("--stages", "create_dataset", "infer", "--config", "conf/inference.yaml")
    recipe.run_here(BaseSystem, *words, "conf/first.yaml")
    lines = (recipe.folder / "exp/first/clean/hyp.scp").read_text().splitlines()
    assert len(lines) == 2
