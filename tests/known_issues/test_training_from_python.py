"""There was no door to training but `run.py`: in a notebook all of this ended in a bare error."""

import json
import logging
import os
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

import espnet3.trainer
from espnet3.config.load import load_config
from espnet3.errors import ConfigError, ResourceError, StaleRunError
from espnet3.systems.base.given_parts import GivenSplit
from espnet3.systems.base.system import BaseSystem
from espnet3.systems.base.training import train as stage

POINTS = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
LABELS = (POINTS.sum(1) > 0).long()
SAMPLES = [{"point": p, "label": int(y)} for p, y in zip(POINTS, LABELS, strict=True)]
PAIRS = TensorDataset(POINTS, LABELS)
CONFIG = {
    "seed": 3,
    "num_threads": 1,
    "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1},
    "dataloader": {"train": {"batch_size": 4}},
    "trainer": {
        "accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False,
        "enable_progress_bar": False, "num_sanity_val_steps": 0,
    },
}  # fmt: skip
WITHOUT_SIZES = {key: value for key, value in CONFIG.items() if key != "dataloader"}


class Classifier(nn.Module):
    def __init__(self, hidden: int = 4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, hidden), nn.BatchNorm1d(hidden), nn.Dropout(0.1))
        self.output = nn.Linear(hidden, 2)
        self.calls = torch.zeros(())

    def forward(self, point, label):
        self.calls += 1
        if self.calls == int(os.environ.get("CRASH_AT", 0)):  # as a process that is killed
            raise RuntimeError("killed")
        logits = self.output(self.encoder(point))
        accuracy = (logits.argmax(-1) == label).float().mean()
        return {"loss": nn.functional.cross_entropy(logits, label), "accuracy": accuracy}


class Stream(IterableDataset):
    """Samples in an order, without positions."""

    def __iter__(self):
        return iter(SAMPLES)


class OnlyNames:
    """As a table that is read by column."""

    def __len__(self):
        return 3

    def __getitem__(self, name):
        return {"point": POINTS}[name]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Train in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    return tmp_path


def train(config=CONFIG, **given):
    return espnet3.trainer.train(config, **{"model": Classifier, "train": SAMPLES, **given})


def weights(result) -> dict[str, torch.Tensor]:
    return torch.load(result.last, weights_only=True)["state_dict"]


def same(one, other) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_dict_a_config_of_omegaconf_and_files_train_the_same(folder):
    (folder / "conf").mkdir()
    (folder / "conf" / "small.yaml").write_text(json.dumps(CONFIG))
    results = [
        train(CONFIG, exp_dir="a"),
        train(OmegaConf.create(CONFIG), exp_dir="b"),
        train("conf/small.yaml"),
        train(["conf/small.yaml", {"exp_dir": "c"}]),
        train(load_config(CONFIG), exp_dir="d"),
    ]
    assert [str(result.exp_dir) for result in results] == ["a", "b", "exp/small", "c", "d"]
    assert all(same(results[0], other) for other in results[1:])


def test_the_folder_without_exp_dir_is_told(caplog, folder):
    caplog.set_level(logging.INFO)
    assert train().exp_dir == Path("exp/training")
    assert f"all is written to {folder / 'exp' / 'training'}" in caplog.text


def test_what_is_left_is_returned():
    config = {**CONFIG, "best_model_criterion": [["valid/accuracy", 1, "max"]]}
    result = train(config, valid=SAMPLES, overrides=["trainer.max_epochs=2"])
    assert result.weights == result.averages["valid/accuracy"]
    assert result.weights.suffix == ".safetensors"
    assert len(result.best["valid/accuracy"]) == 1
    assert [epoch["epoch"] for epoch in result.history] == [1, 2]
    assert {"train/loss", "valid/loss", "valid/accuracy", "step"} <= result.history[-1].keys()
    assert result.was_trained
    model = result.load_into(Classifier())
    assert torch.equal(model.output.weight, weights_of(result.weights)["output.weight"])
    for name in ("training.json", "config.yaml", "history.jsonl", "train.log"):
        assert (result.exp_dir / name).is_file()
    again = train(config, valid=SAMPLES, overrides=["trainer.max_epochs=2"])
    assert not again.was_trained
    assert again.weights == result.weights


def weights_of(path):
    from safetensors.torch import load_file

    return load_file(path)


def build(hidden=4):
    return Classifier(hidden)


@pytest.mark.parametrize(
    "given",
    [
        {"model": Classifier},
        {"model": build},
        {"model": partial(Classifier, hidden=4)},
        {"model": {"_target_": f"{__name__}.Classifier", "hidden": 4}},
        {"model": f"{__name__}.Classifier"},
    ],
    ids=["class", "function", "partial", "block", "name"],
)
def test_models_of_each_kind_begin_with_the_same_weights(given):
    wanted = train({**CONFIG, "model": {"_target_": f"{__name__}.Classifier"}}, model=None)
    assert same(train(exp_dir="other", **given), wanted)


def test_arguments_of_a_class_stand_in_the_model_block():
    assert weights(train({**CONFIG, "model": {"hidden": 6}}))["model.output.weight"].shape[1] == 6
    with pytest.raises(ConfigError, match=r"hiden.*a config given in Python.*'hidden'"):
        train({**CONFIG, "model": {"hiden": 6}}, exp_dir="b")


def test_a_block_beside_an_object_is_told(caplog):
    block = {"model": {"_target_": "src.model.Gone"}, "dataset": {"train": [{"data_src": "gone"}]}}
    loader = DataLoader(PAIRS, batch_size=4)
    train({**CONFIG, **block}, model=Classifier(), train=loader)
    for key in ("model", "dataset.train", "dataloader.train"):
        assert f"{key} (set in a config given in Python) is not used" in caplog.text


@pytest.mark.parametrize(
    "data",
    [
        SAMPLES,
        PAIRS,
        DataLoader(PAIRS, batch_size=4, shuffle=True),
        DataLoader(SAMPLES, batch_size=4, sampler=WeightedRandomSampler([1.0] * 30, 24)),
        DataLoader(Stream(), batch_size=4),
        list(PAIRS),
    ],
    ids=["list", "dataset", "loader", "sampler", "stream", "tuples"],
)
def test_data_of_each_kind(data):
    has_loader = isinstance(data, DataLoader)
    result = train(WITHOUT_SIZES if has_loader else CONFIG, train=data, valid=data)
    assert result.history[-1]["valid/accuracy"] >= 0


def test_entries_of_a_dataset_block_are_taken_as_such(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    (folder / "points_source.py").write_text(
        "class Dataset(list):\n"
        "    def __init__(self, n):\n"
        "        super().__init__({'point': [float(i), 1.0], 'label': i % 2} for i in range(n))\n"
    )
    result = train(train=[{"data_src": "points_source", "data_src_args": {"n": 8}}])
    assert result.history[0]["step"] == 2


@pytest.mark.parametrize(
    "data",
    [
        SAMPLES,
        DataLoader(PAIRS, batch_size=4, shuffle=True),
        DataLoader(PAIRS, batch_size=4, sampler=WeightedRandomSampler([1.0] * 30, 32)),
        DataLoader(Stream(), batch_size=4),
    ],
    ids=["list", "loader", "sampler", "stream"],
)
def test_a_training_that_was_killed_ends_as_if_it_had_not_been(data, monkeypatch, caplog):
    """Each batch is followed by a checkpoint; the 12th, in the second epoch, is not survived."""
    caplog.set_level(logging.INFO)
    config = {**CONFIG, "checkpoint": {"every_minutes": 1e-9}}
    if data is not SAMPLES:
        config["dataloader"] = {"valid": {"batch_size": 4}}
    epochs = ["trainer.max_epochs=2"]
    undisturbed = train(config, train=data, valid=SAMPLES, overrides=epochs, exp_dir="a")
    monkeypatch.setenv("CRASH_AT", str(12 + 8))  # 8 of the validation
    with pytest.raises(RuntimeError, match="killed"):
        train(config, train=data, valid=SAMPLES, overrides=epochs)
    monkeypatch.delenv("CRASH_AT")
    step = torch.load("exp/training/last.ckpt", weights_only=True)["global_step"]
    assert 8 < step < 16
    resumed = train(config, train=data, valid=SAMPLES, overrides=epochs)
    assert same(resumed, undisturbed)
    assert "Resuming from exp/training/last.ckpt" in caplog.text


def test_what_cannot_be_compared_or_is_not_used_is_told(caplog):
    caplog.set_level(logging.INFO)
    generator = torch.Generator().manual_seed(1)
    train(
        WITHOUT_SIZES,
        model=Classifier(),
        train=DataLoader(PAIRS, batch_size=4, shuffle=True, generator=generator),
    )
    assert "not used of the DataLoader: generator" in caplog.text
    assert "not the values that its weights begin with" in caplog.text
    train(WITHOUT_SIZES, train=DataLoader(Stream(), batch_size=4), exp_dir="b")
    assert "train is a DataLoader, which is used as it is" in caplog.text


class Wide(Classifier):
    pass


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model": Classifier(5)}, r"model\.output: .*in_features=4.* -> .*in_features=5"),
        ({"model": Wide()}, r"model\.class: 'Classifier' -> 'Wide'"),
        ({"train": SAMPLES[:20]}, r"dataset\.train\.content: other data \(30 items then, 20 now"),
        ({"train": [*SAMPLES[:-1], SAMPLES[0]]}, r"dataset\.train\.content: other data"),
        ({"train": DataLoader(SAMPLES, batch_size=3)}, r"dataloader\.train\.batch_size: 4 -> 3"),
        ({"overrides": ["optimizer.lr=0.2"]}, r"optimizer\.lr: 0\.1 -> 0\.2"),
        ({"overrides": ["freeze=encoder"]}, r"freeze\.0: \(not set\) -> 'encoder'"),
    ],
    ids=["layers", "class", "fewer", "content", "batches", "setting", "freeze"],
)
def test_another_training_in_the_folder_is_refused(change, key):
    train(model=Classifier())
    with pytest.raises(StaleRunError, match=key) as refused:
        train(**{"model": Classifier(), **change})
    assert 'overrides=["resume=never"]' in str(refused.value)


def sampled(weight):
    weights = [1.0] * 29 + [weight]
    return DataLoader(PAIRS, batch_size=4, sampler=WeightedRandomSampler(weights, 24))


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        (sampled(1.0), sampled(2.0), "sampler"),
        (
            DataLoader(SAMPLES, batch_size=4, collate_fn=lambda rows: torch.stack(rows)),
            DataLoader(SAMPLES, batch_size=4, collate_fn=lambda rows: torch.stack(rows[1:])),
            "collate_fn",
        ),
        (DataLoader(PAIRS, 4, drop_last=True), DataLoader(PAIRS, 4), "drop_last"),
    ],
)
def test_other_batches_have_another_description(before, after, key):
    one, same, other = (GivenSplit("train", data).describe() for data in (before, before, after))
    assert one == same
    assert [k for k in one.keys() | other.keys() if one.get(k) != other.get(k)] == [
        f"dataloader.train.{key}"
    ]


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        (partial(Classifier, 4), partial(Classifier, 5), r"model\.argument_0: 4 -> 5"),
        (partial(Classifier, hidden=4), partial(Classifier, hidden=5), r"model\.hidden: 4 -> 5"),
        (lambda: Classifier(4), lambda: Classifier(5), r"model\.function"),
        (Classifier, Wide, r"model\.class: 'Classifier' -> 'Wide'"),
    ],
    ids=["argument", "keyword", "lambda", "class"],
)
def test_another_factory_is_another_training(before, after, key):
    train(model=before)
    assert not train(model=before).was_trained
    with pytest.raises(StaleRunError, match=key):
        train(model=after)


def test_the_ways_out_of_a_refusal_work():
    train()
    changed = {"train": SAMPLES[:20]}
    with pytest.raises(StaleRunError) as refused:
        train(**changed)
    assert "exp_tag=training_2" in str(refused.value)
    assert train(**changed, overrides=["exp_tag=training_2"]).exp_dir == Path("exp/training_2")
    longer = ["trainer.max_epochs=2"]
    result = train(**changed, accept_changes=["dataset.train.content"], overrides=longer)
    assert len(result.history) == 2
    assert train(**changed, resume="never", overrides=["seed=4"]).was_trained
    assert Path("exp/training/previous.1/last.ckpt").exists()


def test_a_folder_that_is_spelt_out_is_not_changed_by_exp_tag():
    train(exp_dir="mine")
    with pytest.raises(StaleRunError, match="exp_dir=mine_2\n"):
        train(exp_dir="mine", train=SAMPLES[:20])


def test_two_processes_in_a_notebook_are_told(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    two = ["trainer.devices=2", "trainer.strategy=ddp"]
    with pytest.raises(ResourceError, match=r'this is a notebook or a prompt.*"devices": 1'):
        train(overrides=two)
    assert train(overrides=["trainer.devices=1"]).was_trained


def test_a_stream_is_not_trained_on_by_two_processes(monkeypatch):
    monkeypatch.setattr("espnet3.systems.base.python_training._is_script", lambda: True)
    two = ["trainer.devices=2", "trainer.strategy=ddp"]
    with pytest.raises(ConfigError, match=r"cannot be dealt out.*devices: 1"):
        train(WITHOUT_SIZES, train=DataLoader(Stream(), batch_size=4), overrides=two)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"train": []}, "without samples"),
        ({"train": 5}, "has no __len__"),
        ({"train": "data/train"}, '"data_src": "kaldi"'),
        ({"train": {"point": POINTS, "label": LABELS}}, "a list of dicts"),
        ({"train": (POINTS, LABELS)}, r"TensorDataset\(\*train\)"),
        ({"train": Stream()}, r"DataLoader\(train, batch_size=16\)"),
        ({"train": iter(SAMPLES)}, "gives its batches once"),
        ({"train": OnlyNames()}, "KeyError: 0"),
        ({"model": 5}, "Give a torch.nn.Module"),
        ({"model": "Classifier"}, "package.module.Classifier"),
        ({"config": WITHOUT_SIZES}, r"dataloader: \{train: \{batch_size: 16\}\}"),
        ({"model": None}, r"model has no _target_"),
        ({"train": None}, "nothing to train on"),
        ({"config": {**CONFIG, "model": nn.Linear(2, 2)}, "model": None}, r"train\(config, model="),
        ({"config": {**CONFIG, "optimizer": torch.optim.SGD}}, '"_target_": "torch.optim.sgd.SGD"'),
    ],
)
def test_mistakes_are_told_before_anything_is_written(given, words, folder):
    with pytest.raises(ConfigError, match=words):
        train(**given)
    assert not (folder / "exp").exists()


def test_a_lightning_module_is_told_what_to_write():
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def training_step(self, batch):
            return batch

    for model in (Module, Module()):
        with pytest.raises(ConfigError, match=r"return \{\"loss\": loss"):
            train(model=model)


def test_a_loss_alone_and_a_whole_batch_will_do():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.output = nn.Linear(2, 2)

        def forward(self, batch):
            return nn.functional.cross_entropy(self.output(batch["point"]), batch["label"])

    assert train(model=Plain()).history[0]["train/loss"] > 0


def test_a_model_in_eval_mode_is_told(caplog):
    train(model=Classifier().eval())
    assert "The whole model is in eval mode at the start of training" in caplog.text


def test_the_model_that_was_given_is_trainable_as_before():
    model = Classifier()
    train(model=model, overrides=["freeze=encoder"])
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("call", [stage, lambda loaded: BaseSystem(training=loaded).train()])
def test_stages_know_the_folder_of_a_config_from_load_config(call, caplog):
    caplog.set_level(logging.INFO)
    block = {"model": {"_target_": f"{__name__}.Classifier"}}
    data = {"dataset": {"_target_": f"{__name__}.Organizer"}}
    call(load_config({**CONFIG, **block, **data}))
    assert Path("exp/training/last.ckpt").exists()
    assert "exp_dir is not set: all is written to" in caplog.text


class Organizer:
    train, valid = SAMPLES, SAMPLES


def test_configs_of_a_system_share_their_folders(folder):
    for name in ("training", "inference", "metrics"):
        (folder / f"{name}.yaml").write_text("seed: 1\n")
    names = ("training", "inference", "metrics")
    system = BaseSystem(**{name: load_config(f"{name}.yaml") for name in names})
    assert {str(getattr(system, name).config.exp_dir) for name in names} == {"./exp/training"}
    assert system.metrics.config.inference_dir == system.inference.config.inference_dir
