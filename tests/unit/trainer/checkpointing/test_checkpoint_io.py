import errno
import os
import resource
import subprocess

import pytest
import torch

from espnet3.errors import RunFolderError
from espnet3.trainer.checkpointing.checkpoint_io import (
    explain_trouble,
    n_bytes,
    read_checkpoint,
)
from espnet3.trainer.trainer import AtomicCheckpointIO
from tests.helpers.phrases import says_to_rerun

CHECKPOINT = {"state_dict": {"model.a": torch.arange(6.0)}, "epoch": 3, "lists": [1, (2, "x")]}


class Thing:
    """Not a plain value."""


def test_what_is_written_is_read_again(awkward):
    io = AtomicCheckpointIO()
    io.save_checkpoint(CHECKPOINT, awkward / "new" / "last.ckpt")
    loaded = io.load_checkpoint(awkward / "new" / "last.ckpt", weights_only=False)
    assert torch.equal(loaded["state_dict"]["model.a"], torch.arange(6.0))
    assert (loaded["epoch"], loaded["lists"]) == (3, [1, (2, "x")])
    assert os.listdir(awkward / "new") == ["last.ckpt"]
    io.remove_checkpoint(awkward / "new" / "last.ckpt")
    io.remove_checkpoint(awkward / "new" / "last.ckpt")
    assert os.listdir(awkward / "new") == []
    with pytest.raises(TypeError, match=r"leave them out"):
        io.save_checkpoint(CHECKPOINT, awkward / "a.ckpt", storage_options={})


def test_a_folder_is_removed_and_read_without_its_weights(tmp_path):
    folder = tmp_path / "last.ckpt"
    folder.mkdir()
    torch.save({"epoch": 2}, folder / "meta.pt")
    assert read_checkpoint(folder) == {"epoch": 2}
    AtomicCheckpointIO().remove_checkpoint(folder)
    assert not folder.exists()


def test_objects_are_refused_when_saving_and_the_old_file_stays(tmp_path):
    path = tmp_path / "last.ckpt"
    io = AtomicCheckpointIO()
    io.save_checkpoint(CHECKPOINT, path)
    state = {**CHECKPOINT, "callbacks": {"Mine": {"parts": [1, Thing()]}}}
    with pytest.raises(RunFolderError, match=r"callbacks.Mine.parts.1 \(.*Thing\).*state_dict\(\)"):
        io.save_checkpoint(state, path)
    assert io.load_checkpoint(path)["epoch"] == 3
    assert os.listdir(tmp_path) == ["last.ckpt"]


def test_objects_are_never_loaded(tmp_path):
    torch.save({"state_dict": {}, "thing": Thing()}, tmp_path / "a.ckpt")
    with pytest.raises(RunFolderError, match=r"Thing.*can run code.*torch.save\(model.state_dict"):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "a.ckpt", weights_only=False)


@pytest.mark.parametrize("n", [0, 10, 700, -100])
def test_a_damaged_file_is_named_with_the_ways_on(tmp_path, n):
    path = tmp_path / "last.ckpt"
    torch.save(CHECKPOINT, path)
    path.write_bytes(path.read_bytes()[:n])
    with pytest.raises(RunFolderError, match=r"last.ckpt is damaged or cut off.*resume=never"):
        read_checkpoint(path)


def test_a_missing_file_and_one_of_another_kind_are_told(tmp_path):
    with pytest.raises(RunFolderError, match=r"does not exist. Check the path"):
        read_checkpoint(tmp_path / "no.ckpt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(RunFolderError, match=r"holds a list.*torch.save\(model.state_dict"):
        read_checkpoint(tmp_path / "list.pt")


def test_a_file_without_a_zip_container_is_read(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert torch.equal(read_checkpoint(tmp_path / "old.pt", mmap=True)["a"], torch.ones(2))


def test_shared_tensors_count_once():
    a = torch.zeros(100)
    assert n_bytes({"a": a, "b": [a[:10], {"c": torch.zeros(1)}]}) == 404


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small disk"
    folder.mkdir()
    made = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], stderr=subprocess.DEVNULL
    )
    if not made or made.returncode:
        pytest.skip("this sandbox does not allow mounts")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_told_and_the_last_good_one_is_intact(small_disk):
    io = AtomicCheckpointIO()
    io.save_checkpoint(CHECKPOINT, small_disk / "last.ckpt")
    large = {"state_dict": {f"model.{i}": torch.zeros(10_000) for i in range(20)}}
    with pytest.raises(RunFolderError) as caught:
        io.save_checkpoint(large, small_disk / "last.ckpt")
    text = str(caught.value)
    assert f"Cannot write last.ckpt in {small_disk}: No space left on device" in text
    assert "needs about 800.0 kB" in text
    assert "kB are free" in text
    assert "are intact" in text
    assert says_to_rerun(text)
    assert os.listdir(small_disk) == ["last.ckpt"]
    assert io.load_checkpoint(small_disk / "last.ckpt")["epoch"] == 3


def test_a_limit_on_file_size_is_told(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(RunFolderError, match=r"File too large.*Make room"):
            AtomicCheckpointIO().save_checkpoint(CHECKPOINT, tmp_path / "last.ckpt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


def test_other_errors_are_left_alone(tmp_path):
    with pytest.raises(RuntimeError, match=r"mine"):
        with explain_trouble(tmp_path / "a"):
            raise RuntimeError("mine")
    with pytest.raises(RunFolderError, match=r"Read-only file system"):
        with explain_trouble(tmp_path / "a"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
