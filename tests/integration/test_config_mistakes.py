"""Mistakes in configs: each gets one line with file, key and what to write, and nothing starts."""
# ruff: noqa: E501

import os
import re
import sys

import pytest

from espnet3.cli.recipe import run_recipe
from espnet3.systems.base.system import BaseSystem

PARTS = "tests.helpers.inference_parts"
INFERENCE = f"""\
parallel:
  env: local
  n_workers: 1
input_key: speech
dataset:
  _target_: espnet3.components.data.data_organizer.DataOrganizer
  test:
    - name: digits
      data_src: {PARTS}
      data_src_args:
        n: 4
model:
  _target_: {PARTS}.Speller
  beam_size: 5
output_artifacts:
  hyp:
    type: text
runner:
  _target_: espnet3.systems.base.inference_runner.InferenceRunner
  resume: true
"""
METRICS = """\
metrics:
  - metric:
      _target_: espnet3.systems.asr.metrics.wer.WER
"""
TRAINER = "\ntrainer:\n  accelerator: gpu\n  devices: 4\n"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Return a recipe folder; running it leaves neither folder nor import path behind."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "a recipe"
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "metrics.yaml").write_text(METRICS)
    return folder


def run(recipe, capfd, text, *args):
    (recipe / "conf" / "inference.yaml").write_text(text)
    code = run_recipe(BaseSystem, args, recipe_dir=recipe)
    os.chdir(recipe.parent)
    return code, capfd.readouterr().err


def swap(old, new):
    assert old in INFERENCE + TRAINER
    return (INFERENCE + TRAINER).replace(old, new)


INFER = ("--stage", "infer", "--config", "conf/inference.yaml")
BOTH = ("--stages", "infer", "measure", "--inference_config", "conf/inference.yaml")
HERE = r"conf/inference\.yaml:\d+"

# The mistake, how the recipe is called, and what the one line must hold.
MISTAKES = {
    "misspelt at depth 1": (swap("input_key:", "input_kye:"), INFER, rf"input_kye.*{HERE}.*input_key"),
    "misspelt at depth 2": (swap("n_workers:", "n_wokers:"), INFER, rf"n_wokers.*{HERE}.*n_workers"),
    "misspelt at depth 3": (swap("type: text", "tpye: text"), INFER, rf"hyp\.tpye.*{HERE}.*Write: type: text"),
    "misspelt at depth 4": (swap("data_src_args:", "data_src_arg:"), INFER, rf"dataset\.test\.0\.data_src_arg.*{HERE}.*data_src_args"),
    "misspelt argument of a dataset": (swap("n: 4", "m: 4"), INFER, rf"data_src_args.*'m'.*{HERE}.*It takes: n"),
    "misspelt argument of the model": (swap("beam_size: 5", "beam_szie: 5"), INFER, rf"model\.beam_szie.*{HERE}.*'beam_size'"),
    "misspelt setting of the runner": (swap("resume: true", "resum: true"), INFER, rf"runner\.resum.*{HERE}.*'resume'"),
    "text where a number is due": (swap("n_workers: 1", "n_workers: many"), INFER, rf"parallel\.n_workers is 'many'.*{HERE}.*Write: n_workers: 1"),
    "a number where text is due": (swap("input_key: speech", "input_key: 3"), INFER, rf"input_key is 3.*{HERE}"),
    "a mapping where a list is due": (swap("    type: text", "    [text]"), INFER, rf"output_artifacts\.hyp.*{HERE}"),
    "a backend that is none": (swap("env: local", "env: slrum"), INFER, rf"parallel\.env is 'slrum'.*{HERE}.*'slurm'"),
    "a missing config file": (swap("", ""), (*INFER, "conf/parallel_slrm.yaml"), r"conf/parallel_slrm\.yaml does not exist"),
    "a folder of data that is not there": (swap(f"data_src: {PARTS}\n      data_src_args:\n        n: 4", "data_src: kaldi\n      data_src_args:\n        path: data/dev"), INFER, rf"dataset\.test\.0\.data_src_args.*{HERE}.*data/dev"),
    "an unknown stage": (swap("", ""), ("--stage", "infre", "--config", "conf/inference.yaml"), r"infre.*Did you mean 'infer'\?"),
    "a stage without config": (swap("", ""), BOTH, r"measure \(7\) reads a metrics config.*--metrics_config conf/metrics\.yaml"),
    "an interpolation to nowhere": (swap("n: 4", "n: ${n_utterances}"), INFER, rf"data_src_args\.n.*{HERE}.*n_utterances"),
    "a misspelt interpolation": (swap("n: 4", "n: ${parallel.n_worker}"), INFER, rf"data_src_args\.n.*{HERE}.*parallel\.n_workers"),
    "a target that does not import": (swap("inference_parts.Speller", "inference_parts.Speler"), INFER, rf"model\._target_ is .*Speler.*{HERE}.*Write: _target_: .*Speller"),
    "a target in a module that is not there": (swap(f"{PARTS}.Speller", "src.model.Speller"), INFER, rf"model\._target_ is 'src\.model\.Speller'.*{HERE}.*no"),
    "an unknown data source": (swap(f"data_src: {PARTS}", "data_src: kaldy"), INFER, rf"dataset\.test\.0\.data_src.*{HERE}.*'kaldi'"),
    "two test sets of one name": (swap("    - name: digits", f"    - {{name: digits, data_src: {PARTS}}}\n    - name: digits"), INFER, rf"dataset\.test\.1\.name.*{HERE}.*Write|name: digits_2"),
    "no test sets": (INFERENCE[: INFERENCE.index("  test:")] + INFERENCE[INFERENCE.index("model:") :], INFER, rf"dataset\.test.*{HERE}.*lists no test set.*Write"),
    "params without names": (swap("runner:", "provider: {params: abc}\nrunner:"), INFER, rf"provider.*{HERE}.*Write: params: \{{beam_size: 8\}}"),
    "an output_fn that is not there": (swap("input_key: speech", f"input_key: speech\noutput_fn: {PARTS}.output_fm"), INFER, rf"output_fn is .*{HERE}.*Write: output_fn: .*output_fn"),
    "an input that no sample has": (swap("input_key: speech", "input_key: speach"), INFER, rf"input_key is 'speach'.*{HERE}.*Did you mean 'speech'\?"),
    "a test set without name": (swap("name: digits\n      ", ""), INFER, rf"dataset\.test\.0.*{HERE}.*name"),
    "an empty dataset": (swap("n: 4", "n: 0"), INFER, rf"dataset\.test\.0.*{HERE}.*has no items"),
    "an empty dataset behind another one": (swap("    - name: digits", f"    - {{name: first, data_src: {PARTS}}}\n    - name: digits").replace("n: 4", "n: 0"), INFER, r"dataset\.test\.1\.data_src_args \(set in conf/inference\.yaml:\d+\).*has no items"),
    "n_workers in trainer": (swap("  devices: 4", "  n_workers: 4"), INFER, rf"trainer\.n_workers.*{HERE}.*belongs under parallel.*parallel: \{{n_workers: 4\}}"),
    "devices in parallel": (swap("  n_workers: 1", "  devices: 2"), INFER, rf"parallel\.devices.*{HERE}.*is called n_workers.*parallel: \{{n_workers: 2, env: local_gpu\}}"),
    "n_workers at the top": (swap("input_key: speech", "input_key: speech\nn_workers: 4"), INFER, rf"n_workers.*{HERE}.*belongs under parallel"),
    "resume at the top": (swap("input_key: speech", "input_key: speech\nresume: false"), INFER, rf"resume.*{HERE}.*belongs under runner"),
    "an override without a value": (swap("", ""), (*INFER, "batch_size"), r"batch_size"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_with_the_way_out(recipe, capfd, name):
    text, args, expected = MISTAKES[name]
    code, message = run(recipe, capfd, text, *args)
    assert code in (1, 2)
    lines = [line for line in message.splitlines() if not line.startswith("To continue: ")]
    assert len(lines) == 1, message
    assert re.search(expected, lines[0]), lines[0]
    assert not list(recipe.glob("exp/**/split.*"))


def test_the_same_recipe_without_a_mistake_runs(recipe, capfd):
    code, message = run(recipe, capfd, INFERENCE + TRAINER, *INFER)
    assert code == 0, message
