"""Checkpoint files: written atomically, published by link and rename, read without running code.

Without Lightning, which would take each worker of an inference a second to import.
"""

import errno
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from espnet3.config.trust import PackedModelError, checked_path, current_trust
from espnet3.errors import RunFolderError
from espnet3.io.atomic import StrPath, fsync_dir, fsync_file, open_atomic, temp_path

STAGING = ".saving.ckpt"
"""Where a checkpoint is written before it gets its names; a leftover is overwritten."""

_FOLDER_META = "meta.pt"  # what Lightning calls the part of a sharded checkpoint without weights
_PLAIN = "tensors, numbers, strings, lists and dicts"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_checkpoint(checkpoint: dict[str, Any], path: StrPath) -> None:
    """Create or replace a checkpoint file atomically.

    Raises:
        RunFolderError: the disk is full or the folder not writable, or the file could not be read
            again because it holds something else than plain values. `path` is as it was.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with explain_trouble(path, checkpoint), open_atomic(path, "wb") as file:
        torch.save(checkpoint, file)
        file.flush()
        # Before the rename: a checkpoint that could not be read again must not replace one that
        # can.
        _refuse_objects(file.name, checkpoint, path)


def read_checkpoint(path: StrPath, *, mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint file to the CPU; nothing in it can run code.

    Args:
        path: A file; of a folder (sharded checkpoint), all but weights and optimizers is read.
        mmap: Read tensors only when they are used, so that the rest of a large file is cheap.

    Raises:
        RunFolderError: there is no such file, it is damaged, or it holds Python objects.
    """
    file = Path(path)
    if file.is_dir():
        file = file / _FOLDER_META
    if not file.is_file():
        raise RunFolderError(f"The checkpoint {file} does not exist.", fix="Check the path.")
    try:
        # torch can map its zip format only; files from before torch 1.6 have another one.
        mmap = mmap and zipfile.is_zipfile(file)
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    # A damaged file makes torch.load fail in pickle, in zip or in C++, each with its own type.
    except Exception as error:
        raise RunFolderError(_unreadable(file, error)) from error
    if not isinstance(loaded, dict):
        raise RunFolderError(
            f"{file} holds a {type(loaded).__name__}, no checkpoint.",
            fix="Give a file that was written "
            "by a training, or by torch.save(model.state_dict(), path).",
        )
    return loaded


@contextmanager
def explain_trouble(path: StrPath, content: Any = None) -> Iterator[None]:
    """Turn a full or read-only disk into an error that says what is needed and what is intact."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch's zip writer fails a second time at its end, with an error that says nothing.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise RunFolderError(_cannot_write(path, cause, content)) from error


def remove_path(path: StrPath) -> None:
    """Remove a file or a folder, if it is there."""
    # rmtree refuses a link to a folder; the link goes, and the folder stays.
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        Path(path).unlink(missing_ok=True)


def _cannot_write(path: StrPath, cause: OSError, content: Any) -> str:
    folder = os.path.dirname(os.path.abspath(path))
    text = f"Cannot write {os.path.basename(path)} in {folder}: {cause.strerror or cause}."
    if cause.errno in _FULL:
        needed, free = n_bytes(content), shutil.disk_usage(folder).free
        text += f" It needs about {_size(needed)}; {_size(free)} are free."
    return (
        f"{text} The checkpoints that were there before are intact. Make room, or choose another "
        "folder with exp_dir=..., and run the same command again: it resumes from last.ckpt."
    )


def n_bytes(value: Any) -> int:
    """Return the size of all tensors in nested dicts and lists, shared ones counted once."""
    tensors = (leaf for _, leaf in _leaves(value) if isinstance(leaf, torch.Tensor))
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple | set):
        for index, part in enumerate(value):
            yield from _leaves(part, f"{key}.{index}")
    else:
        yield key, value


def _refuse_objects(written: str, checkpoint: dict[str, Any], path: StrPath) -> None:
    # At the first save, not at the resume, when it would be too late.
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(written)
    if not unsafe:
        return
    where = [
        f"{key} ({_type_name(value)})"
        for key, value in _leaves(checkpoint)
        if _type_name(value) in unsafe
    ]
    raise RunFolderError(
        f"{os.path.basename(path)} was not saved, since training could not resume from it: it "
        f"holds {', '.join(where[:5] or unsafe[:5])}. A checkpoint may hold only {_PLAIN}; change "
        "the state_dict() of that callback, optimizer or scheduler, or take it out of the config."
    )


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _unreadable(file: Path, error: Exception) -> str:
    try:
        unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    # A damaged file fails here too, and then the damage is what to report.
    except Exception:
        unsafe = []
    if unsafe:
        return (
            f"{file} was not loaded: it holds Python objects ({', '.join(sorted(unsafe)[:5])}), "
            "and loading those can run code. Save it again with weights only, where you trust it: "
            "torch.save(model.state_dict(), path)"
        )
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return (
        f"The checkpoint {file} is damaged or cut off ({file.stat().st_size} bytes): "
        f"{reason[0][:200]} Delete it, and resume from another with "
        "fit.ckpt_path=<exp_dir>/epoch<E>_step<S>.ckpt, or start from scratch with resume=never."
    )


def _size(n: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return f"{n} bytes"


def publish(written: Path, names: list[str]) -> None:
    """Let each name in the folder of `written` stand for it, replacing what was there.

    The data is written once: the names are hard links where the file system has them. `written`
    itself is gone afterwards.
    """
    # The links first: the last rename takes `written` itself away.
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
        # Some network and FUSE file systems have no hard links.
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


PREFIX = "model."
"""Before the names of the model's parameters in a Lightning checkpoint."""


def load_weights(path: StrPath) -> dict[str, torch.Tensor]:
    """Return the weights under the names of the bare model, on the CPU.

    Args:
        path: `.safetensors`, a checkpoint of a training, or what `torch.save(model.state_dict())`
            wrote. Other values in it, such as the state of the optimizer, are left out.

    Raises:
        RunFolderError: it is missing or damaged, or has no weights.
        PackedModelError: a packed model names them, and they are none of its own.
    """
    if Path(path).suffix == ".safetensors":
        return _load_safetensors(path)
    trust = current_trust()
    if trust is not None and not trust.code:
        raise PackedModelError(
            f"{path} is no .safetensors file, as all weights of a packed model are. Pack the model "
            "again with: python run.py --stages pack_model"
        )
    return weights_in(read_checkpoint(path, mmap=True), path)


def weights_in(checkpoint: dict[str, Any], path: StrPath) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint that was read; see `load_weights`."""
    if Path(path).is_dir():
        raise RunFolderError(
            f"{path} is a sharded checkpoint, a folder. Join its parts first: "
            f"python -m lightning.pytorch.utilities.consolidate_checkpoint {path}"
        )
    state = checkpoint.get("state_dict", checkpoint)
    weights = {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}
    if not weights:
        raise RunFolderError(
            f"{path} holds no weights, but {', '.join(map(str, state)) or 'nothing'}.",
            fix="Give a checkpoint of a training, or a .safetensors file.",
        )
    # Names of another program's model may start like that as well, but not all of them.
    if "state_dict" in checkpoint and all(name.startswith(PREFIX) for name in weights):
        return {name.removeprefix(PREFIX): value for name, value in weights.items()}
    return weights


def _load_safetensors(path: StrPath) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not Path(path).is_file():
        raise RunFolderError(f"The weights {path} do not exist.", fix="Check the path.")
    checked_path(path)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise RunFolderError(
            f"{path} is damaged or no safetensors file ({error}). Average again with stage 5, or "
            "copy it again."
        ) from error
