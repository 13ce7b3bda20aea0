"""SIGKILL at any moment, full disks and several ranks, with real processes."""

import os
import signal
import subprocess
import time

import lightning.pytorch as pl
import pytest
import torch

from espnet3.errors import RunFolderError
from espnet3.trainer.checkpointing import checkpoints
from espnet3.trainer.checkpointing.best_checkpoints import average, read_index
from espnet3.trainer.checkpointing.checkpoint_io import read_checkpoint
from espnet3.trainer.config import CheckpointConfig, Criterion
from tests.helpers import clean_process
from tests.helpers.checkpoint_parts import LOSS, Loader, Module, run
from tests.helpers.waiting import wait_until

EVERY_STEP = CheckpointConfig(every_n_steps=1)
ALL = [Criterion("valid/loss", 9, "min")]


def start(*args, **options):
    return clean_process.start(run, *args, **options)


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL


def last_of(folder):
    return folder / "last.ckpt" if (folder / "last.ckpt").exists() else None


class Large(Module):
    """Takes a while to save."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ballast", torch.ones(6_000_000))


def test_a_kill_while_saving_leaves_the_last_one_whole(tmp_path):
    last, n_caught = tmp_path / "last.ckpt", 0
    for _ in range(4):
        before = read_checkpoint(last)["global_step"] if last.exists() else 0
        process = start(
            tmp_path, config=EVERY_STEP, module=Large(), max_epochs=-1, ckpt_path=last_of(tmp_path)
        )
        wait_until(
            lambda old=before: (
                last.exists() and read_checkpoint(last, mmap=True)["global_step"] > old
            ),
            seconds=60,
        )
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("..saving.ckpt.tmp-*")):
            assert time.monotonic() < deadline
        kill(process)
        n_caught += bool(list(tmp_path.glob("..saving.ckpt.tmp-*")))
        assert read_checkpoint(last)["global_step"] > before
    assert n_caught


class Slow(Module):
    """Takes its time, as a training does."""

    def training_step(self, batch, batch_idx):
        time.sleep(0.002)
        super().training_step(batch, batch_idx)


def run_in_short_minutes(*args, **options):
    """Train with the defaults, in a process where a minute is 0.05 s."""
    checkpoints._SHORTEST = 0.05
    run(*args, **options)


def test_by_default_a_kill_in_mid_epoch_costs_a_minute_at_most(tmp_path):
    last = tmp_path / "last.ckpt"
    options = {"module": Slow(), "max_epochs": 1, "loader": Loader(100_000)}
    for at_least in (1, 2):
        process = clean_process.start(
            run_in_short_minutes, tmp_path, ckpt_path=last_of(tmp_path), **options
        )
        before = read_checkpoint(last)["global_step"] if last.exists() else 0
        wait_until(lambda old=before: _step_of(last) > old, seconds=60)
        kill(process)
        found = read_checkpoint(last)
        assert found["epoch"] == 0
        assert found["global_step"] >= at_least


def _step_of(last):
    return read_checkpoint(last, mmap=True)["global_step"] if last.exists() else 0


class Dies(pl.Callback):
    """Kills its own process, without any warning, before the step after `step`."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, *args):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("interval", [1.0, 2])
def test_kills_in_mid_epoch_do_not_change_the_result(tmp_path, interval):
    config = CheckpointConfig(every_n_steps=3)
    options = {"valid": True, "val_check_interval": interval, "criteria": ALL, "config": config}
    whole = run(tmp_path / "whole", **options)
    folder = tmp_path / "killed"
    for step in (2, 5, 8, 11):
        process = start(folder, ckpt_path=last_of(folder), callbacks=[Dies(step)], **options)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    resumed = run(folder, ckpt_path=last_of(folder), **options)
    assert resumed.events[0][0] == "batch"  # it began in mid-epoch
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert read_index(folder) == read_index(tmp_path / "whole")
    assert sorted(os.listdir(folder)) == sorted(os.listdir(tmp_path / "whole"))


def weights(folder):
    return read_checkpoint(folder / "last.ckpt")["state_dict"]


def run_ranks(*args, **options):
    """Train on two ranks, which are forked of a process without threads."""
    clean_process.call(run_quietly, *args, strategy="ddp_fork", devices=2, **options)


def run_quietly(*args, **options):
    run(*args, **options)


def test_two_ranks_go_on_together(tmp_path):
    often = CheckpointConfig(every_minutes=1e-6)  # decided by the clock of rank 0
    options = {"valid": True, "config": often}
    run_ranks(tmp_path / "whole", max_epochs=3, **options)
    stored = read_checkpoint(tmp_path / "whole" / "last.ckpt")
    states = [state["torch"] for state in stored["random_states"]]
    assert len(states) == 2
    run_ranks(tmp_path / "two", max_epochs=-1, max_steps=6, **options)  # in mid-epoch
    assert read_checkpoint(tmp_path / "two" / "last.ckpt")["global_step"] == 6
    run_ranks(tmp_path / "two", max_epochs=3, ckpt_path=tmp_path / "two" / "last.ckpt", **options)
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(value, weights(tmp_path / "two")[name]), name
    assert read_index(tmp_path / "two") == read_index(tmp_path / "whole")


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small disk"
    folder.mkdir()
    made = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], stderr=subprocess.DEVNULL
    )
    if not made or made.returncode:
        pytest.skip("this sandbox does not allow mounts")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


class Sized(Module):
    """A checkpoint of about 250 kB."""

    def __init__(self):
        super().__init__()
        self.model.register_buffer("ballast", torch.ones(60_000))


def test_training_on_a_full_disk_ends_with_the_way_on(small_disk):
    with pytest.raises(RunFolderError, match=r"No space left on device.*intact.*same command"):
        run(small_disk, criteria=ALL, valid=True, max_epochs=9, module=Sized())
    last = read_checkpoint(small_disk / "last.ckpt")
    assert last["global_step"] >= 4
    assert not list(small_disk.glob("..saving*"))
    subprocess.run(["mount", "-o", "remount,size=9m", small_disk], check=True)
    run(
        small_disk, criteria=ALL, valid=True, max_epochs=9, module=Sized(),
        ckpt_path=small_disk / "last.ckpt",
    )  # fmt: skip
    assert read_checkpoint(small_disk / "last.ckpt")["global_step"] == 36
    assert len(read_index(small_disk)[ALL[0]]) == 9


def test_averaging_on_a_full_disk_leaves_the_old_average(small_disk):
    run(small_disk, criteria=[LOSS], valid=True, max_epochs=2, module=Sized())
    averaged = small_disk / "valid.loss.ave_2best.safetensors"
    averaged.write_bytes(b"old")
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"x" * (free.f_bavail * free.f_frsize - 50_000))
    with pytest.raises(RunFolderError, match=r"No space left on device.*It needs about 240"):
        average(small_disk, LOSS)
    assert averaged.read_bytes() == b"old"
    assert not list(small_disk.glob(".*"))
