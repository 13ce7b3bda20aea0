"""A training took any other settings, data and code for its own, and put them on record.

A finished one said that it was trained already; one that went on used what it liked of the new
values. Now it is compared first, and refused with each key that changed.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from espnet3.systems.base.stages import stage
from espnet3.systems.base.system import BaseSystem
from tests.helpers.exhaustive import few
from tests.helpers.tones_recipe import RATE, TRAIN, call, write_recipe, write_set

DRAWING = """\
import torch


class Drawing:
    def __init__(self):
        self.gains = torch.rand(7)

    def __call__(self, sample):
        return sample
"""


class Silent(BaseSystem):
    """A system with a stage that makes nothing that a training reads."""

    @stage(config="inference", after="infer")
    def rescore(self):
        print("rescored")


WITH_INFERENCE = (
    "--training_config", "conf/training.yaml", "--inference_config", "conf/inference.yaml",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Return a recipe that was trained for an epoch."""
    folder = tmp_path_factory.mktemp("trained") / "it's a recipe"
    torch.set_num_threads(1)
    write_recipe(folder)
    assert call(folder, *TRAIN) == 0
    return folder


@pytest.fixture
def recipe(trained, tmp_path) -> Path:
    """Return a copy of it in another place."""
    folder = tmp_path / "moved" / "asr"
    shutil.copytree(trained, folder)
    return folder


@pytest.fixture
def train(recipe, capfd, caplog):
    """Return a function that trains, and returns the exit code and what was said."""
    caplog.set_level("INFO", logger="espnet3")

    def run(*arguments: str, stages=TRAIN, **how) -> tuple[int, str]:
        capfd.readouterr()
        caplog.clear()
        code = call(recipe, *stages, *arguments, **how)
        shown = capfd.readouterr()
        return code, "\n".join([shown.out, shown.err, *caplog.messages])

    return run


def files_of(folder: Path) -> dict[str, bytes]:
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix != ".pyc"]
    return {str(p): p.read_bytes() for p in files}


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def record_of(recipe: Path) -> dict:
    return json.loads((recipe / "exp/tones/training.json").read_text())


CHANGED_SETTINGS = {
    "model.hidden=4": "model.hidden: 8 -> 4",
    "optimizer.lr=0.5": "optimizer.lr: 0.01 -> 0.5",
    "optimizer.weight_decay=0": "optimizer.weight_decay: 0.01 -> 0",
    "scheduler.step_size=7": "scheduler.step_size: 100 -> 7",
    "seed=4": "seed: 3 -> 4",
    "trainer.gradient_clip_val=1": "trainer.gradient_clip_val: 5.0 -> 1",
    "trainer.accumulate_grad_batches=2": "trainer.accumulate_grad_batches: 1 -> 2",
    "trainer.precision=bf16-mixed": "trainer.precision: '32-true' -> 'bf16-mixed'",
    "trainer.limit_train_batches=0.5": "trainer.limit_train_batches: (not set) -> 0.5",
    "dataloader.train.batch_size=4": "dataloader.train.batch_size: 8 -> 4",
    "dataloader.train.max_seconds=0.7": "dataloader.train.max_seconds: (not set) -> 0.7",
    "dataset.train.0.transform=null": "dataset.train.0.transform: 'src.steps.louder' -> (not set)",
    "dataset.train.0.weight=2": "dataset.train.0.weight: (not set) -> 2",
    "dataset.valid.0.data_src_args.path=data/train.jsonl": "dataset.valid.0.data_src_args.path",
    "init=exp/tones/last.ckpt": "init: (not set) -> '{exp_dir}/last.ckpt'",
}


@pytest.mark.parametrize(
    ("override", "max_epochs"),
    [
        *((override, 1) for override in CHANGED_SETTINGS),
        *few([(override, 2) for override in list(CHANGED_SETTINGS)[:6]], 1),
    ],
)
def test_another_setting_is_refused_and_nothing_is_touched(recipe, train, override, max_epochs):
    before = files_of(recipe)
    code, shown = train(override, f"trainer.max_epochs={max_epochs}")
    assert code == 1
    assert CHANGED_SETTINGS[override] in shown
    assert override.partition("=")[0] in shown.partition("accept_changes=[")[2]
    assert "exp_tag=tones_2" in shown
    assert "resume=never" in shown
    assert "trained to the end" not in shown
    assert files_of(recipe) == before


def test_each_changed_key_is_named(train):
    _, shown = train("model.hidden=4", "optimizer.lr=0.5", "seed=9")
    assert "'accept_changes=[model.hidden,optimizer.lr,seed]'" in shown


@pytest.mark.parametrize("split", ["train", "valid"])
def test_other_texts_in_the_same_list_are_refused(recipe, train, split):
    edit(recipe / f"data/{split}.jsonl", "tone 3", "tone 2")
    before = files_of(recipe)
    code, shown = train()
    assert code == 1
    n = 24 if split == "train" else 8
    assert f"dataset.{split}.0.content: other data ({n} items then, {n} now)" in shown
    assert files_of(recipe) == before


def test_audio_that_was_made_again_under_the_same_list_is_refused(recipe, train):
    file = recipe / "data/audio/train5.wav"
    samples, rate = soundfile.read(file)
    soundfile.write(file, samples * 0.9, rate)
    code, shown = train()
    assert code == 1
    assert "dataset.train.0.audio: the audio files have other content" in shown


def test_another_file_under_the_same_name_is_refused(recipe, train):
    np.save(recipe / "data/prior.npy", np.ones(4, np.float32))
    code, shown = train("trainer.max_epochs=2")
    assert code == 1
    assert "model.prior: data/prior.npy has other content" in shown


@pytest.mark.parametrize(
    ("file", "old", "new", "key"),
    [
        ("src/model.py", ".abs().mean(-1)", ".abs().amax(-1)", "code.src.model.Tones"),
        ("src/model.py", "GAIN = 1.0", "GAIN = 2.0", "code.src.model"),
        ("src/steps.py", "uniform(0.9", "uniform(0.5", "code.src.steps.louder"),
    ],
)
def test_other_code_is_refused(recipe, train, file, old, new, key):
    edit(recipe / file, old, new)
    code, shown = train()
    assert code == 1
    assert key in shown


def test_the_same_call_in_a_moved_folder_says_that_all_is_trained(recipe, train):
    before = files_of(recipe / "exp")
    code, shown = train()
    assert code == 0, shown
    assert "trained to the end already" in shown
    kept = {name: data for name, data in files_of(recipe / "exp").items() if ".log" not in name}
    assert kept == {name: data for name, data in before.items() if ".log" not in name}


@pytest.mark.parametrize(
    "override",
    [
        "dataloader.train.num_workers=1",
        "trainer.devices=auto",
        "trainer.log_every_n_steps=7",
        "trainer.accelerator=auto",
        "checkpoint.every_n_steps=2",
        "best_model_criterion=[[valid/loss, 2, min]]",
        "trainer.precision=32",
        "dataset.train.0.weight=1",
        "dataloader.train.shuffle=true",
        "trainer.callbacks=[{_target_: lightning.pytorch.callbacks.EarlyStopping, "
        "monitor: valid/loss}]",
    ],
)
def test_where_and_how_long_it_runs_may_differ(train, override):
    code, shown = train(override)
    assert code == 0, shown


def test_the_same_places_spelt_otherwise_are_the_same(recipe, train):
    code, shown = train(f"recipe_dir={recipe}", f"model.prior={recipe}/data/prior.npy")
    assert code == 0, shown


def test_more_epochs_go_on_and_the_record_of_the_stage_follows(recipe, train):
    before = record_of(recipe)
    code, shown = train("trainer.max_epochs=2")
    assert code == 0, shown
    assert "Resuming from" in shown
    assert record_of(recipe) == before
    assert "max_epochs: 2" in (recipe / "exp/tones/config/train.yaml").read_text()
    assert "max_epochs: 2" in (recipe / "exp/tones/config.yaml").read_text()


def test_accepted_changes_take_effect_and_are_on_record(recipe, train):
    changes = ("optimizer.lr=0.002", "optimizer.weight_decay=0.3", "trainer.gradient_clip_val=1")
    accept = "accept_changes=[optimizer,trainer.gradient_clip_val]"
    code, shown = train("trainer.max_epochs=2", *changes, accept)
    assert code == 0, shown
    [entry] = record_of(recipe)["accepted"]
    assert (entry["epoch"], entry["step"]) == (1, 3)
    assert "optimizer.lr: 0.01 -> 0.002" in entry["changes"]
    assert "lr: 0.002" in (recipe / "exp/tones/config.yaml").read_text()
    checkpoint = torch.load(recipe / "exp/tones/last.ckpt", weights_only=True)
    [group] = checkpoint["optimizer_states"][0]["param_groups"]
    assert (group["lr"], group["weight_decay"]) == (0.002, 0.3)

    assert train("trainer.max_epochs=2", *changes)[0] == 0  # it is what the record says now
    code, shown = train("trainer.max_epochs=3")
    assert code == 1
    assert "optimizer.lr: 0.002 -> 0.01" in shown


def test_a_change_that_no_step_was_made_with_can_be_taken_back(recipe, train):
    change = ("seed=4", "accept_changes=[seed]")
    assert train(*change)[0] == 0  # finished: nothing was trained with it
    assert [one["changes"] for one in record_of(recipe)["accepted"]] == [["seed: 3 -> 4"]]
    assert "seed: 3" in (recipe / "exp/tones/config.yaml").read_text()
    assert train("seed=4")[0] == 0
    assert train()[0] == 0
    assert record_of(recipe)["accepted"] == []


def test_another_optimizer_cannot_be_accepted(train):
    changes = ("optimizer._target_=torch.optim.Adam", "accept_changes=[optimizer]")
    code, shown = train("trainer.max_epochs=2", *changes)
    assert code == 1
    assert "optimizer._target_ cannot change in a resumed training" in shown
    assert "'init={path: exp/tones/last.ckpt}'" in shown


def test_start_anew_keeps_the_old_record_beside_the_old_weights(recipe, train):
    before = (recipe / "exp/tones/training.json").read_bytes()
    code, shown = train("resume=never", "model.hidden=4")
    assert code == 0, shown
    assert (recipe / "exp/tones/previous.1/training.json").read_bytes() == before
    assert record_of(recipe)["fingerprint"]["model.hidden"] == 4
    assert train("model.hidden=4")[0] == 0


def test_a_training_without_a_checkpoint_is_nothing_to_hold_on_to(recipe, train):
    for file in [*(recipe / "exp/tones").glob("*.ckpt"), *recipe.glob("exp/tones/*.safetensors")]:
        file.unlink()
    code, shown = train("model.hidden=4")
    assert code == 0, shown
    assert record_of(recipe)["fingerprint"]["model.hidden"] == 4


def test_an_experiment_of_an_older_version_is_compared_with_its_config(recipe, train):
    record = recipe / "exp/tones/training.json"
    record.unlink()
    code, shown = train("model.hidden=4")
    assert code == 1
    assert "model.hidden: 8 -> 4" in shown
    assert not record.exists()
    code, shown = train()
    assert code == 0, shown
    assert "its data and code were not" in shown
    assert record_of(recipe)["fingerprint"]["model.hidden"] == 8
    code, shown = train()
    assert code == 0
    assert "data and code" not in shown
    edit(recipe / "data/train.jsonl", "tone 3", "tone 2")
    assert train()[0] == 1


@pytest.mark.parametrize("content", [b"", b"[]", b'{"fingerprint": 3}'])
def test_a_damaged_record_is_named(recipe, train, content):
    (recipe / "exp/tones/training.json").write_bytes(content)
    code, shown = train()
    assert code == 1
    assert "rm exp/tones/training.json" in shown


def test_a_dry_run_tells_the_refusal_and_writes_nothing(recipe, train):
    before = files_of(recipe)
    code, shown = train("model.hidden=4", "--dry-run")
    assert code == 1
    assert "model.hidden: 8 -> 4" in shown
    assert train("--dry-run")[0] == 0
    assert files_of(recipe) == before


@pytest.mark.parametrize("name", ["infer", "average", "rescore"])
def test_weights_are_not_used_under_another_training_config(recipe, train, name):
    stages = ("--stages", name, *WITH_INFERENCE)
    before = files_of(recipe)
    code, shown = train("optimizer.lr=0.5", stages=stages, system=Silent)
    if name == "rescore":  # a stage of one's own is not known to use them
        assert code == 0
        return
    assert code == 1
    assert "optimizer.lr: 0.01 -> 0.5" in shown
    assert files_of(recipe) == before
    code, shown = train("optimizer.lr=0.5", "accept_changes=[optimizer.lr]", stages=stages)
    assert code == 0, shown


@pytest.mark.parametrize("has_record", [True, False])
def test_a_config_that_trains_nothing_says_nothing_of_what_it_lacks(recipe, train, has_record):
    """Such as one that is kept for `pack_model`: nothing could be trained with it."""
    if not has_record:
        (recipe / "exp/tones/training.json").unlink()
    stages = ("--stages", "infer", *WITH_INFERENCE)
    (recipe / "conf/training.yaml").write_text(
        "exp_tag: tones\ntrainer: {max_epochs: 1}\noptimizer: {_target_: torch.optim.AdamW}\n"
    )
    code, shown = train(stages=stages)
    assert code == 0, shown
    code, shown = train("optimizer.lr=0.5", stages=stages)
    assert code == 1
    assert "optimizer.lr: 0.01 -> 0.5" in shown
    assert "(not set)" not in shown


def test_what_was_taken_out_of_a_whole_config_counts(recipe, train):
    edit(recipe / "conf/training.yaml", "transform: src.steps.louder", "")
    code, shown = train(stages=("--stages", "infer", *WITH_INFERENCE))
    assert code == 1
    assert "dataset.train.0.transform: 'src.steps.louder' -> (not set)" in shown


def test_an_override_that_is_new_in_all_configs_is_meant_for_inference(train):
    code, shown = train("vars.note=of_today", stages=("--stages", "infer", *WITH_INFERENCE))
    assert code == 0, shown


def test_a_checkpoint_of_another_training_takes_the_settings_of_the_new_one(recipe, train):
    start = ("exp_tag=other", "fit.ckpt_path=exp/tones/last.ckpt", "trainer.max_epochs=2")
    code, shown = train(*start, "optimizer.lr=0.002")
    assert code == 0, shown
    checkpoint = torch.load(recipe / "exp/other/last.ckpt", weights_only=True)
    assert checkpoint["optimizer_states"][0]["param_groups"][0]["lr"] == 0.002
    record = json.loads((recipe / "exp/other/training.json").read_text())
    assert record["accepted"][0]["changes"] == ["optimizer.lr: 0.01 -> 0.002"]


def test_weights_are_not_used_with_other_training_data(recipe, train):
    edit(recipe / "data/train.jsonl", "tone 3", "tone 2")
    code, shown = train(stages=("--stages", "infer", *WITH_INFERENCE))
    assert code == 1
    assert "dataset.train.0.content: other data" in shown


def test_weights_are_used_where_the_training_data_is_not(recipe, train):
    (recipe / "data/train.jsonl").unlink()
    code, shown = train(stages=("--stages", "infer", *WITH_INFERENCE))
    assert code == 0, shown
    assert "training data was not compared" in shown


def test_a_finished_inference_keeps_its_record(recipe, train):
    stages = ("--stages", "infer", "--inference_config", "conf/inference.yaml", "exp_tag=tones")
    assert train(stages=stages)[0] == 0
    config = recipe / "exp/tones/config"
    before = {file.name: file.read_bytes() for file in config.glob("infer.*")}
    code, shown = train("parallel.n_workers=2", stages=stages)
    assert code == 0
    assert "is complete already" in shown
    assert {file.name: file.read_bytes() for file in config.glob("infer.*")} == before
    code, shown = train("batch_size=2", stages=stages)  # refused
    assert code == 1
    assert {file.name: file.read_bytes() for file in config.glob("infer.*")} == before


def test_a_copied_recipe_with_other_data_is_refused(recipe, train):
    """As `cp -r` of a recipe with its `exp/` does it: the same lists, another rate."""
    write_set(recipe / "data", "train", 24, rate=2 * RATE)
    write_set(recipe / "data", "valid", 8, rate=2 * RATE, seed=1)
    for stages in (TRAIN, ("--stages", "infer", *WITH_INFERENCE)):
        code, shown = train(stages=stages)
        assert code == 1
        assert "dataset.train.0.audio" in shown


def test_two_processes_refuse_alike(recipe):
    """The second one is not the one that writes."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        "run.py", *TRAIN, "trainer.devices=2", "trainer.strategy=ddp", "trainer.max_epochs=2",
        "seed=9",
    ]  # fmt: skip
    before = files_of(recipe / "exp")
    told = subprocess.run(command, cwd=recipe, capture_output=True, text=True, timeout=120)
    assert told.returncode != 0
    assert "seed: 3 -> 9" in told.stderr
    assert files_of(recipe / "exp") == before


@pytest.mark.parametrize("draws", [False, True])
def test_the_first_weights_are_those_of_the_seed(recipe, train, draws):
    """That the data is looked at first shows in no number: a bare loop has the same."""
    (recipe / "src/draws.py").write_text(DRAWING)
    settings = ["exp_tag=bare", "optimizer.lr=0", "optimizer.weight_decay=0"]
    if draws:
        settings.append("dataset.train.0.transform={_target_: src.draws.Drawing}")
    code, shown = train(*settings)
    assert code == 0, shown
    found = torch.load(recipe / "exp/bare/last.ckpt", weights_only=True)["state_dict"]
    torch.manual_seed(3)
    if draws:
        torch.rand(7)
    encoder, output = torch.nn.Conv1d(1, 8, 25, stride=5), torch.nn.Linear(8, 4)
    assert torch.equal(found["model.encoder.weight"], encoder.weight)
    assert torch.equal(found["model.output.weight"], output.weight)
