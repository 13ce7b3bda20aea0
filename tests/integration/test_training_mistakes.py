"""Mistakes in a training: a clear message of a few lines, and the last good checkpoint intact."""
# ruff: noqa: E501

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from espnet3.cli.recipe import run_recipe
from espnet3.systems.base.system import BaseSystem
from tests.helpers.training_recipe import TRAINING, TrainingRecipe

ODD = '''\
"""Models with one mistake each."""

import torch

from src.model import Tones


class NaN(Tones):
    def forward(self, **batch):
        loss, stats, weight = super().forward(**batch)
        return (loss * float("nan") if self.training else loss), stats, weight


class Nonsense(Tones):
    def forward(self, **batch):
        return 42


class Vector(Tones):
    def forward(self, speech, **batch):
        return {"loss": self.encoder(speech[:, None]).sum(-1)}


class Picky(Tones):
    def forward(self, speech, speech_lengths, text):
        raise AssertionError


class Raises(Tones):
    def forward(self, **batch):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


class Frozen(Tones):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.requires_grad_(False)


class Unbuilt(torch.nn.Module):
    def __init__(self):
        raise ValueError("the vocabulary is empty")


class NoModule:
    pass


def collate(samples):
    return samples[0]["no such key"]
'''

HERE = r"conf/training\.yaml:\d+"
STEPS = "log_every_n_steps: 5"
TAG = "exp_tag: tones"
MODEL = "src.model.Tones"
TRAIN = "{batch_seconds: 4, max_padding: 0.3}"
VALID = "  valid:\n    - data_src_args: {n: 20, first: 1000}\n"

# What is replaced by what in the config, and what the message must hold.
BEFORE_ANYTHING = {
    "more GPUs than there are": ("accelerator: cpu\n  devices: 1", "accelerator: gpu\n  devices: 99", rf"{HERE}.*GPU.*visible.*Write"),
    "more processes than cores": ("devices: 1", "devices: 999", rf"trainer\.devices is 999 \(set in {HERE}\).*core.*Write: devices: \d"),
    "a list of CPUs": ("devices: 1", "devices: [0, 1]", rf"{HERE}.*Write: devices: 2"),
    "two nodes without a launcher": ("devices: 1", "devices: 1\n  num_nodes: 2", rf"{HERE}.*runs alone.*espnet3 launch.*torchrun --nnodes=2.*num_nodes: 1"),
    "a strategy that is none": (STEPS, "strategy: dpp", rf"trainer\.strategy is 'dpp' \(set in {HERE}\).*Did you mean 'ddp'\?"),
    "a precision that is none": (STEPS, "precision: 16x", rf"trainer\.precision is '16x' \(set in {HERE}\).*16-mixed"),
    "an accelerator that is none": ("accelerator: cpu", "accelerator: gpus", rf"{HERE}.*Did you mean 'gpu'\?"),
    "a misspelt key of the trainer": ("max_epochs:", "max_epoch:", rf"trainer\.max_epoch \(set in {HERE}\).*Write: max_epochs: 3"),
    "a key of the trainer that is none": (STEPS, "colour: blue", rf"trainer\.colour \(set in {HERE}\).*lightning\.pytorch\.Trainer"),
    "a trainer that is no mapping": (TRAINING[TRAINING.index("trainer:") :], "trainer: cpu\n", rf"trainer is 'cpu' \(set in {HERE}\).*Write: trainer: \{{"),
    "a key of parallel in the trainer": (STEPS, "n_workers: 4", rf"trainer\.n_workers in {HERE} is called devices.*trainer: \{{devices: 4\}}"),
    "a key of the trainer at the top": (TAG, f"{TAG}\nmax_epochs: 4", rf"max_epochs in {HERE} belongs under trainer"),
    "a number in words": ("max_epochs: 3", "max_epochs: three", rf"trainer\.max_epochs is 'three' \(set in {HERE}\).*Write: max_epochs: 20"),
    "a number that is not whole": ("max_epochs: 3", "max_steps: 1e2", rf"trainer\.max_steps is 100\.0 \(set in {HERE}\).*Write: max_steps: 100$"),
    "a number that Lightning refuses": (STEPS, "limit_train_batches: 1.5", rf"trainer\.limit_train_batches is 1\.5 \(set in {HERE}\)"),
    "an interval that Lightning refuses": (STEPS, "val_check_interval: often", rf"trainer\.val_check_interval is 'often' \(set in {HERE}\)"),
    "a profiler that is none": (STEPS, "profiler: simpel", rf"trainer\.profiler is 'simpel' \(set in {HERE}\).*'simple'"),
    "a plugin that is none": (STEPS, "plugins: [{_target_: src.odd.NoModule}]", rf"trainer\.plugins.*{HERE}.*CheckpointIO"),
    "a callback without class": (STEPS, "callbacks: [EarlyStopping]", rf"trainer\.callbacks\.0 is 'EarlyStopping' \(set in {HERE}\).*_target_: lightning"),
    "a callback that is none": (STEPS, "callbacks: [{_target_: src.odd.NoModule}]", rf"trainer\.callbacks\.0 \(set in {HERE}\) is a NoModule.*_target_: lightning"),
    "a misspelt argument of a callback": (STEPS, "callbacks: [{_target_: lightning.pytorch.callbacks.EarlyStopping, monitr: valid/loss}]", rf"trainer\.callbacks\.0\.monitr \(set in {HERE}\).*'monitor'"),
    "a logger that is none": (STEPS, "logger: tensorboard", rf"trainer\.logger is 'tensorboard' \(set in {HERE}\).*_target_"),
    "checkpoints switched off": (STEPS, "enable_checkpointing: false", rf"trainer\.enable_checkpointing is False \(set in {HERE}\).*Delete the line"),
    "clipping by a word": (STEPS, "gradient_clip_val: much", rf"trainer\.gradient_clip_val is 'much' \(set in {HERE}\)"),
    "no data": (TRAINING[TRAINING.index("dataset:") : TRAINING.index("dataloader:")], "", r"dataset is None.*Write: dataset: \{train:"),
    "no training data": ("  train:\n    - data_src_args: {n: 60}\n", "", rf"dataset\.train \(set in {HERE}\) has nothing.*Write: dataset: \{{train:"),
    "no validation for a metric of it": (VALID, "", rf"best_model_criterion\.0 is 'valid/loss' \(set in {HERE}\).*no validation.*\[\[train/loss, 2, min\]\]"),
    "a misspelt argument of a dataset": ("{n: 60}", "{m: 60}", rf"data_src_args.*'m' \(set in {HERE}\).*It takes: n"),
    "no dataloader": (TRAINING[TRAINING.index("dataloader:") : TRAINING.index("model:")], "", r"dataloader\.train is not set.*Write: dataloader: \{train:"),
    "a dataloader that is no mapping": (TRAINING[TRAINING.index("dataloader:") : TRAINING.index("model:")], "dataloader: fast\n", rf"dataloader\.train \(set in {HERE}\).*Write: dataloader: \{{train:"),
    "a misspelt key of the dataloader": ("batch_seconds: 4", "batch_secs: 4", rf"dataloader\.train\.batch_secs.*{HERE}.*Write: batch_seconds: 4"),
    "a misspelt split": ("  valid: {batch_size: 8}", "  vaild: {batch_size: 8}", rf"dataloader\.vaild.*{HERE}.*'valid'"),
    "both batch_size and batch_sampler": (TRAIN, "{batch_size: 4, batch_sampler: {_target_: src.odd.NoModule}}", rf"dataloader\.train\.batch_size.*{HERE}.*Remove batch_size"),
    "no batch size": (TRAIN, "{num_workers: 1}", rf"dataloader\.train \(set in {HERE}\).*batch_size: 16.*batch_seconds: 120"),
    "a collate_fn that is not there": ("dataloader:", "dataloader:\n  collate_fn: src.odd.colate", rf"dataloader\.collate_fn is 'src\.odd\.colate' \(set in {HERE}\).*'collate'"),
    "no model": (f"model: {{_target_: {MODEL}}}\n", "", r"model has no _target_.*Write: model: \{_target_:"),
    "a model that is not there": (MODEL, "src.model.Tonse", rf"model\._target_.*{HERE}.*src\.model\.Tones"),
    "a misspelt argument of the model": (f"{MODEL}}}", f"{MODEL}, hiden: 3}}", rf"model\.hiden \(set in {HERE}\).*'hidden'"),
    "no optimizer": ("optimizer: {_target_: torch.optim.AdamW, lr: 0.01}\n", "", r"no optimizer\. Write: optimizer: \{_target_: torch\.optim\.AdamW"),
    "an optimizer by its name": ("{_target_: torch.optim.AdamW, lr: 0.01}", "adamw", rf"optimizer is 'adamw' \(set in {HERE}\).*Write: optimizer: \{{_target_"),
    "an optimizer without class": ("_target_: torch.optim.AdamW, ", "", rf"optimizer \(set in {HERE}\).*_target_: torch\.optim\.AdamW"),
    "an argument that the optimizer has not": ("lr: 0.01", "lrate: 0.01", rf"optimizer\.lrate \(set in {HERE}\).*"),
    "a learning rate below zero": ("lr: 0.01", "lr: -0.01", rf"optimizer\.lr \(set in {HERE}\).*Invalid learning rate: -0\.01"),
    "an argument that the scheduler has not": ("step_size: 20", "step_sise: 20", rf"scheduler\.step_sise \(set in {HERE}\).*'step_size'"),
    "an argument that the scheduler needs": ("step_size: 20, ", "", rf"scheduler \(set in {HERE}\).*Write: step_size: VALUE"),
    "a scheduler without its monitor": ("StepLR, step_size: 20, gamma: 0.5", "ReduceLROnPlateau", rf"scheduler.*{HERE}.*Write: scheduler_monitor: valid/loss"),
    "an interval that is none": (TAG, f"{TAG}\nscheduler_interval: batch", rf"scheduler_interval is 'batch' \(set in {HERE}\).*'step' or 'epoch'"),
    "a misspelt key of checkpoint": (TAG, f"{TAG}\ncheckpoint: {{every_n_step: 5}}", rf"checkpoint\.every_n_step.*{HERE}.*Write: every_n_steps: 5"),
    "a checkpoint that is no mapping": (TAG, f"{TAG}\ncheckpoint: 5", rf"checkpoint is 5 \(set in {HERE}\).*Write: checkpoint: \{{"),
    "a misspelt key of fit": (TAG, f"{TAG}\nfit: {{ckpt_pth: a}}", rf"fit\.ckpt_pth \(set in {HERE}\).*'ckpt_path'"),
    "a checkpoint to go on from that is not there": (TAG, f"{TAG}\nfit: {{ckpt_path: a.ckpt}}", rf"fit\.ckpt_path is 'a\.ckpt' \(set in {HERE}\).*does not exist.*delete the line"),
    "a checkpoint to go on from and not to": (TAG, f"{TAG}\nresume: never\nfit: {{ckpt_path: exp/tones/last.ckpt}}", rf"fit\.ckpt_path.*{HERE}.*resume is 'never' \(set in {HERE}\)"),
    "resume as a switch": (TAG, f"{TAG}\nresume: true", rf"resume is True \(set in {HERE}\).*Write: resume: auto"),
    "criteria as one list": ("[[valid/loss, 2, min]]", "[valid/loss, 2, min]", rf"best_model_criterion.*{HERE}.*Write: best_model_criterion: \[\[valid/loss, 2, min\]\]"),
    "a criterion of two": ("[[valid/loss, 2, min]]", "[[valid/loss, min]]", rf"best_model_criterion\.0.*{HERE}.*Write"),
    "a criterion without its mode": ("2, min", "2, mim", rf"best_model_criterion\.0.*{HERE}.*'min'"),
    "no weights to start from": (TAG, f"{TAG}\ninit: {{pth: a}}", rf"init\.pth.*{HERE}.*'path'"),
    "a seed in words": ("seed: 3", "seed: three", rf"seed is 'three' \(set in {HERE}\).*Write: seed: 0"),
}  # fmt: skip

# These need data, or the model. The folder is another one where there must be no checkpoint yet.
ANEW = "exp_tag: anew"
WHILE_BUILDING = {
    "a checkpoint of another model": (f"{MODEL}}}", f"{MODEL}, hidden: 8}}", r"exp/tones/last\.ckpt is a checkpoint of another model.*encoder\.weight \(\[16, 1, 25\] there, \[8, 1, 25\] here\).*exp_tag=NEW_NAME.*resume=never"),
    "an empty training set": ("{n: 60}", "{n: 0}", rf"dataset\.train\.0\.data_src_args \(set in {HERE}\).*has no items"),
    "an empty validation set": ("{n: 20,", "{n: 0,", rf"dataset\.valid\.0\.data_src_args \(set in {HERE}\).*has no items"),
    "an utterance longer than a batch": ("batch_seconds: 4", "batch_seconds: 1", rf"dataloader\.train\.batch_seconds is 1 \(set in {HERE}\).*utt24.*batch_seconds: 2.*max_seconds: 1"),
    "all utterances left out": (TRAIN, "{batch_size: 4, max_seconds: 0.01}", rf"dataloader\.train \(set in {HERE}\).*60 of 60 samples are left out.*max_seconds 0\.01"),
    "a model that is no module": (MODEL, "src.odd.NoModule", rf"model \(set in {HERE}\) is a NoModule, no torch\.nn\.Module"),
    "a model that cannot be built": (MODEL, "src.odd.Unbuilt", rf"the vocabulary is empty \(src/odd\.py:\d+\).*Raised while building model.*{HERE}"),
    "weights to start from that are not there": (TAG, f"{ANEW}\ninit: {{path: nowhere.ckpt}}", rf"init\.path is 'nowhere\.ckpt' \(set in {HERE}\).*does not exist"),
    "weights to start from that are none": (TAG, f"{ANEW}\ninit: conf/training.yaml", rf"init\.path is 'conf/training\.yaml' \(set in {HERE}\), which is damaged, or holds no weights.*Give"),
    "weights of which none fits": (TAG, f"{ANEW}\ninit: {{path: exp/tones/last.ckpt, from: encodr}}", r"no weights below from: encodr.*'encoder'"),
}  # fmt: skip

# The folder holds a training with another config, which would be refused first.
ACCEPT = "accept_changes=[model,dataset,dataloader,trainer,code,old]"

WHILE_TRAINING = {
    "a metric that is never logged": ("[[valid/loss, 2, min]]", "[[valid/lss, 2, min]]", rf"best_model_criterion\.0 is 'valid/lss' \(set in {HERE}\).*Logged are: .*Write: best_model_criterion: \[\[valid/loss, 2, min\]\]"),
    "a metric of training that is never logged": ("[[valid/loss, 2, min]]", "[[train/lss, 2, min]]", rf"best_model_criterion\.0 is 'train/lss' \(set in {HERE}\).*\[\[train/loss, 2, min\]\]"),
    "a metric of a callback that is never logged": (STEPS, "callbacks: [{_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: val_loss}]", rf"trainer\.callbacks\.0\.monitor is 'val_loss' \(set in {HERE}\).*Write: monitor: valid/loss"),
    "a metric without validation": (STEPS, "limit_val_batches: 0", rf"best_model_criterion\.0.*no validation.*Delete trainer\.limit_val_batches: 0 \(set in {HERE}\)"),
    "more batches between validations than there are": (STEPS, "val_check_interval: 1000", rf"trainer\.val_check_interval is 1000 \(set in {HERE}\)"),
    "a loss that is NaN for ever": (MODEL, "src.odd.NaN}\nmax_nonfinite_batches: 3\nold: {x: y", r"4 batches in a row.*not finite.*learning rate.*resumes from the last checkpoint"),
    "a forward that returns nonsense": (MODEL, "src.odd.Nonsense", r"Nonsense\.forward returned int 42\. Return one of:.*return loss, stats, weight"),
    "a loss that is no number": (MODEL, "src.odd.Vector", r"loss of Vector has the shape.*loss\.mean\(\)"),
    "a forward that wants something else": (MODEL, "src.odd.Picky", r"takes no 'label' and the batch has no 'text'.*A batch has: .*forward takes: "),
    "a forward that fails": (MODEL, "src.odd.Raises", r"shapes cannot be multiplied \(src/odd\.py:\d+\)\. Traceback: exp/tones/train\.log"),
    "a model without anything to train": (MODEL, "src.odd.Frozen", r"Frozen has no trainable parameter.*requires_grad"),
    "a collate_fn that fails": ("dataloader:", "dataloader:\n  collate_fn: src.odd.collate", r"The batch of item .*KeyError: 'no such key' \(src/odd\.py:\d+, in collate\)"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a recipe whose training has ended after one epoch of three."""
    recipe = TrainingRecipe(tmp_path_factory.mktemp("mistakes") / "it's a recipe")
    (recipe.folder / "src" / "odd.py").write_text(ODD)
    before, path = dict(os.environ), list(sys.path)
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    code = run_recipe(BaseSystem, arguments("trainer.max_epochs=1"), recipe_dir=recipe.folder)
    assert code == 0
    yield recipe.folder
    os.environ.clear()
    os.environ.update(before)
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(recipe.folder)):
            del sys.modules[name]


def arguments(*overrides):
    return ["--stages", "train", "--training_config", "conf/training.yaml", *overrides]


@pytest.fixture
def run(folder, tmp_path, monkeypatch, capfd, caplog):
    """Return a function that runs the recipe with a config, and returns code and messages."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO", logger="espnet3")

    def call(text=TRAINING, *overrides):
        (folder / "conf" / "training.yaml").write_text(text)
        capfd.readouterr()
        caplog.clear()
        code = run_recipe(BaseSystem, arguments(*overrides), recipe_dir=folder)
        os.chdir(tmp_path)
        # Under pytest, log lines go to its own handler instead of the terminal.
        lines = [f"00:00:00 {message}" for message in caplog.messages]
        return code, "\n".join([capfd.readouterr().err, *lines])

    yield call
    (folder / "conf" / "training.yaml").write_text(TRAINING)


def changed(old, new):
    assert old in TRAINING
    return TRAINING.replace(old, new, 1)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def of_training(files: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out the log and the records of the stage, which every attempt writes."""
    return {n: v for n, v in files.items() if "/config/" not in n and not n.endswith(".log")}


def the_message(shown: str) -> str:
    """Return the error as the terminal shows it: one block of a few lines, without traceback."""
    assert "Traceback (most recent call last)" not in shown
    assert shown.count("espnet3: ") == 1, shown
    lines = shown[shown.index("espnet3: ") :].splitlines()
    ends = [i for i, line in enumerate(lines) if re.match(r"\d\d:\d\d:\d\d |To continue: ", line)]
    message = lines[: ends[0] if ends else None]
    assert len(message) <= 5
    return "\n".join(message)


def assert_told(shown: str, expected: str) -> None:
    message = the_message(shown)
    assert re.search(expected, message, re.DOTALL), message


@pytest.mark.parametrize("name", BEFORE_ANYTHING)
def test_a_mistake_in_the_config_is_told_before_anything_is_built_or_written(run, folder, name):
    old, new, expected = BEFORE_ANYTHING[name]
    before = files_of(folder / "exp")
    code, shown = run(changed(old, new))
    assert code == 1
    assert_told(shown, expected)
    assert "Stage train" not in shown
    assert files_of(folder / "exp") == before


@pytest.mark.parametrize("name", WHILE_BUILDING)
def test_a_mistake_in_data_or_model_leaves_the_earlier_training_as_it_was(run, folder, name):
    old, new, expected = WHILE_BUILDING[name]
    before = of_training(files_of(folder / "exp"))
    code, shown = run(changed(old, new), ACCEPT)
    assert code == 1
    assert_told(shown, expected)
    assert of_training(files_of(folder / "exp")) == before


@pytest.mark.parametrize("name", WHILE_TRAINING)
def test_a_mistake_that_shows_in_training_leaves_the_last_checkpoint(run, folder, name):
    old, new, expected = WHILE_TRAINING[name]
    last = folder / "exp" / "tones" / "last.ckpt"
    before = last.read_bytes()
    code, shown = run(changed(old, new), ACCEPT)
    assert code == 1
    assert_told(shown, expected)
    assert last.read_bytes() == before
    assert torch.load(last, weights_only=True)["epoch"] == 0


def test_a_wrong_config_does_not_put_the_old_training_aside(run, folder):
    before = of_training(files_of(folder / "exp"))
    code, shown = run(changed("{n: 60}", "{n: 0}"), "resume=never")
    assert code == 1
    assert_told(shown, "has no items")
    assert of_training(files_of(folder / "exp")) == before


def test_a_damaged_checkpoint_is_named_and_left_for_its_owner(run, folder):
    last = folder / "exp" / "tones" / "last.ckpt"
    whole = last.read_bytes()
    try:
        last.write_bytes(whole[: len(whole) // 2])
        code, shown = run()
        assert code == 1
        assert_told(
            shown, r"exp/tones/last\.ckpt is damaged or cut off.*fit\.ckpt_path=.*resume=never"
        )
        assert last.read_bytes() == whole[: len(whole) // 2]
    finally:
        last.write_bytes(whole)


def test_a_trial_of_one_batch_keeps_nothing_and_touches_nothing(run, folder):
    before = of_training(files_of(folder / "exp"))
    code, shown = run(TRAINING, "trainer.fast_dev_run=true")
    assert code == 0, shown
    assert "Trained 1 step" in shown
    assert of_training(files_of(folder / "exp")) == before


def test_a_training_shorter_than_its_first_validation_ends_well(run, folder):
    code, shown = run(TRAINING, "trainer.max_steps=3", "exp_tag=short")
    assert code == 0, shown
    assert "valid/loss was never measured, so nothing is averaged" in shown
    assert (folder / "exp" / "short" / "last.ckpt").exists()


def test_a_finished_training_is_told_so_and_not_touched(run, folder):
    before = of_training(files_of(folder / "exp" / "tones"))
    code, shown = run(TRAINING, "trainer.max_epochs=1")
    assert code == 0, shown
    assert "raise trainer.max_epochs or max_steps; to start from scratch, set resume=never" in shown
    kept = of_training(files_of(folder / "exp" / "tones"))
    assert {n: v for n, v in kept.items() if n.endswith(".ckpt") and "ave" not in n} == {
        n: v for n, v in before.items() if n.endswith(".ckpt") and "ave" not in n
    }


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_corrupt_audio_file_in_mid_epoch_is_named_and_a_rerun_with_it_mended_finishes(
    run, folder, n_workers
):
    exp_dir = folder / "exp" / f"corrupt{n_workers}"
    overrides = (
        "dataset.train.0.data_src_args.corrupt=40", f"dataloader.train.num_workers={n_workers}",
        "checkpoint.every_n_steps=2", "trainer.max_epochs=2",
    )  # fmt: skip
    (folder / "data").mkdir(exist_ok=True)
    audio = folder / "data" / "broken.wav"
    audio.write_bytes(b"RIFF\x24\x00\x00\x00WAVEfmt " + b"\xff" * 40)
    code, shown = run(TRAINING, *overrides, f"exp_tag={exp_dir.name}")
    assert code == 1
    assert_told(
        shown,
        r"item 40 of dataset\.train\.0: .*data/broken\.wav.*dataloader\.train\.on_error: skip",
    )
    stopped = torch.load(exp_dir / "last.ckpt", weights_only=True)
    assert 0 < stopped["global_step"] < 14  # in the first epoch

    soundfile.write(audio, np.zeros(1000, np.float32), 1000)
    code, shown = run(TRAINING, *overrides, f"exp_tag={exp_dir.name}")
    assert code == 0, shown
    assert f"Resuming from exp/{exp_dir.name}/last.ckpt" in shown
    code, shown = run(TRAINING, *overrides, "exp_tag=undisturbed", "resume=never")
    assert code == 0, shown
    one, other = (
        torch.load(d / "last.ckpt", weights_only=True)["state_dict"]
        for d in (exp_dir, folder / "exp" / "undisturbed")
    )
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_samples_that_cannot_be_read_are_left_out_where_that_is_asked_for(run, folder):
    code, shown = run(
        TRAINING, "dataset.train.0.data_src_args.corrupt=7", "dataloader.train.on_error=skip",
        "trainer.max_epochs=1", "exp_tag=skipped", "dataset.train.0.data_src_args.path=nowhere.wav",
    )  # fmt: skip
    assert code == 0, shown
    assert "left out item 7 of dataset.train.0: nowhere.wav does not exist" in shown


@pytest.fixture
def small_disk(tmp_path):
    """Mount a tmpfs that holds two checkpoints of the model below, but not three."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder])
    if made.returncode:
        pytest.skip("this sandbox does not allow mounts")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
def test_a_full_disk_while_saving_is_told_and_training_goes_on_when_there_is_room(run, small_disk):
    overrides = (f"exp_dir='{small_disk}/exp'", "model.hidden=400", "trainer.max_epochs=4")
    code, shown = run(TRAINING, *overrides)
    assert code == 1
    assert_told(
        shown, r"Cannot write .*No space left on device.*needs about 159\.1 kB.*are free.*intact.*Make room"
    )  # fmt: skip
    last = torch.load(small_disk / "exp" / "last.ckpt", weights_only=True)
    assert last["epoch"] >= 1
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    code, shown = run(TRAINING, *overrides)
    assert code == 0, shown
    assert f"exp/last.ckpt (epoch {last['epoch'] + 1}," in shown


def test_the_command_line_shows_the_same(tmp_path):
    recipe = TrainingRecipe(tmp_path / "asr")
    (recipe.folder / "src" / "odd.py").write_text(ODD)
    shown = recipe.train("trainer.stratgy=ddp", code=1)
    assert_told(
        shown, r"trainer\.stratgy \(set in command line: trainer\.stratgy=ddp\).*'strategy'"
    )
    assert not (recipe.folder / "exp").exists()
    shown = recipe.train("model._target_=src.odd.Raises", "trainer.devices=1", code=1)
    assert_told(
        shown, r"shapes cannot be multiplied \(src/odd\.py:\d+\)\. Traceback: exp/tones/train\.log"
    )
    assert "Traceback (most recent call last)" in (recipe.exp_dir / "train.log").read_text()
