"""The YAML and Python of "Inference at scale" run as printed, through the stage of a recipe."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from espnet3.io.scp import load_scp
from tests.helpers.phrases import too_few_gpus
from tests.helpers.snippets import FILTERED, SNIPPETS, read_snippet

RUN = """
from espnet3.cli.recipe import run_recipe
from espnet3.systems.base.system import BaseSystem

if __name__ == "__main__":
    raise SystemExit(run_recipe(BaseSystem))
"""

# What the page leaves to the recipe: a dataset and a model.
DATA = """
dataset:
  _target_: espnet3.components.data.data_organizer.DataOrganizer
  test:
    - name: test_clean
    - name: test_other
      data_src_args: {n: 30}
model:
  _target_: src.model.Model
"""
DATASET = """
import numpy as np


class Dataset:
    def __init__(self, n=50):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {"utt_id": f"utt{i}", "speech": np.full(16000 + i, i / 10), "text": f"number {i}"}

    def durations(self):
        return [i / 50 for i in range(self.n)]
"""
MODEL = """
import time
from pathlib import Path


class Model:
    def __init__(self, device, seconds=0.0):
        self.device, self.seconds, self.lm = device, seconds, None

    def load_language_model(self, path):
        self.lm = Path(path).read_text()

    def eval(self):
        return self

    def __call__(self, speech):
        time.sleep(self.seconds)
        if isinstance(speech, list) and isinstance(speech[0], dict):
            return [{"utt_id": s["utt_id"], "hyp": self(s["speech"])} for s in speech]
        if isinstance(speech, list):
            return [self(one) for one in speech]
        return f"number {len(speech) - 16000}{self.lm or ''}"
"""


@pytest.fixture
def recipe(tmp_path):
    """Return a recipe folder with the printed minimal config."""
    folder = tmp_path / "my corpus's" / "asr"
    files = {
        "run.py": RUN,
        "dataset/__init__.py": DATASET,
        "src/__init__.py": "",
        "src/model.py": MODEL,
        "conf/inference.yaml": yaml("minimal_inference") + DATA,
        "conf/parallel_local.yaml": "parallel: {env: local, n_workers: 2}\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def yaml(name: str) -> str:
    return (SNIPPETS / f"{name}.yaml.txt").read_text()


def start(recipe: Path, *args: str) -> subprocess.Popen:
    command = [sys.executable, "run.py", "--stage", "6", "--config", *args]
    return subprocess.Popen(
        command, cwd=recipe, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(recipe: Path, *args: str, code: int = 0) -> str:
    process = start(recipe, *args)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == code, output
    return output


def hyps(recipe: Path, test_set: str = "test_clean") -> dict[str, str]:
    return load_scp(recipe / "exp" / "inference" / test_set / "hyp.scp")


EXPECTED = {f"utt{i}": f"number {i}" for i in range(50)}


def test_the_minimal_config_decodes_every_test_set(recipe):
    run(recipe, "conf/inference.yaml")
    assert hyps(recipe) == EXPECTED
    assert len(hyps(recipe, "test_other")) == 30


def test_only_the_parallel_block_changes_between_backends(recipe):
    run(recipe, "conf/inference.yaml", "conf/parallel_local.yaml")
    assert hyps(recipe) == EXPECTED


def test_batch_size_passes_lists_to_the_model(recipe):
    (recipe / "conf" / "batch.yaml").write_text(yaml("batch_size"))
    run(recipe, "conf/inference.yaml", "conf/batch.yaml")
    assert hyps(recipe) == EXPECTED


def test_the_printed_forward_handles_both_forms(recipe):
    body = textwrap.indent(read_snippet("batch_forward"), "    ")
    code = "from espnet3.systems.base.inference_runner import InferenceRunner\n\n\n"
    (recipe / "src" / "inference.py").write_text(f"{code}class Batch(InferenceRunner):\n{body}")
    target = "runner._target_=src.inference.Batch"
    (recipe / "conf" / "batch.yaml").write_text(yaml("batch_size"))
    run(recipe, "conf/inference.yaml", "conf/batch.yaml", target)
    assert hyps(recipe) == EXPECTED


def test_a_custom_provider_filters_the_dataset(recipe):
    (recipe / "src" / "inference.py").write_text(read_snippet("custom_dataset_provider") + FILTERED)
    (recipe / "conf" / "provider.yaml").write_text(yaml("provider"))
    run(recipe, "conf/inference.yaml", "conf/provider.yaml", "conf/parallel_local.yaml")
    assert list(hyps(recipe)) == [f"utt{i}" for i in range(25, 50)]


def test_a_custom_provider_builds_the_model_with_a_key_of_its_own(recipe):
    imports = "".join(read_snippet("custom_dataset_provider").splitlines(keepends=True)[:2])
    code = f"{imports}\n\n{read_snippet('custom_model_provider')}"
    (recipe / "src" / "inference.py").write_text(code)
    (recipe / "lm.txt").write_text("!")
    (recipe / "conf" / "provider.yaml").write_text(yaml("provider") + "lm_path: lm.txt\n")
    run(recipe, "conf/inference.yaml", "conf/provider.yaml")
    assert hyps(recipe)["utt7"] == "number 7!"
    (recipe / "lm.txt").write_text("?")
    output = run(recipe, "conf/inference.yaml", "conf/provider.yaml", code=1)
    assert "config.lm_path: the file lm.txt has other content" in output


@pytest.mark.parametrize("parallel", [[], ["conf/parallel_local.yaml"]], ids=["one", "two"])
def test_the_custom_runner_writes_its_text_through_the_stage(recipe, parallel):
    (recipe / "src" / "inference.py").write_text(read_snippet("text_runner"))
    target = "runner={_target_: src.inference.MyTextRunner}"
    run(recipe, "conf/inference.yaml", *parallel, target)
    text = (recipe / "exp" / "inference" / "test_clean" / "text").read_text()
    assert text.splitlines() == [f"{key} {value}" for key, value in EXPECTED.items()]


def test_resume_after_a_kill_runs_only_what_is_missing(recipe):
    (recipe / "conf" / "resume.yaml").write_text(yaml("resume"))
    args = ("conf/inference.yaml", "conf/resume.yaml", "conf/parallel_local.yaml")
    slow = (*args, "model.seconds=0.05")
    process = start(recipe, *slow)
    folder = recipe / "exp" / "inference" / "test_clean"
    deadline = time.monotonic() + 60
    while len(list(folder.glob("split.*/done"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = {path: path.stat().st_mtime_ns for path in folder.glob("split.*/done")}
    assert not (folder / "hyp.scp").exists()
    run(recipe, *slow)
    assert hyps(recipe) == EXPECTED
    assert before.items() <= {p: p.stat().st_mtime_ns for p in folder.glob("split.*/done")}.items()


def test_more_workers_than_visible_gpus_is_an_error_at_once(recipe):
    (recipe / "conf" / "parallel_gpu.yaml").write_text(yaml("parallel_gpu"))
    output = run(recipe, "conf/inference.yaml", "conf/parallel_gpu.yaml", code=1)
    assert too_few_gpus(4, 0) in output
    assert not (recipe / "exp" / "inference" / "test_clean").exists()


@pytest.mark.parametrize(
    ("name", "line"),
    [("slurm", "#SBATCH --gres=gpu:1"), ("pbs", "#PBS -l select=1:ncpus=4:mem=30GB:ngpus=1")],
)
def test_the_dry_run_shows_the_job_script_of_the_printed_blocks(recipe, name, line):
    (recipe / "conf" / "parallel.yaml").write_text(yaml(f"parallel_{name}"))
    # No machine of the tests has the printed network interface.
    args = ["parallel.options.interface=lo"] if name == "slurm" else []
    output = run(recipe, "conf/inference.yaml", "conf/parallel.yaml", *args, "--dry-run")
    assert line in output
    assert not (recipe / "exp").exists()


def test_a_large_object_in_params_is_refused_with_its_name(recipe):
    big = f"provider: {{params: {{table: '{'x' * 1_500_000}'}}}}"
    (recipe / "conf" / "big.yaml").write_text(big)
    output = run(recipe, "conf/inference.yaml", "conf/big.yaml", code=1)
    assert "params" in output
    assert "MB" in output


def test_writer_hooks_without_merge_are_warned_about(recipe):
    code = read_snippet("text_runner")
    (recipe / "src" / "inference.py").write_text(code[: code.index("    def merge")])
    target = "runner={_target_: src.inference.MyTextRunner}"
    output = run(recipe, "conf/inference.yaml", target)
    assert "overrides open_writers but not merge()" in " ".join(output.split())
