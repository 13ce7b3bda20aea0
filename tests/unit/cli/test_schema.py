"""`espnet3 schema`: what editors accept, and what they underline."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
import yaml

from espnet3.cli.main import main
from espnet3.cli.schema import KINDS, make_schema, modeline

ROOT = Path(__file__).parents[3]
FILES = sorted(ROOT.glob("egs3/*/*/conf/*.yaml"))
OF_A_STAGE_OF_ITS_OWN = ["egs3/TEMPLATE/runner/conf/loudness.yaml"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def problems(kind: str, text: str) -> list[str]:
    checker = jsonschema.Draft202012Validator(make_schema(kind))
    return [error.message for error in checker.iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_schema(kind):
    jsonschema.Draft202012Validator.check_schema(make_schema(kind))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_config_of_a_recipe_names_its_schema_which_accepts_it(path):
    text = path.read_text()
    if name_of(path) in OF_A_STAGE_OF_ITS_OWN:
        assert "yaml-language-server" not in text
        return
    kind = next(kind for kind in KINDS if text.startswith(modeline(kind) + "\n"))
    assert problems(kind, text) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("training", "trainer: {max_epoch: 3}"),
        ("training", "trainr: {max_epochs: 3}"),
        ("training", "dataloader: {train: {batch_second: 3}}"),
        ("training", "optimizers: {main: {optimizer: {_target_: a.B}, paramz: [x]}}"),
        ("training", "best_model_criterion: [valid/loss, 3, min]"),
        ("training", "best_model_criterion: [[valid/loss, 3, least]]"),
        ("training", "dataset: {train: [{data_sorc: kaldi}]}"),
        ("inference", "parallel: {n_worker: 3}"),
        ("inference", "output_kes: [hyp]"),
        ("inference", "batch_size: '4'"),
        ("inference", "results: csv"),
        ("metrics", "metrics: [{metrc: {_target_: a.B}}]"),
        ("metrics", "metrics: [{name: wer}]"),
        ("publication", "upload: {repo: me/model}"),
        ("parallel", "parallel: {env: local, n_workers: 0}"),
        ("parallel", "n_workers: 4"),
        ("launch", "launch: {scheduler: slurm, cpu_per_task: 4}"),
        ("launch", "launch: {scheduler: slurm, time: 3600}"),
    ],
)
def test_a_misspelt_key_or_a_wrong_value_is_refused(kind, text):
    assert problems(kind, text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("training", "trainer: {devices: '${num_device}', max_epochs: 3}\nvars: {width: 3}"),
        ("training", "seed: ${vars.seed}\noptimizer: ${vars.optimizer}"),
        ("training", "init: exp/other/last.ckpt\nfreeze: encoder.*"),
        ("training", "init: [{path: a.ckpt, from: encoder}]\ntokenizer: {model_type: char}"),
        ("training", "best_model_criterion: [[valid/loss, 3, min]]\ncheckpoint: null"),
        ("inference", "output_keys: hyp\noutput_artifacts: {feats: npy, wav: {type: wav}}"),
        ("inference", "test_set: ???\nparallel: {n_workers: '${n_cores:8}'}"),
        ("metrics", "metrics: [{metric: {_target_: a.B}, inputs: {ref: data/text}}]"),
        ("parallel", "parallel: {env: slurm, options: {queue: gpu}}\ndevice: null"),
        ("launch", "launch: {scheduler: slurm, setup: [module load cuda]}\ntrainer: {devices: 2}"),
    ],
)
def test_what_a_config_may_say_is_accepted(kind, text):
    assert problems(kind, text) == []


def test_the_schemas_are_written_beside_the_configs(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "egs3/TEMPLATE/asr/conf", tmp_path / "it's/conf")
    monkeypatch.chdir(tmp_path / "it's")
    assert main(["schema"]) == 0
    assert modeline("training") in capsys.readouterr().out
    for path in Path("conf").glob("*.yaml"):
        named = path.read_text().partition("\n")[0].partition("$schema=")[2]
        jsonschema.validate(
            yaml.safe_load(path.read_text()), json.loads((path.parent / named).read_text())
        )


def test_one_schema_is_printed(capsys):
    assert main(["schema", "--print", "launch"]) == 0
    assert json.loads(capsys.readouterr().out) == make_schema("launch")


def test_an_unknown_kind_is_answered_with_those_that_there_are(capsys):
    assert main(["schema", "--print", "trainings"]) == 2
    assert "Did you mean 'training'?" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_answered_with_a_line(tmp_path, capsys):
    assert main(["schema", str(tmp_path / "no")]) == 2
    assert "Write: espnet3 schema conf" in capsys.readouterr().err
