"""A key that nobody reads was taken without a word: a sweep over `lr` trained three equal models.

Now it is refused on the command line and told where it stands in a file, before anything starts;
and what a stage does not read does not make its results stale.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

from espnet3.cli.recipe import run_recipe
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.base.checks import names_in_code
from espnet3.systems.base.stages import stage
from espnet3.systems.base.system import BaseSystem

DIGITS = Path(__file__).parents[2] / "egs3" / "digits" / "asr"
PARTS = "tests.helpers.inference_parts"
INFERENCE = f"""\
parallel: {{env: local, n_workers: 1}}
input_key: speech
dataset:
  test: [{{name: digits, data_src: {PARTS}, data_src_args: {{n: 4}}}}]
model: {{_target_: {PARTS}.Speller, beam_size: 5}}
"""
TRAINING = "seed: 0\ntrainer: {devices: 1, max_epochs: 1}\n"
TRAIN = ("--stages", "train", "--training_config", "conf/training.yaml")
INFER = ("--stages", "infer", "--inference_config", "conf/inference.yaml")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def digits(here):
    """Return a copy of a shipped recipe that has made nothing yet."""
    for name in ("conf", "dataset"):
        shutil.copytree(DIGITS / name, here / "digits" / name)
    return here / "digits"


@pytest.fixture
def recipe(here):
    folder = here / "recipe"
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "inference.yaml").write_text(INFERENCE)
    (folder / "conf" / "training.yaml").write_text(TRAINING)
    return folder


@pytest.fixture
def run(caplog, capfd):
    """Return a function that runs a recipe, and returns the exit code and all that it told."""

    def call(folder, *args, system=BaseSystem):
        caplog.clear()
        code = run_recipe(system, args, recipe_dir=folder)
        os.chdir(folder.parent)
        told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        return code, "\n".join([*told, capfd.readouterr().err])

    return call


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("lr=0.1", "optimizer.lr=0.1"),
        ("batch_size=4", "dataloader.train.batch_size=4"),
        ("epochs=3", "trainer.max_epochs=3"),
        ("gradient_accumulation_steps=2", "trainer.accumulate_grad_batches=2"),
        ("num_device=4", "trainer.devices=4"),
        ("parallel.n_workers=4", "trainer.devices=4"),
        ("n_workers=4", "trainer.devices=4"),
        ("early_stopping=true", "trainer.callbacks"),
        ("nj=8", "parallel.n_workers=8"),
        ("anything_else=1", "vars.anything_else"),
    ],
)
def test_training_refuses_an_override_that_it_does_not_read(digits, run, override, line):
    code, said = run(digits, *TRAIN, override, system=ASRSystem)
    assert code == 1
    assert override.partition("=")[0] in said
    assert line in said or override == "nj=8"
    assert not (digits / "exp").exists()


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("trainer.devices=2", "parallel.n_workers=2"),
        ("dataloader.batch_size=4", "batch_size=4"),
        ("devices=2", "parallel.n_workers=2"),
        ("inference_nj=8", "parallel.n_workers=8"),
        ("nj=8", "parallel.n_workers=8"),
        ("seed=1", "seed"),
        ("optimizer.lr=0.1", "train"),
        ("dataset.train=[]", "dataset.train"),
    ],
)
def test_inference_refuses_an_override_that_it_does_not_read(recipe, run, override, line):
    code, said = run(recipe, *INFER, override)
    assert code == 1
    assert override.partition("=")[0] in said
    assert line in said
    assert not (recipe / "exp").exists()


@pytest.mark.parametrize("key", ["trainer.devices", "trainer.max_epochs", "dataloader.train.x"])
def test_with_a_training_config_as_well(recipe, run, key):
    both = (*INFER, "--training_config", "conf/training.yaml")
    code, said = run(recipe, *both, f"{key}=2")
    if key == "dataloader.train.x":  # compared with that of the training, if there is one
        assert code == 0
    else:
        assert code == 1
        assert key in said


def test_a_key_in_a_file_is_told_with_its_line_and_what_to_write(recipe, run):
    (recipe / "conf" / "inference.yaml").write_text(f"{INFERENCE}nj: 8\nfoo: 1\n")
    code, said = run(recipe, *INFER, "--dry-run")
    assert code == 0
    assert "conf/inference.yaml:6" in said
    assert "parallel: {n_workers: 8}" in said
    assert "foo in conf/inference.yaml:7" in said


def test_a_trainer_in_an_inference_config_is_told(recipe, run):
    (recipe / "conf" / "inference.yaml").write_text(f"{INFERENCE}trainer: {{devices: 4}}\n")
    code, said = run(recipe, *INFER, "--dry-run")
    assert code == 0
    assert "trainer in conf/inference.yaml:6" in said
    assert "parallel" in said


@pytest.mark.parametrize(
    "more",
    ["mine: hyp\nhyp_key: ${mine}\n", "vars: {a: 5}\n", "a: utt_id\nb: ${a}\nidx_key: ${b}\n"],
)
def test_what_others_refer_to_and_ones_own_values_are_fine(recipe, run, more):
    (recipe / "conf" / "inference.yaml").write_text(INFERENCE + more)
    code, said = run(recipe, *INFER, "--dry-run")
    assert code == 0
    assert "reads" not in said


def test_a_reference_from_what_nobody_reads_does_not_count(recipe, run):
    (recipe / "conf" / "inference.yaml").write_text(f"{INFERENCE}a: 1\nb: ${{a}}\n")
    code, said = run(recipe, *INFER, "a=2")
    assert code == 1
    assert "a (command line: a=2)" in said


def test_what_ones_own_provider_reads_is_fine(recipe, run):
    (recipe / "own_provider_of_a_key.py").write_text(
        "from espnet3.systems.base.inference_provider import InferenceProvider\n"
        "class Mine(InferenceProvider):\n"
        "    @staticmethod\n"
        "    def build_model(config):\n"
        "        assert config.lm_path and config['lm_scale'] and config.get('lm_type')\n"
        "        return InferenceProvider.build_model(config)\n"
    )
    provider = "provider: {_target_: own_provider_of_a_key.Mine}\nlm_path: lm\n"
    (recipe / "conf" / "inference.yaml").write_text(INFERENCE + provider)
    code, said = run(recipe, *INFER, "lm_scale=2", "lm_type=rnn")
    assert code == 0, said
    assert "reads" not in said
    code, said = run(recipe, *INFER, "lm_scale=2", "lm_type=rnn", "lm_pth=x")
    assert code == 1
    assert "lm_pth" in said
    sys.modules.pop("own_provider_of_a_key")


class OwnStages(BaseSystem):
    @stage(config="inference", after="infer")
    def rescore(self):
        """Read a key of its own."""
        assert self.inference.config.rescoring == 3


def test_a_stage_of_ones_own_may_read_anything_and_is_told(recipe, run):
    line = ("--stages", "rescore", *INFER[2:])
    code, said = run(recipe, *line, "rescoring=3", system=OwnStages)
    assert (code, "reads" in said) == (0, False)
    code, said = run(recipe, *line, "rescoring=3", "foo=3", system=OwnStages)
    assert code == 0
    assert "foo (command line: foo=3)" in said


def test_workers_for_a_training_are_told(digits, caplog):
    (digits / "conf" / "gpus.yaml").write_text("parallel: {env: local_gpu, n_workers: 4}\n")
    text = (digits / "conf" / "training.yaml").read_text().replace("devices:", "num_nodes:")
    (digits / "conf" / "training.yaml").write_text(text.replace("num_nodes: 1", "benchmark: false"))
    system = ("--stages", "train", "--training_config", "conf/training.yaml", "conf/gpus.yaml")
    from espnet3.systems.base.checks import Readers, warn_of_unread
    from espnet3.systems.base.context import load_configs
    from espnet3.systems.base.stages import find_stage, stages_of

    os.chdir(digits)
    configs = load_configs({"training": system[3:]}, recipe_dir=digits)
    instance = ASRSystem(**vars(configs))
    warn_of_unread(Readers(instance, [find_stage(stages_of(ASRSystem), "train")]))
    assert "conf/gpus.yaml:1" in caplog.text
    assert "trainer: {devices: 4}" in caplog.text


def test_what_infer_does_not_read_does_not_make_results_stale(recipe, run):
    assert run(recipe, *INFER)[0] == 0
    both = (*INFER, "--training_config", "conf/training.yaml", "exp_tag=inference")
    code, said = run(recipe, *both)  # brings a seed along
    assert code == 0, said
    (recipe / "conf" / "inference.yaml").write_text(f"{INFERENCE}trainer: {{devices: 4}}\n")
    assert run(recipe, *INFER)[0] == 0
    (recipe / "conf" / "inference.yaml").write_text(
        INFERENCE.replace("beam_size: 5", "beam_size: 6")
    )
    code, said = run(recipe, *INFER)
    assert code == 1
    assert "beam_size: 5 -> 6" in said


def test_a_manifest_that_has_such_keys_is_no_other_run(recipe, run):
    import json

    assert run(recipe, *INFER)[0] == 0
    file = recipe / "exp" / "inference" / "digits" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["fingerprint"] |= {"config.seed": 3, "config.trainer.devices": 8}
    file.write_text(json.dumps(manifest))
    code, said = run(recipe, *INFER)
    assert code == 0, said


def test_the_way_on_has_no_override_that_would_be_refused(recipe, run):
    (recipe / "metric_that_fails.py").write_text(
        "from espnet3.systems.asr.metrics.wer import WER\n"
        "class Fails(WER):\n"
        "    def __call__(self, *args, **kwargs):\n"
        "        raise ValueError('no score today')\n"
    )
    metrics = "metrics: [{metric: {_target_: metric_that_fails.Fails}}]\n"
    (recipe / "conf" / "inference.yaml").write_text(INFERENCE + metrics)
    line = ("--stages", "infer", "measure", *INFER[2:], "parallel.n_workers=1", "exp_tag=mine")
    code, said = run(recipe, *line)
    sys.modules.pop("metric_that_fails")
    assert code == 1
    assert "no score today" in said
    way_on = said.partition("To continue: ")[2]
    assert "exp_tag=mine" in way_on
    assert "parallel.n_workers" not in way_on


def test_keys_that_code_reads_are_told_by_its_text(here, monkeypatch):
    (here / "reads_of_a_config.py").write_text(
        "class A:\n    def f(self, cfg):\n        x = cfg.one\n        y = self.config['two']\n"
        "        z = select(cfg, 'three.four')\n        return x.lr, self.batch_size, y, z\n"
    )
    monkeypatch.syspath_prepend(str(here))
    found = names_in_code(["reads_of_a_config.A"])
    assert {"one", "two", "three"} <= found
    assert not {"lr", "batch_size", "four"} & found
