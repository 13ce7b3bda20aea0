"""Open what `pack_model` wrote: a folder or an archive, checked, and without running its code."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from espnet3.errors import suggest
from espnet3.systems.asr.packed_archive import extract, is_archive, model_in
from espnet3.systems.asr.packed_layout import (
    FORMAT_VERSION,
    INFERENCE,
    META,
    TRAINING,
    WEIGHTS,
)
from espnet3.systems.asr.trained_model import build_trained
from espnet3.systems.asr.trusted_targets import PackedModelError, check_trusted

_SETTINGS = ("decoder", "n_best", "word_times", "window_seconds", "overlap_seconds")


def is_packed(folder: Path) -> bool:
    """Tell whether a folder is a packed model."""
    return (folder / META).is_file()


def open_packed(path: str | os.PathLike[str]) -> tuple[Path, Any]:
    """Return the folder of a packed model, its files checked, and what keeps it.

    An archive is extracted to a temporary folder, which is gone with its keeper.

    Raises:
        PackedModelError: It is none, or damaged.
    """
    place = Path(path)
    keeper = extract(place) if is_archive(place) else None
    folder = place if keeper is None else model_in(Path(keeper.name))
    _check(folder, place)
    return folder, keeper


def load_packed_model(folder: Path, device: str, *, trust: bool = False) -> Any:
    """Build the model of a packed folder.

    Raises:
        PackedModelError: Its config names foreign code, and is not trusted.
    """
    config = read_yaml(folder / TRAINING)
    block = config.get("model")
    if not isinstance(block, Mapping):
        raise PackedModelError(f"{folder / TRAINING} has no model block. Pack the model again.")
    if not trust:
        check_trusted(block, "model", TRAINING)
    return build_trained(_inside(block, folder, "model"), folder / WEIGHTS, device)


def packed_settings(folder: Path, *, trust: bool, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the model was packed with, but for those that are given."""
    from espnet3.config.instantiate import instantiate

    file = folder / INFERENCE
    if not file.is_file():
        return {}
    block = read_yaml(file).get("model")
    if not isinstance(block, Mapping):
        return {}
    wanted = {k: v for k, v in block.items() if k in _SETTINGS and k not in given}
    if wanted.get("decoder") is not None:
        if not trust:
            check_trusted(wanted["decoder"], "model.decoder", INFERENCE)
            _check_other_configs(folder)
        inside = _inside(wanted["decoder"], folder, "model.decoder")
        wanted["decoder"] = instantiate(inside, key="model.decoder")
    return wanted


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a YAML file as it is: nothing is interpolated, nothing else is read.

    Raises:
        PackedModelError: It is missing or malformed.
    """
    from omegaconf import OmegaConf

    try:
        values = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except Exception as error:  # of YAML or OmegaConf, which have many
        raise PackedModelError(
            f"{file} cannot be read ({type(error).__name__}: {error!s:.100}). Copy the packed "
            "model anew."
        ) from error
    if not isinstance(values, dict):
        raise PackedModelError(f"{file} is no mapping. Copy the packed model anew.")
    return {str(key): value for key, value in values.items()}


def _check_other_configs(folder: Path) -> None:
    """Check configs that a decoder may read by itself, such as that of a language model."""
    known = {folder / name for name in (META, TRAINING, INFERENCE)}
    for file in sorted({*folder.rglob("*.yaml"), *folder.rglob("*.yml")} - known):
        name = file.relative_to(folder).as_posix()
        values = read_yaml(file)
        check_trusted(values, "", name)
        if "defaults" in values:
            raise PackedModelError(
                f"{name} reads other files by its defaults list, which a packed config does not. "
                "Pack the model again with: python run.py --stages pack_model"
            )


def _inside(values: Any, folder: Path, key: str) -> Any:
    """Return a copy in which paths of the packed folder are absolute, and no others are named.

    Raises:
        PackedModelError: A path leads out of the folder.
    """
    if isinstance(values, Mapping):
        return {name: _inside(value, folder, f"{key}.{name}") for name, value in values.items()}
    if isinstance(values, list):
        return [_inside(value, folder, f"{key}.{i}") for i, value in enumerate(values)]
    if not isinstance(values, str):
        return values
    path = PurePosixPath(values)
    if path.is_absolute() or ".." in path.parts:
        raise PackedModelError(
            f"{key} is {values!r:.80}, a path that leads out of the packed model. Pack it again "
            "with: python run.py --stages pack_model"
        )
    found = folder / values
    return str(found.absolute()) if values and found.exists() else values


def _check(folder: Path, named: Path) -> None:
    if folder.is_file():
        raise PackedModelError(
            f"{named} is a file of an unknown kind. Give the folder that the stage pack_model "
            "wrote, or its archive, whose name ends in .tar.gz or .zip"
        )
    if not folder.is_dir():
        siblings = [one.name for one in named.absolute().parent.glob("*")]
        raise PackedModelError(
            f"{named} does not exist.{suggest(named.name, siblings)} Give the folder or archive "
            "that the stage pack_model wrote."
        )
    if not is_packed(folder):
        raise PackedModelError(
            f"{named} is no packed model: it has no {META}. Pack one with: python run.py --stages "
            "pack_model; or load an experiment's folder: Speech2Text.from_experiment(...)"
        )
    meta = read_yaml(folder / META)
    version = meta.get("format")
    if version != FORMAT_VERSION:
        raise PackedModelError(
            f"{named} is of format {version!r}, and this version of ESPnet3 reads format "
            f"{FORMAT_VERSION}. Update ESPnet3, or pack the model again."
        )
    sums = meta.get("sha256")
    _check_sums(folder, named, sums if isinstance(sums, Mapping) else {})


def _check_sums(folder: Path, named: Path, sums: Mapping[str, str]) -> None:
    for name, wanted in sums.items():
        file = folder / name
        if not file.is_file() or sha256(file) != wanted:
            state = "damaged" if file.is_file() else "missing"
            raise PackedModelError(
                f"{name} of {named} is {state}: its checksum in {META} does not fit. Copy the "
                "packed model anew."
            )
    for name in (WEIGHTS, TRAINING):
        if name not in sums:
            raise PackedModelError(f"{named} has no {name} in its {META}. Pack the model again.")


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
