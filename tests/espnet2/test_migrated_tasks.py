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
CODES = {"spk": 3}
"""Others than 0: speaker encoders are validated in another way here."""
FIELDS = {"tts": "wav", "enh": "enhanced", "spk": "embedding"}
METRICS = {"st": "bleu", "mt": "bleu", "slu": "WER", "enh": "si_snr", "spk": "eer"}


@pytest.mark.parametrize("task", ["st", "mt", "slu", "tts", "enh", "spk"])
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


@pytest.mark.parametrize("task", ["st", "tts", "enh", "spk"])
def test_a_recipe_without_data_says_what_is_missing(task, tmp_path, capsys):
    old = write_task_recipe(tmp_path / "x" / f"{task}1", task, has_data=False)
    new = tmp_path / "new"
    main(["migrate", str(old), str(new)])
    text = (new / "MIGRATION.md").read_text()
    assert "--stage 1 --stop_stage 4" in text
    configs = yaml.safe_load((new / "conf/training.yaml").read_text())
    assert configs["model"]["task"] == task
