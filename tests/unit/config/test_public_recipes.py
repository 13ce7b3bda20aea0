"""Training configs of the public ESPnet3: what becomes of their keys, and what is refused."""

import copy

import pytest
from omegaconf import OmegaConf

from espnet3.components.data.loader_config import DataLoaderConfig
from espnet3.config.load import load_config
from espnet3.config.public_recipes import MODEL, TASKS
from espnet3.errors import ConfigError

ITERATOR = "espnet2.iterators.sequence_iter_factory.SequenceIterFactory"
PUBLIC = f"""\
task: espnet3.systems.asr.task.ASRTask
stats_dir: exp/stats
dataloader:
  collate_fn: {{_target_: espnet2.train.collate_fn.CommonCollateFn, int_pad_value: -1}}
  train:
    multiple_iterator: false
    num_shards: 1
    iter_factory:
      _target_: {ITERATOR}
      shuffle: true
      collate_fn: ${{dataloader.collate_fn}}
      num_workers: 2
      batches:
        type: numel
        shape_files: ["${{stats_dir}}/train/feats_shape"]
        batch_size: 4
        batch_bins: 4000000
  valid:
    iter_factory:
      _target_: {ITERATOR}
      collate_fn: ${{dataloader.collate_fn}}
      batches:
        type: ${{dataloader.train.iter_factory.batches.type}}
        shape_files: ["${{stats_dir}}/valid/feats_shape"]
        batch_bins: ${{dataloader.train.iter_factory.batches.batch_bins}}
model:
  vocab_size: 30
  encoder: conformer
  encoder_conf: {{output_size: 16}}
trainer: {{max_epochs: 2, init: xavier_uniform}}
"""


@pytest.fixture
def public(tmp_path):
    """Return a function that loads the config above, with overrides."""
    path = tmp_path / "training.yaml"
    path.write_text(PUBLIC)
    return lambda *overrides: load_config(path, overrides)


def refused(public, *overrides):
    with pytest.raises(ConfigError) as raised:
        public(*overrides)
    return str(raised.value)


def test_a_task_with_espnet2s_words_is_a_model_of_espnet2(public, caplog):
    with caplog.at_level("INFO", "espnet3"):
        loaded = public()
    assert loaded.plain()["model"] == {
        "_target_": MODEL, "task": "asr", "encoder": "conformer",
        "encoder_conf": {"output_size": 16},
    }  # fmt: skip
    assert not loaded.has("task")
    assert loaded.source_of("model.task").endswith("training.yaml:1")
    assert f"model is read as {{_target_: {MODEL}, task: asr" in caplog.text
    assert "model.vocab_size" in caplog.text


def test_its_batches_are_ours(public):
    loaders = public().plain()["dataloader"]
    assert loaders == {
        "collate_fn": {"_target_": "espnet3.components.data.collate.PadCollate", "int_pad": -1},
        "train": {
            "batch_is_global": True, "shuffle": True, "num_workers": 2, "batch_bins": 4000000,
            "shape_file": "exp/stats/train/feats_shape",
        },
        "valid": {
            "batch_is_global": True, "batch_bins": 4000000,
            "shape_file": "exp/stats/valid/feats_shape",
        },
    }  # fmt: skip
    DataLoaderConfig.from_config(loaders)
    assert public().source_of("dataloader.train.batch_bins").endswith("training.yaml:17")


@pytest.mark.parametrize(("kind", "more"), [("unsorted", {}), ("sorted", {"max_padding": 0.08})])
def test_batches_by_count(public, kind, more):
    train = public(f"dataloader.train.iter_factory.batches.type={kind}",
                   "dataloader.valid.iter_factory=null",
                   "dataloader.valid.batch_size=1").plain()["dataloader"]["train"]  # fmt: skip
    assert train == {
        "batch_is_global": True, "shuffle": True, "num_workers": 2, "batch_size": 4, **more,
    }  # fmt: skip


def test_an_initialisation_of_the_trainer_stands_at_the_top(public):
    values = public().plain()
    assert values["init"] == "xavier_uniform"
    assert values["trainer"] == {"max_epochs": 2}


def test_overrides_of_old_keys_are_those_of_what_they_became(public):
    loaded = public("dataloader.train.iter_factory.batches.batch_bins=7", "model.encoder_conf.x=1")
    assert loaded.config.dataloader.train.batch_bins == 7
    assert loaded.source_of("dataloader.train.batch_bins").startswith("command line")
    assert loaded.config.model.encoder_conf.x == 1


@pytest.mark.parametrize(
    ("word", "is_global"), [("global", True), ("per_gpu", False), (None, True)]
)
def test_how_batches_are_dealt(public, word, is_global):
    given = [] if word is None else [f"dataloader.train.batch_distribution={word}"]
    assert public(*given).config.dataloader.train.batch_is_global is is_global


def test_what_is_loaded_once_is_loaded_again_alike(public):
    once = public()
    assert load_config(once).plain() == once.plain()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task=src.task.MyTask", "task is 'src.task.MyTask' (set in command line: task=src.task."),
        ("task=ASRTsk", "Did you mean 'ASRTask'?"),
        (
            "dataloader.train.iter_factory._target_="
            "espnet2.iterators.chunk_iter_factory.ChunkIterFactory",
            "Write in its place: dataloader: {train: {batch_seconds: 120}}",
        ),
        ("dataloader.train.iter_factory.batches.type=folded",
         "Write in place of iter_factory: dataloader: {train: {batch_seconds: 120}}"),
        ("dataloader.train.iter_factory.batches.type=length", "counts frames"),
        ("dataloader.train.iter_factory.batches.type=catbel", "must be numel, sorted or unsorted"),
        ("dataloader.train.iter_factory.num_iters_per_epoch=50",
         "Write: trainer: {limit_train_batches: 50}"),
        ("dataloader.train.iter_factory.seed=7", "Write at the top: seed: 7"),
        ("dataloader.train.iter_factory.collate_fn=src.mine",
         "Write: dataloader: {collate_fn: {_target_: ...}}"),
        ("dataloader.train.iter_factory.chunk_length=9", "Delete it."),
        ("dataloader.train.iter_factory.batches.min_batch_size=2", "Delete it."),
        ("dataloader.train.iter_factory.batches.batch_bins=null", "type: numel needs batch_bins"),
        ("dataloader.train.iter_factory.batches=null", "dataloader: {train: {batch_size: 16}}"),
        ("dataloader.train.num_shards=4", "dataloader: {train: {buffer_shards: 16}}"),
        ("dataloader.train.batch_distribution=local", "dataloader: {train: {batch_is_global: true"),
        ("dataloader.collate_fn.not_sequence=[a]", "lengths: [speech, text]"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_with_the_line_to_write(public, override, message):
    text = refused(public, override)
    assert message in text
    assert "(set in " in text


def test_a_file_is_named_with_its_line(public, tmp_path):
    path = tmp_path / "training.yaml"
    path.write_text(PUBLIC.replace("type: numel", "type: folded"))
    assert f"batches.type is 'folded' (set in {path}:14)" in refused(public)


def test_every_task_of_espnet2_is_known_by_its_class():
    for name, task in TASKS.items():
        for spelled in (task, name, f"espnet2.tasks.{task}.{name}", f"src.task.{name}"):
            loaded = load_config({"task": spelled, "model": {"encoder": "x"}})
            assert loaded.config.model.task == task
    loaded = load_config({"task": "espnet2.tasks.s2t_ctc.S2TTask", "model": {}})
    assert loaded.config.model.task == "s2t_ctc"


def test_configs_of_ours_stay_as_they_are():
    ours = {
        "task": "asr",
        "model": {"_target_": "src.model.Model"},
        "dataloader": {"collate_fn": "src.collate", "train": {"batch_size": 2, "sampler": None}},
        "trainer": {"max_epochs": 1},
    }
    assert load_config(copy.deepcopy(ours)).plain() == ours
    assert OmegaConf.to_container(load_config({"model": {"encoder": "x"}}).config) == {
        "model": {"encoder": "x"}
    }


def test_a_task_without_a_model_is_told_what_to_write_beside_it():
    from espnet3.systems.base.training import build_model

    with pytest.raises(ConfigError, match=r"no model beside it.*model: \{encoder: conformer"):
        build_model({"task": "asr"})
