"""Give one written checkpoint its names: files and folders, by link and rename."""

import os
import shutil
from pathlib import Path

from espnet3.io.atomic import fsync_dir, fsync_file, temp_path
from espnet3.trainer.checkpointing.checkpoint_io import explain_trouble, remove_path

STAGING = ".saving.ckpt"
"""Where a checkpoint is written before it gets its names; a leftover is overwritten."""


def publish(written: Path, names: list[str]) -> None:
    """Let each name in the folder of `written` stand for it, replacing what was there.

    The data is written once: the names are hard links where the file system has them. `written`
    itself is gone afterwards.
    """
    for name in names[1:]:
        _replace(_link(written), written.parent / name)
    _replace(written, written.parent / names[0])
    fsync_dir(written.parent)


def restore_folder(target: Path) -> None:
    """Undo a replacement of a folder that was killed between its two renames."""
    old = _old(target)
    if old.exists() and not target.exists():
        os.rename(old, target)
    elif old.exists():
        remove_path(old)


def _link(written: Path) -> Path:
    copy = Path(temp_path(str(written)))
    with explain_trouble(copy):
        if written.is_dir():
            shutil.copytree(written, copy, copy_function=_link_file)
        else:
            _link_file(written, copy)
    return copy


def _link_file(source: os.PathLike[str] | str, target: os.PathLike[str] | str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        fsync_file(target)


def _replace(source: Path, target: Path) -> None:
    # A folder cannot be renamed onto another one; a kill between the two is undone at the resume.
    if target.is_dir() and not target.is_symlink():
        remove_path(_old(target))
        os.rename(target, _old(target))
    os.replace(source, target)
    remove_path(_old(target))


def _old(target: Path) -> Path:
    return target.parent / f".old-{target.name}"
