"""Stage 9, `pack_model`: pack a trained recogniser into one folder."""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3 import __version__
from espnet3.config.sources import names_places
from espnet3.errors import ConfigError, EspnetError, RunFolderError
from espnet3.io.atomic import temp_path, write_json, write_text
from espnet3.systems.asr.packed_archive import (
    CARD,
    FORMAT_VERSION,
    INFERENCE,
    META,
    METRICS,
    TRAINING,
    WEIGHTS,
    write_archive,
)
from espnet3.systems.asr.packed_files import FileCollector, write_weights
from espnet3.systems.asr.packed_model import load_packed_model, sha256
from espnet3.systems.asr.publication_config import PackConfig, load_publication_config
from espnet3.systems.asr.trained_model import find_weights, read_training_config, require_weights
from espnet3.systems.asr.trusted_targets import PackedModelError
from espnet3.systems.base.results_table import MEASURED_FROM, format_results

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)


def pack_model(loaded: "LoadedConfig") -> Path:
    """Write the folder of the packed model, and its archive; the same input gives the same bytes.

    What is there already is replaced when the new one is whole.

    Returns:
        The folder.

    Raises:
        ConfigError: something of the config is not there.
        RunFolderError: nothing is trained, or another folder is in the way.
    """
    plan = plan_packing(loaded)
    temporary = Path(temp_path(os.path.abspath(plan.output_dir)))
    try:
        temporary.mkdir(parents=True)
        _write(plan, temporary)
        _try_out(temporary, plan)
        _replace(temporary, plan.output_dir)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    logger.info("Packed %s to %s", plan.weights, plan.output_dir)
    if plan.archive is not None:
        write_archive(plan.output_dir, plan.archive, plan.name)
        logger.info("Archive: %s (%.1f MB)", plan.archive, plan.archive.stat().st_size / 1e6)
    return plan.output_dir


@names_places
def check_pack_model(loaded: "LoadedConfig") -> None:
    """Check the `pack` block; whether a model is there is known when the stage starts."""
    settings = load_publication_config(loaded).pack
    path = settings.inference_config
    if path is not None and not Path(path).is_file():
        raise ConfigError(
            key="pack.inference_config",
            value=path,
            problem="which does not exist",
            fix="Correct the path, which counts from the recipe's folder, or delete the line.",
        )


def describe_pack_model(loaded: "LoadedConfig") -> list[str]:
    """Return what would be packed, and where to."""
    plan = plan_packing(loaded)
    return [
        f"weights: {plan.weights}",
        f"decoder and its settings: {plan.inference or 'greedy CTC, as no run of infer is there'}",
        f"results: {plan.metrics or 'none, as nothing was measured'}",
        f"-> {plan.output_dir}",
        *([f"-> {plan.archive}"] if plan.archive else []),
    ]


def _write(plan: "PackPlan", folder: Path) -> None:
    collector = FileCollector(folder)
    training = read_training_config(plan.weights)
    training = {**training, "model": collector.collect(training["model"], "model")}
    _write_yaml(folder / TRAINING, training)
    if plan.inference is not None:
        inference = read_config(plan.inference)
        block = dict(inference.get("model") or {})
        if "decoder" in block:
            block["decoder"] = collector.collect(block["decoder"], "decoder")
        block.update({"weights": WEIGHTS} if "weights" in block else {})
        _write_yaml(folder / INFERENCE, {**inference, "model": block})
    write_weights(plan.weights, folder / WEIGHTS)
    metrics = None
    if plan.metrics is not None:
        metrics = _published(json.loads(plan.metrics.read_text(encoding="utf-8")))
        write_json(folder / METRICS, metrics)
    facts = _facts(plan, training)
    write_text(folder / CARD, model_card(plan.name, plan.settings, metrics, facts))
    _write_meta(plan, folder)


def _write_meta(plan: "PackPlan", folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    settings = plan.settings
    meta = {
        "format": FORMAT_VERSION,
        "name": plan.name,
        "task": "asr",
        "espnet3": __version__,
        "license": settings.license,
        "language": settings.languages,
        "weights": plan.weights.name,
        "sha256": {path.relative_to(folder).as_posix(): sha256(path) for path in files},
    }
    _write_yaml(folder / META, meta)


def _write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    from omegaconf import OmegaConf

    from espnet3.config.redact import redact

    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, OmegaConf.to_yaml(OmegaConf.create(redact(values))))


def _facts(plan: "PackPlan", training: Mapping[str, Any]) -> dict[str, Any]:
    model = training["model"]
    parts = {key: value for key, value in model.items() if isinstance(value, Mapping)}
    named = {key: str(part.get("_target_", "")).rpartition(".")[2] for key, part in parts.items()}
    rate = (model.get("frontend") or {}).get("sample_rate") if "frontend" in parts else None
    return {
        "model": f"`{model.get('_target_')}`",
        **{key: f"`{name}`" for key, name in named.items() if name},
        "sample rate": rate and f"{rate} Hz",
        "weights": f"`{plan.weights.name}`",
        "ESPnet3": __version__,
    }


def _published(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers without the paths and times of the files that they come from."""
    kept = ("settings", "n_missing", "on_missing", "run")

    def cleaned(numbers: Any) -> Any:
        if not isinstance(numbers, Mapping) or MEASURED_FROM not in numbers:
            return numbers
        record = {key: value for key, value in numbers[MEASURED_FROM].items() if key in kept}
        return {**numbers, MEASURED_FROM: record}

    return {
        name: {test_set: cleaned(numbers) for test_set, numbers in sets.items()}
        if isinstance(sets, Mapping)
        else sets
        for name, sets in metrics.items()
    }


def _try_out(folder: Path, plan: "PackPlan") -> None:
    """Load the model as a user would, so that every published one loads."""
    try:
        load_packed_model(folder, "cpu")
    except PackedModelError as error:
        logger.warning(
            "Others can load this model only with trust_remote_code=True, and with the code of "
            "the recipe installed: %s", error,
        )  # fmt: skip
        load_packed_model(folder, "cpu", trust=True)
    except EspnetError as error:
        raise RunFolderError(
            f"The packed model of {plan.weights} does not load: {error}"
        ) from error


def _replace(written: Path, target: Path) -> None:
    """Rename the new folder to its place; the old packed model goes first, and only such a one."""
    if target.exists() and not (target / META).is_file() and any(target.iterdir()):
        raise RunFolderError(
            f"{target} exists and is no packed model, so it is not replaced. Choose another "
            "folder: pack.output_dir=FOLDER"
        )
    old = Path(temp_path(os.path.abspath(target)))
    if target.exists():
        target.rename(old)
    written.rename(target)
    shutil.rmtree(old, ignore_errors=True)


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


@names_places
def plan_packing(loaded: "LoadedConfig") -> PackPlan:
    """Find all that goes into the packed model.

    Raises:
        ConfigError: a file of the config does not exist.
        RunFolderError: nothing is trained.
    """
    settings = load_publication_config(loaded).pack
    exp_dir = Path(loaded.config["exp_dir"])
    inference = _inference_config(settings, exp_dir)
    try:
        weights = _weights(settings, exp_dir)
    except RunFolderError as error:
        raise RunFolderError(
            f"{error} exp_dir{loaded.set_in('exp_dir')} is that of the training if its config is "
            "given as well: add --training_config conf/training.yaml"
        ) from None
    return PackPlan(
        settings=settings,
        name=settings.name or _default_name(loaded.config["recipe_dir"], exp_dir),
        weights=weights,
        inference=inference,
        metrics=_metrics(settings, inference, loaded.config.get("inference_dir")),
        output_dir=settings.folder(exp_dir),
    )


def _weights(settings: PackConfig, exp_dir: Path) -> Path:
    if settings.weights is None:
        return find_weights(exp_dir)
    require_weights(Path(settings.weights), "pack.weights")
    return Path(settings.weights)


def _inference_config(settings: PackConfig, exp_dir: Path) -> Path | None:
    if settings.inference_config is not None:
        return Path(settings.inference_config)
    last = exp_dir / _LAST_INFERENCE
    return last if last.is_file() else None


def _metrics(settings: PackConfig, inference: Path | None, folder: str | None) -> Path | None:
    if settings.metrics is not None:
        if not Path(settings.metrics).is_file():
            raise ConfigError(
                key="pack.metrics",
                value=settings.metrics,
                problem="which does not exist",
                fix="Stage measure (7) writes it; or delete the line.",
            )
        return Path(settings.metrics)
    folders = [folder]
    if inference is not None:
        folders.append(read_config(inference).get("inference_dir"))
    found = [Path(folder) / METRICS for folder in folders if folder]
    return next((file for file in found if file.is_file()), None)


def _default_name(recipe_dir: str, exp_dir: Path) -> str:
    folder = Path(os.path.abspath(recipe_dir))
    words = [folder.parent.name, folder.name, exp_dir.name]
    kept = ["".join(c if c.isalnum() or c in "._-" else "-" for c in word) for word in words]
    return "_".join(filter(None, kept)).lstrip("._-")[:96] or "model"


def read_config(file: Path) -> dict[str, Any]:
    """Return a config without interpolations."""
    from espnet3.config.load import load_config
    from espnet3.config.resolve import resolved

    values: dict[str, Any] = resolved(load_config(file).config)
    return values


def model_card(
    name: str, settings: PackConfig, metrics: Mapping[str, Any] | None, facts: Mapping[str, Any]
) -> str:
    """Return the text of the card.

    Args:
        name: Of the model.
        settings: What the config says of it.
        metrics: The content of metrics.json, if there is one.
        facts: Lines of the table under "Model", by what they are about.
    """
    parts = [
        _front_matter(settings),
        f"# {name}",
        settings.description or "A speech recogniser, trained with ESPnet3.",
        _usage(name),
        _results(metrics),
        "## Data",
        settings.data or "Not stated by those who packed the model.",
        "## Model",
        _table(facts),
        f"## Licence\n\n{settings.license}",
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _front_matter(settings: PackConfig) -> str:
    from omegaconf import OmegaConf

    values: dict[str, Any] = {
        "license": settings.license,
        "language": settings.languages,
        "library_name": "espnet3",
        "pipeline_tag": "automatic-speech-recognition",
        "tags": ["espnet3", "audio", "automatic-speech-recognition", *settings.tags],
        "datasets": list(settings.datasets),
    }
    filled = {key: value for key, value in values.items() if value}
    return f"---\n{OmegaConf.to_yaml(OmegaConf.create(filled))}---"


def _usage(name: str) -> str:
    return (
        "## How to use\n\n```python\n"
        "from espnet3.systems.asr.inference import Speech2Text\n\n"
        f'model = Speech2Text.from_packed("{name}")  # this folder, or its .tar.gz\n'
        'print(model("speech.wav").text)\n```'
    )


def _results(metrics: Mapping[str, Any] | None) -> str:
    if not metrics:
        return "## Results\n\nNot measured."
    # One level deeper than in a file of their own.
    lines = format_results(metrics).splitlines()
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in lines)


def _table(facts: Mapping[str, Any]) -> str:
    rows = [f"| {key} | {value} |" for key, value in facts.items() if value not in (None, "")]
    return "\n".join(["| | |", "|---|---|", *rows])
