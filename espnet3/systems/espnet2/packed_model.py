"""Models as ESPnet2 packs them, those of `espnet_model_zoo`: a zip or folder with `meta.yaml`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.config.trust import PackedModelError, leads_out
from espnet3.systems.asr.packed_archive import extract, is_archive
from espnet3.systems.espnet2.package import TASKS
from espnet3.systems.espnet2.training_config import read_config

_META = "meta.yaml"
_BLOCKS = ("yaml_files", "files")


@dataclass(frozen=True)
class PackedFiles:
    """The files of a packed model."""

    root: Path
    """Nothing outside of this folder is read."""
    config: Path
    weights: Path
    lm_config: Path | None
    lm_weights: Path | None
    keeper: Any
    """Removes an extracted folder when it is no longer referred to."""


def open_packed(path: str | os.PathLike[str], task: str) -> PackedFiles:
    """Open a packed model; nothing in it is executed.

    Args:
        path: A `.zip` or `.tar.gz`, or the folder that one was extracted to.
        task: That it was trained for.

    Raises:
        PackedModelError: It is missing or damaged, it is of another task, or a name in it leads out
            of its folder.
    """
    source = Path(path)
    keeper = extract(source) if is_archive(source) else None
    root = (source if keeper is None else Path(keeper.name)).resolve()
    meta = root / _META
    if not meta.is_file():
        raise PackedModelError(
            f"{source} has no {_META}, so it is no model that ESPnet2 packed.",
            fix="Give the zip of espnet_model_zoo, or the folder with its meta.yaml.",
        )
    names = _names(read_config(meta, "packed_model"), source)
    prefix = TASKS[task].argument
    files = {key: _inside(root, key, name, source) for key, name in names.items()}
    config, weights = f"{prefix}train_config", f"{prefix}model_file"
    if task == "lm":
        config, weights = "lm_train_config", "lm_file"
    for key in (config, weights):
        if key not in files:
            raise PackedModelError(
                f"{source} is no model of the task {task}: its {_META} names no {key}, but "
                f"{', '.join(files) or 'nothing'}.",
                fix="Write the task that it was trained for: task: TASK",
            )
    lm = (None, None) if task == "lm" else (files.get("lm_train_config"), files.get("lm_file"))
    return PackedFiles(root, files[config], files[weights], *lm, keeper)


def _names(meta: Mapping[str, Any], source: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for block in _BLOCKS:
        entries = meta.get(block) or {}
        if not isinstance(entries, Mapping):
            raise PackedModelError(f"{block} of {_META} in {source} is no list of files.")
        found.update({str(key): str(value) for key, value in entries.items()})
    return found


def _inside(root: Path, key: str, name: str, source: Path) -> Path:
    path = root / name
    outside = leads_out(name) or not path.resolve().is_relative_to(root)
    if outside:
        raise PackedModelError(
            f"{key} in {_META} of {source} is {name!r:.80}, which leads out of its folder.",
            fix="Do not use it; get the model from elsewhere.",
        )
    if not path.is_file():
        raise PackedModelError(
            f"{key} in {_META} of {source} is {name!r:.80}, which is not there.",
            fix="Get the model again.",
        )
    return path
