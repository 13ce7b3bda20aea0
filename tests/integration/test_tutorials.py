"""The notebooks of docs/tutorials run from the first to the last cell, and their links lead on."""

import json
import re

import pytest

from tests.helpers.notebooks import TUTORIALS, markdown_of, run_notebook
from tests.helpers.pages import DOCS, ROOT, anchors

NAMES = sorted(path.stem for path in TUTORIALS.glob("*.ipynb"))
SMALL = "create_dataset: {n_train: 40, n_valid: 8, n_test: 8}\ntrainer: {max_epochs: 1}\n"


def test_a_runner_of_ones_own(tmp_path):
    told = run_notebook("runner-on-a-cluster", tmp_path)
    assert "200 of 200 done" in told
    assert "config.first: 1000 -> 5000" in told
    assert "ValueError: a bad item" in told
    lines = (tmp_path / "exp/factors/results.jsonl").read_text().splitlines()
    assert json.loads(lines[1]) == {"number": 1001, "factors": [7, 11, 13]}


def test_the_block_for_a_cluster_is_one():
    from espnet3.parallel.parallel import as_parallel_config

    cells = json.loads((TUTORIALS / "runner-on-a-cluster.ipynb").read_text())["cells"]
    (text,) = ["".join(c["source"]) for c in cells if "slurm = {" in "".join(c["source"])]
    names: dict = {}
    exec(text, names)
    assert as_parallel_config(names["slurm"]).options["walltime"] == "00:10:00"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_first_recogniser_and_its_report(tmp_path):
    pytest.importorskip("espeakng_loader")
    small = tmp_path / "small.yaml"
    small.write_text(SMALL)
    told = run_notebook(
        "first-recogniser", tmp_path,
        ESPNET3_REPOSITORY=str(ROOT), ESPNET3_TUTORIAL_CONFIG=str(small),
    )  # fmt: skip
    assert "| test_unseen |" in told
    assert "recognised:" in told
    told = run_notebook("reading-a-report", tmp_path)
    assert "test_seen: " in told
    assert "epoch 1 valid/loss" in told
    assert "waited for data:" in told


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere_and_nothing_is_left_of_a_run(name):
    for path, anchor in re.findall(r"\]\(([^()\s#]+)(?:#([^()\s]+))?\)", markdown_of(name)):
        target = (TUTORIALS / path).resolve()
        assert target.is_file(), path
        assert not anchor or anchor in anchors(target), anchor
    cells = json.loads((TUTORIALS / f"{name}.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    assert f"tutorials/{name}.ipynb" in (DOCS / "README.md").read_text()
