"""A training config of the public ESPnet3 in the stages `collect_stats` and `train`, unchanged."""

import yaml
from safetensors.torch import load_file

from espnet3.cli.recipe import run_recipe
from espnet3.config.load import load_config
from espnet3.config.public_recipes import TASKS
from espnet3.systems.asr.system import ASRSystem
from tests.helpers.espnet2_models import TOKENS, asr_keys, write_data

ITERATOR = "espnet2.iterators.sequence_iter_factory.SequenceIterFactory"
SPLIT = """
    iter_factory:
      _target_: {iterator}
      shuffle: {shuffle}
      collate_fn: ${{dataloader.collate_fn}}
      batches: {{type: numel, shape_files: ["${{stats_dir}}/{split}/feats_shape"], batch_size: 4, batch_bins: 30000}}
"""  # noqa: E501
TRAINING = f"""
num_device: 1
num_nodes: 1
task: espnet3.systems.asr.task.ASRTask
exp_tag: training
stats_dir: exp/stats
dataset:
  _target_: espnet3.components.data.data_organizer.DataOrganizer
  train: [{{data_src: kaldi, data_src_args: {{path: data/noise}}}}]
  valid: [{{data_src: kaldi, data_src_args: {{path: data/noise}}}}]
  preprocessor:
    _target_: espnet2.train.preprocessor.CommonPreprocessor
    train: true
    token_type: char
    token_list: data/tokens.txt
dataloader:
  collate_fn: {{_target_: espnet2.train.collate_fn.CommonCollateFn, int_pad_value: -1}}
  train:{SPLIT.format(iterator=ITERATOR, split="train", shuffle="true")}
  valid:{SPLIT.format(iterator=ITERATOR, split="valid", shuffle="false")}
optimizer: {{_target_: torch.optim.Adam, lr: 0.002}}
scheduler: {{_target_: espnet2.schedulers.warmup_lr.WarmupLR, warmup_steps: 15000}}
scheduler_interval: step
best_model_criterion: [[valid/loss, 3, min]]
trainer:
  {{accelerator: cpu, devices: 1, num_nodes: 1, max_epochs: 1, gradient_clip_val: 1.0,
   logger: false, init: xavier_uniform}}
"""


def test_it_trains_as_it_is(tmp_path, monkeypatch, caplog):
    folder = tmp_path / "recipe"
    write_data(folder / "data/noise", text="abc dab")
    (folder / "data/tokens.txt").write_text("\n".join(TOKENS) + "\n")
    (folder / "conf").mkdir()
    model = {
        "vocab_size": len(TOKENS),
        "token_list": "${load_line:../data/tokens.txt}",
        **asr_keys(),
        "normalize": "global_mvn",
        "normalize_conf": {"stats_file": "${stats_dir}/train/feats_stats.npz"},
    }
    text = TRAINING + yaml.safe_dump({"model": model})
    (folder / "conf/training.yaml").write_text(text)
    monkeypatch.chdir(folder)
    stages = ["--stages", "collect_stats", "train", "--training_config", "conf/training.yaml"]
    # Typed keys of theirs count as well.
    with caplog.at_level("INFO", "espnet3"):
        assert run_recipe(ASRSystem, [*stages, "task=asr"], recipe_dir=folder) == 0
    (weights,) = (folder / "exp/training").glob("*.safetensors")
    assert "network.encoder.embed.conv.0.weight" in load_file(weights)
    assert "Weights by xavier_uniform" in caplog.text
    saved = load_config(folder / "exp/training/config.yaml").plain()
    assert saved["dataloader"]["train"]["batch_bins"] == 30000


def test_the_classes_of_tasks_are_those_of_espnet2():
    from importlib import import_module

    for name in ("ASRTask", "LMTask"):
        assert hasattr(import_module(f"espnet2.tasks.{TASKS[name]}"), name)
