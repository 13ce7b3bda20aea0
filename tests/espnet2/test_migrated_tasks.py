"""Recipes of ESPnet2's other tasks: migrated, dry-run, trained, inferred and measured."""

import json

import pytest
import yaml

from espnet3.cli.main import main
from espnet3.systems.asr.system import ASRSystem
from tests.helpers.espnet2_tasks import write_task_recipe
from tests.helpers.recipe_copy import run_recipe_here

CONFIGS = ["--training_config", "conf/training.yaml", "--inference_config", "conf/inference.yaml"]
SCORES = ["--metrics_config", "conf/metrics.yaml"]
CODES = {"spk": 3, "s2t": 3, "lid": 3}
"""Others than 0: speaker encoders are validated in another way here; some are only trained."""
TRAINED = ("s2t", "lid")
FIELDS = {"tts": "wav", "enh": "enhanced", "spk": "embedding"}
METRICS = {"st": "bleu", "mt": "bleu", "slu": "WER", "asr2": "WER", "enh": "si_snr", "spk": "eer"}


@pytest.mark.parametrize("task", ["st", "mt", "slu", "tts", "enh", "spk", "asr2"])
def test_a_recipe_of_the_task_trains_infers_and_is_scored(task, tmp_path, capsys):
    old = write_task_recipe(tmp_path / "it's egs2" / "x" / f"{task}1", task)
    new = tmp_path / "new"
    assert main(["migrate", str(old), str(new)]) == CODES.get(task, 0), capsys.readouterr().out
    assert "To do first" not in (new / "MIGRATION.md").read_text()
    stages = ["collect_stats"] if task == "tts" else []
    scores = SCORES if task in METRICS else []
    stages += ["train-measure" if scores else "train-infer"]
    capsys.readouterr()
    run_recipe_here(ASRSystem, new, "--stages", *stages, *CONFIGS, *scores, "--dry-run")
    told = capsys.readouterr().out
    assert "model: ESPnet2Model" in told, told
    here = ["parallel.n_workers=1"]
    run_recipe_here(ASRSystem, new, "--stages", *stages, *CONFIGS, *scores, *here)
    results = new / "exp" / "training" / "inference"
    field = FIELDS.get(task, "hyp")
    assert len((results / "test" / f"{field}.scp").read_text().splitlines()) == 4
    if task in METRICS:
        assert f'"{METRICS[task]}"' in json.dumps(
            json.loads((results / "metrics.json").read_text())
        )


@pytest.mark.parametrize("task", TRAINED)
def test_a_recipe_of_a_task_that_infer_does_not_take_trains(task, tmp_path, capsys):
    old = write_task_recipe(tmp_path / "it's egs2" / "x" / f"{task}1", task)
    new = tmp_path / "new"
    assert main(["migrate", str(old), str(new)]) == CODES[task]
    assert "infer takes no models of ESPnet2's task" in capsys.readouterr().out
    text = (new / "MIGRATION.md").read_text()
    assert "To do first" not in text, text
    assert not (new / "conf/inference.yaml").exists()
    config = ["--training_config", "conf/training.yaml"]
    run_recipe_here(ASRSystem, new, "--stages", "train", *config, "--dry-run")
    assert "model: ESPnet2Model" in capsys.readouterr().out
    run_recipe_here(ASRSystem, new, "--stages", "train", *config)
    assert list((new / "exp" / "training").glob("valid.loss.*.safetensors"))


@pytest.mark.parametrize("task", ["st", "tts", "enh", "spk", "asr2", "s2t", "lid"])
def test_a_recipe_without_data_says_what_is_missing(task, tmp_path, capsys):
    old = write_task_recipe(tmp_path / "x" / f"{task}1", task, has_data=False)
    new = tmp_path / "new"
    main(["migrate", str(old), str(new)])
    text = (new / "MIGRATION.md").read_text()
    assert f"--stage 1 --stop_stage {6 if task == 'asr2' else 4}" in text
    configs = yaml.safe_load((new / "conf/training.yaml").read_text())
    assert configs["model"]["task"] == {"asr2": "mt"}.get(task, task)
