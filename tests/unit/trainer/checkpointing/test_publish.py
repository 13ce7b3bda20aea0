import os

import pytest

from espnet3.trainer.checkpointing import checkpoint_io as module
from espnet3.trainer.checkpointing.checkpoint_io import publish


@pytest.fixture
def written(awkward):
    path = awkward / ".saving.ckpt"
    path.write_text("new")
    (awkward / "last.ckpt").write_text("old")
    return path


def test_each_name_stands_for_the_same_file(written):
    folder = written.parent
    publish(written, ["last.ckpt", "epoch1_step2.ckpt"])
    assert sorted(os.listdir(folder)) == ["epoch1_step2.ckpt", "last.ckpt"]
    assert (folder / "last.ckpt").read_text() == "new"
    assert (folder / "last.ckpt").samefile(folder / "epoch1_step2.ckpt")


def test_without_hard_links_it_is_copied(written, monkeypatch):
    def refuse(*args):
        raise OSError("no hard links here")

    monkeypatch.setattr(module.os, "link", refuse)
    folder = written.parent
    publish(written, ["last.ckpt", "best.ckpt"])
    assert sorted(os.listdir(folder)) == ["best.ckpt", "last.ckpt"]
    assert (folder / "best.ckpt").read_text() == (folder / "last.ckpt").read_text() == "new"


def test_folders_of_sharded_checkpoints_are_replaced(tmp_path):
    for text in ("old", "new"):
        written = tmp_path / ".saving.ckpt"
        (written / "deep").mkdir(parents=True)
        (written / "deep" / "shard").write_text(text)
        publish(written, ["last.ckpt", "best.ckpt"])
    assert sorted(os.listdir(tmp_path)) == ["best.ckpt", "last.ckpt"]
    assert (tmp_path / "last.ckpt" / "deep" / "shard").read_text() == "new"
    assert (tmp_path / "best.ckpt" / "deep" / "shard").read_text() == "new"
