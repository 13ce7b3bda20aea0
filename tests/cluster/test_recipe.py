"""The default recipe's `infer` on real schedulers: the same files as on one machine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.cli.main import main
from espnet3.systems.asr.system import ASRSystem
from tests.helpers.espnet2_recipe import N_UTTERANCES, RUN, write_recipe
from tests.helpers.recipe_copy import run_recipe_here

pytest.importorskip("espeakng_loader", reason="needs pip install -e '.[demo]'")
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

RECIPE = Path(__file__).parents[2] / "egs3/digits/asr"
TINY = """
create_dataset: {n_train: 24, n_valid: 6, n_test: 16}
model: {encoder: {n_channels: 16, n_layers: 1}}
dataloader: {train: {num_workers: 0}}
trainer: {max_epochs: 3}
"""
# What a tiny network hears is mostly nothing; its scores tell one from another.
DECODING = ("batch_seconds=6", "output_keys=[hyp,ref,speaker,accent,score]")
CONFIGS = ["--training_config", "conf/training.yaml", "conf/more.yaml"]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Return a folder with a network that was trained for a moment, and what it hears."""
    folder = tmp_path_factory.mktemp("digits") / "it's my recipe"
    made = shutil.ignore_patterns("data", "exp", "logs", "__pycache__")
    shutil.copytree(RECIPE, folder, ignore=made)
    (folder / "conf/more.yaml").write_text(TINY)
    stages = ["create_dataset", "train_tokenizer", "train", "average", "infer"]
    command = infer_command("local", stages=stages)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    told = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=250)
    assert told.returncode == 0, told.stdout + told.stderr
    return folder


def infer_command(env, *more, stages=("infer",)):
    inference = ["--inference_config", "conf/inference.yaml", *more]
    settings = [f"inference_dir=${{exp_dir}}/on_{env}", *DECODING]
    return [sys.executable, "run.py", "--stages", *stages, *CONFIGS, *inference, *settings]


def read_outputs(recipe, env):
    folder = recipe / f"exp/training/on_{env}"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in ("test_seen", "test_unseen")
        for path in sorted((folder / name).glob("*.scp"))
    }


@pytest.mark.parametrize("scheduler", ["slurm_net", "sge"])
def test_infer_gives_the_same_bytes_as_on_this_machine(scheduler, request, recipe):
    clients = request.getfixturevalue(scheduler)
    env = clients.env_name
    (recipe / f"conf/{env}.yaml").write_text(json.dumps({"parallel": clients.parallel(2)}))
    code, told = clients.run(*infer_command(env, f"conf/{env}.yaml"), cwd=recipe, seconds=200)
    assert code == 0, told
    here, there = read_outputs(recipe, "local"), read_outputs(recipe, env)
    assert set(here) == {
        f"{name}/{key}.scp"
        for name in ("test_seen", "test_unseen")
        for key in ("hyp", "ref", "speaker", "accent", "score")
    }
    assert there == here
    assert clients.left_behind() == {}
    clients.wait_until_empty()
    # Not two for each test set. Less is possible: one job may be done before the other begins,
    # and Grid Engine writes its records when it likes.
    assert len(clients.submitted()) <= 2, clients.submitted()
    assert len(list((clients.folder / "jobs").glob("*.o[0-9]*"))) <= 2


def test_a_recipe_of_espnet2_decodes_on_slurm_by_the_job_options_of_its_cmd_sh(slurm_net, tmp_path):
    run = RUN.replace("--inference_nj 8", "--inference_nj 2")
    old = write_recipe(tmp_path / "egs2/mini/asr1", run=run)
    new = tmp_path / "new recipe"
    # The nearest model of ours: those of ESPnet2 need an environment of their own.
    assert main(["migrate", str(old), str(new), "--model", "native"]) in (0, 3)
    training = ["--training_config", "conf/training.yaml"]
    run_recipe_here(ASRSystem, new, "--stages", "train_tokenizer-train", *training)
    decoding = [*training, "--inference_config", "conf/inference.yaml", "conf/parallel_slurm.yaml"]
    command = [sys.executable, "run.py", "--stages", "infer", "measure", *decoding]
    command += ["--metrics_config", "conf/metrics.yaml"]
    code, told = slurm_net.run(*command, cwd=new, seconds=200)
    assert code == 0, told
    results = new / "exp/training/inference"
    assert len((results / "test/hyp.scp").read_text().splitlines()) == N_UTTERANCES["test"]
    assert "WER" in (results / "RESULTS.md").read_text()
    assert 1 <= len(slurm_net.submitted()) <= 2
