"""`espnet3 plan` as a program of its own: what it foretells of a run that then happens."""

import re
import subprocess
import sys
from pathlib import Path

ESPNET3 = Path(sys.executable).with_name("espnet3")
RUN_PY = """
import sys
from espnet3.cli.recipe import run_recipe
from espnet3.systems.base.system import BaseSystem

if __name__ == "__main__":
    sys.exit(run_recipe(BaseSystem))
"""
INFERENCE = """
dataset:
  test: [{name: test, data_src: tests.helpers.inference_parts, data_src_args: {n: 64}}]
model: {_target_: tests.helpers.inference_parts.Speller}
parallel: {n_workers: 2}
"""


def run(recipe, *words):
    command = [str(word) for word in (ESPNET3, *words)]
    root = Path(__file__).parents[2]
    process = subprocess.run(
        command, cwd=recipe, env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_the_plan_tells_the_shards_of_the_run_that_follows_and_then_its_rate(awkward):
    (awkward / "conf").mkdir()
    (awkward / "run.py").write_text(RUN_PY)
    (awkward / "conf/inference.yaml").write_text(INFERENCE)
    before = run(awkward, "plan", "conf/inference.yaml")
    assert sorted(path.name for path in awkward.iterdir()) == ["conf", "run.py"]
    assert "State one: --rtf 0.05" in before
    run(awkward, "run", "--stages", "infer", "--config", "conf/inference.yaml")
    shards = list(awkward.glob("exp/inference/test/split.*"))
    assert f"shards: {len(shards)}, of " in before
    after = run(awkward, "plan", "conf/inference.yaml", "runner.resume=false")
    assert re.search(r"rate: real-time factor \S+, .*measured on 64 items in \S+test, ", after)
    assert "1 " in after.partition("Workers")[2]
