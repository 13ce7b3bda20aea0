"""`espnet3 migrate` of a recipe of the public ESPnet3, whose configs hide a TEMPLATE's defaults."""

import sys
from pathlib import Path

import pytest
import yaml

from espnet3.cli.main import main
from espnet3.systems.asr.system import ASRSystem
from tests.helpers.recipe_copy import run_recipe_here

RUN = """#!/usr/bin/env python3
from egs3.TEMPLATE.asr.run import DEFAULT_STAGES, build_parser, main, parse_args
from espnet3.systems.asr.system import ASRSystem

if __name__ == "__main__":
    parser = build_parser(stages=DEFAULT_STAGES)
    args, _ = parse_args(parser)
    main(args=args, system_cls=ASRSystem, stages=DEFAULT_STAGES)
"""
TRAINING = """
num_device: 2
task: espnet2.tasks.asr.ASRTask
stage_log_mode: quiet
frobnicate: 3
create_dataset: {n_items: 4}
tokenizer: {vocab_size: 20, model_type: bpe, save_path: "${data_dir}/tokenizer"}
dataset:
  train: [{data_src_args: {split: train}}]
  valid: [{data_src_args: {split: valid}}]
  preprocessor:
    _target_: espnet2.train.preprocessor.CommonPreprocessor
    train: true
    token_type: bpe
    token_list: ${data_dir}/tokenizer/tokens.txt
    bpemodel: ${data_dir}/tokenizer/bpe.model
    data_aug_effects: [[0.1, speed_perturb, {factor: 0.9}], [0.1, speed_perturb, {factor: 1.1}]]
dataloader:
  collate_fn: {_target_: espnet2.train.collate_fn.CommonCollateFn, int_pad_value: -1}
  train:
    iter_factory:
      _target_: espnet2.iterators.sequence_iter_factory.SequenceIterFactory
      shuffle: true
      batches:
        type: numel
        shape_files: ["${stats_dir}/train/feats_shape"]
        batch_bins: 4000
model: {encoder: e_branchformer, encoder_conf: {output_size: 16}, normalize: global_mvn}
init: xavier_uniform
trainer: {max_epochs: 5, devices: "${num_device}"}
"""
INFERENCE = """
dataset: {test: [{name: test, data_src_args: {split: test}}]}
model:
  asr_train_config: ${exp_dir}/config.yaml
  asr_model_file: ${exp_dir}/valid.loss.ave_3best.pth
  beam_size: 5
  normalize_length: true
input_key: speech
output_fn: src.inference.build_output
"""
METRICS = """
metrics:
  - metric: {_target_: espnet3.systems.asr.metrics.wer.WER}
"""
DATASET = '''"""A corpus."""
from espnet3.components.data.dataset_builder import DatasetBuilder as _Base
from espnet3.nothing.like_this import x


class Dataset:
    def __init__(self, split): self.items = [split]
    def __len__(self): return 1
    def __getitem__(self, index): return {"utt_id": "a", "text": "one"}
'''


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "egs3" / "an4" / "asr"
    files = {
        "run.py": RUN, "conf/training.yaml": TRAINING, "conf/inference.yaml": INFERENCE,
        "conf/metrics.yaml": METRICS, "conf/demo.yaml": "ui: {title: x}\n",
        "conf/publication.yaml": "pack_model: {strategy: x}\n", "dataset/__init__.py": DATASET,
        "src/__init__.py": "",
        "src/inference.py": "def build_output(*, data, model_output, idx):\n"
        "    return {'utt_id': data['utt_id'], 'hyp': model_output[0][0], 'ref': data['text']}\n",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def migrated(old: Path, *words: str, code: int = 3) -> tuple[Path, dict[str, dict]]:
    new = old.parents[2] / "new"
    assert main(["migrate", str(old), str(new), *words]) == code
    return new, {p.stem: yaml.safe_load(p.read_text()) for p in (new / "conf").glob("*.yaml")}


def test_what_the_template_hides_is_written_out_and_what_differs_is_translated(old, capsys):
    before = {p: p.read_bytes() for p in old.rglob("*") if p.is_file()}
    new, configs = migrated(old)
    assert {p: p.read_bytes() for p in old.rglob("*") if p.is_file()} == before
    training = configs["training"]
    assert training["optimizer"] == {"_target_": "torch.optim.Adam", "lr": 0.002}
    assert training["scheduler"]["warmup_steps"] == 15000
    assert training["best_model_criterion"] == [["valid/loss", 3, "min"]]
    assert training["trainer"] == {
        "max_epochs": 5, "gradient_clip_val": 1.0, "devices": "${num_device}",
    }  # fmt: skip
    model = training["model"]
    assert (model["task"], model["init"], model["encoder"]) == (
        "asr", "xavier_uniform", "e_branchformer",
    )  # fmt: skip
    assert model["token_list"] == "${data_dir}/tokenizer/tokens.txt"
    assert training["dataloader"]["train"] == {
        "shape_file": ["${stats_dir}/train/feats_shape"], "batch_bins": 4000, "shuffle": True,
        "batch_is_global": True,
    }  # fmt: skip
    assert training["dataset"]["train"][0]["transform"]["factors"] == [0.9, 1.1]
    told = capsys.readouterr().out
    assert "conf/training.yaml:5 frobnicate" in told
    assert "dataset/__init__.py:3 imports espnet3.nothing.like_this" in told
    text = (new / "MIGRATION.md").read_text()
    for word in ("stage_log_mode", "pack_model", "hidden in the TEMPLATE"):
        assert word in text


def test_the_configs_are_accepted_here(old):
    text = (old / "conf" / "training.yaml").read_text().replace("frobnicate: 3\n", "")
    (old / "conf" / "training.yaml").write_text(text)
    (old / "dataset" / "__init__.py").write_text(
        DATASET.replace("from espnet3.nothing.like_this import x\n", "").replace(
            "from espnet3.components.data.dataset_builder import DatasetBuilder as _Base\n", ""
        )
    )
    new, configs = migrated(old, code=0)
    assert configs["inference"]["model"]["options"] == {"normalize_length": True}
    assert configs["inference"]["output_fn"] == "src.migrated_output.build_output"
    run_recipe_here(
        ASRSystem, new, "--stages", "train_tokenizer-report", "--training_config",
        "conf/training.yaml", "--inference_config", "conf/inference.yaml", "--metrics_config",
        "conf/metrics.yaml", "--dry-run",
    )  # fmt: skip


def test_its_output_fn_gets_the_tuples_of_espnet2(old, monkeypatch):
    from espnet3.systems.asr.inference import Candidate, Recognition

    new, _ = migrated(old)
    monkeypatch.syspath_prepend(str(new))
    try:
        from src.migrated_output import build_output
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "src"]:
            del sys.modules[name]
    found = Recognition.of([Candidate("one two", ("one", "two"), -1.0)])
    made = build_output(data={"utt_id": "a", "text": "one"}, model_output=found, idx=0)
    assert made == {"utt_id": "a", "hyp": "one two", "ref": "one"}


def test_a_template_beside_the_recipe_counts(old):
    template = old.parents[1] / "TEMPLATE" / "asr" / "conf"
    template.mkdir(parents=True)
    (template / "training.yaml").write_text("trainer: {max_epochs: 70, gradient_clip_val: 2.0}\n")
    _, configs = migrated(old)
    assert configs["training"]["trainer"]["gradient_clip_val"] == 2.0
    assert "optimizer" not in configs["training"]


def test_half_a_recipe_is_refused_and_nothing_written(old, capsys):
    (old / "conf" / "training.yaml").unlink()
    assert main(["migrate", str(old), str(old.parents[2] / "new")]) == 1
    assert "half a recipe" in capsys.readouterr().err
    assert not (old.parents[2] / "new").exists()
