"""What goes into a packed model, and where it is found."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import set_in
from espnet3.errors import ConfigError, RunFolderError
from espnet3.systems.asr.packed_layout import METRICS
from espnet3.systems.asr.publication_config import PackConfig, load_publication_config
from espnet3.systems.asr.trained_model import require_weights
from espnet3.systems.asr.trained_weights import find_weights

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

_LAST_INFERENCE = "config/infer.yaml"
"""What the stage `infer` leaves in the experiment's folder."""


@dataclass(frozen=True)
class PackPlan:
    """What goes into the packed model, and where it is written."""

    settings: PackConfig
    name: str
    weights: Path
    inference: Path | None
    metrics: Path | None
    output_dir: Path

    @property
    def archive(self) -> Path | None:
        """The file beside the folder, if there is to be one."""
        beside = self.output_dir.parent / f"{self.name}.tar.gz"
        return beside if self.settings.archive else None


def plan_packing(loaded: "LoadedConfig") -> PackPlan:
    """Find all that goes into the packed model.

    Raises:
        ConfigError: a file of the config does not exist.
        RunFolderError: nothing is trained.
    """
    settings = load_publication_config(loaded).pack
    exp_dir = Path(loaded.config["exp_dir"])
    inference = _inference_config(settings, exp_dir)
    return PackPlan(
        settings=settings,
        name=settings.name or _default_name(loaded, exp_dir),
        weights=_weights(settings, exp_dir, loaded),
        inference=inference,
        metrics=_metrics(settings, inference, loaded),
        output_dir=packed_folder(loaded, settings),
    )


def packed_folder(loaded: "LoadedConfig", settings: PackConfig) -> Path:
    """Return the folder of the packed model."""
    return Path(settings.output_dir or Path(loaded.config["exp_dir"]) / "packed")


def _weights(settings: PackConfig, exp_dir: Path, loaded: "LoadedConfig") -> Path:
    if settings.weights is not None:
        require_weights(Path(settings.weights), set_in("pack.weights", loaded))
        return Path(settings.weights)
    try:
        return find_weights(exp_dir)
    except RunFolderError as error:
        raise RunFolderError(
            f"{error} exp_dir{set_in('exp_dir', loaded)} is that of the training if its config is "
            "given as well: add --training_config conf/training.yaml"
        ) from None


def _inference_config(settings: PackConfig, exp_dir: Path) -> Path | None:
    if settings.inference_config is not None:
        return Path(settings.inference_config)
    last = exp_dir / _LAST_INFERENCE
    return last if last.is_file() else None


def _metrics(settings: PackConfig, inference: Path | None, loaded: "LoadedConfig") -> Path | None:
    if settings.metrics is not None:
        if not Path(settings.metrics).is_file():
            raise ConfigError(
                f"pack.metrics is {settings.metrics!r}{set_in('pack.metrics', loaded)}, which does "
                "not exist. Stage measure (7) writes it; or delete the line."
            )
        return Path(settings.metrics)
    folders = [loaded.config.get("inference_dir")]
    if inference is not None:
        folders.append(read_config(inference).get("inference_dir"))
    found = [Path(folder) / METRICS for folder in folders if folder]
    return next((file for file in found if file.is_file()), None)


def _default_name(loaded: "LoadedConfig", exp_dir: Path) -> str:
    folder = Path(os.path.abspath(loaded.config["recipe_dir"]))
    words = [folder.parent.name, folder.name, exp_dir.name]
    kept = ["".join(c if c.isalnum() or c in "._-" else "-" for c in word) for word in words]
    return "_".join(filter(None, kept)).lstrip("._-")[:96] or "model"


def read_config(file: Path) -> dict[str, Any]:
    """Return a config without interpolations."""
    from espnet3.config.load import load_config
    from espnet3.config.resolve import resolved

    values: dict[str, Any] = resolved(load_config(file).config)
    return values
