"""Find the models that an ESPnet2 recipe has trained, and write how they are decoded here."""

import pickletools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from espnet3.migration.data_sets import OLD_RECIPE
from espnet3.migration.journal import Origin
from espnet3.migration.source_recipe import ConfigFile, SourceRecipe

OLD_CONFIG = "conf/inference_espnet2.yaml"
_DECODING = (
    "beam_size",
    "ctc_weight",
    "lm_weight",
    "penalty",
    "maxlenratio",
    "minlenratio",
    "nbest",
)
_NOT_DECODING = ("batch_size", "ngpu", "num_workers", "log_level")
_PLAIN_MODULES = ("torch", "collections", "numpy")


def old_model(recipe: SourceRecipe, decode: ConfigFile) -> dict[str, Any] | None:
    """Return the `model` block that decodes what the old recipe trained; None if it has nothing.

    Args:
        recipe: The old one.
        decode: Its decode config, whose options keep their names and meaning.
    """
    wanted = recipe.get("inference_asr_model")
    trained = [
        folder
        for folder in sorted(recipe.folder.glob(f"{recipe.get('expdir')}/asr_*"))
        if (folder / "config.yaml").is_file() and (folder / wanted).is_file()
    ]
    if not trained:
        return None
    stem = Path(recipe.get("asr_config")).stem.removeprefix("train_")
    chosen = next((one for one in trained if stem and stem in one.name), trained[0])
    for other in trained:
        other_place = str(other.relative_to(recipe.folder))
        if other != chosen:
            note = f"another training; write its files into model of {OLD_CONFIG}"
            recipe.journal.left_out(Origin(other_place), "training", "", note)
    _note_weights(recipe, chosen / wanted)
    place = chosen.relative_to(recipe.folder).as_posix()
    model = {
        "_target_": "espnet3.systems.espnet2.inference.ESPnet2Inference",
        "task": "asr",
        "config": f"${{{OLD_RECIPE}}}/{place}/config.yaml",
        "weights": f"${{{OLD_RECIPE}}}/{place}/{wanted}",
        **old_language_model(recipe, decode),
    }
    return {**model, **decoding_options(decode, has_lm="lm_file" in model)}


def decoding_options(decode: ConfigFile, *, has_lm: bool) -> dict[str, Any]:
    """Return the options of a decode config under ESPnet2's names; others go to `options`."""
    named: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for key, value in decode.values.items():
        if key in _DECODING:
            if key != "lm_weight" or has_lm:
                named[key] = value
        elif key not in _NOT_DECODING and value is not None:
            options[key] = value
    return named | ({"options": options} if options else {})


def old_language_model(recipe: SourceRecipe, decode: ConfigFile) -> Mapping[str, str]:
    """Return the keys that name the language model that the old recipe trained, if one is used."""
    if not recipe.is_on("use_lm") or not decode.values.get("lm_weight", 1.0):
        return {}
    wanted = recipe.get("inference_lm")
    for folder in sorted(recipe.folder.glob(f"{recipe.get('expdir')}/lm_*")):
        if (folder / "config.yaml").is_file() and (folder / wanted).is_file():
            place = folder.relative_to(recipe.folder).as_posix()
            recipe.journal.taken(Origin(f"{place}/{wanted}"), "weights", "", OLD_CONFIG)
            return {
                "lm_train_config": f"${{{OLD_RECIPE}}}/{place}/config.yaml",
                "lm_file": f"${{{OLD_RECIPE}}}/{place}/{wanted}",
            }
    origin = recipe.origin("inference_lm")
    note = f"the old recipe has no trained language model, so {OLD_CONFIG} decodes without one"
    recipe.journal.changes(origin, "--inference_lm", wanted, note)
    return {}


def _note_weights(recipe: SourceRecipe, file: Path) -> None:
    origin = Origin(str(file.relative_to(recipe.folder)))
    recipe.journal.taken(origin, "weights", "", OLD_CONFIG, "needs the extra espnet2")
    objects = foreign_objects(file)
    if objects:
        recipe.journal.todo(
            f"{origin} holds objects beside tensors ({', '.join(objects[:3])}), and reading them "
            "could run code of whoever wrote the file. If you trust them, write into "
            f"{OLD_CONFIG}: model: {{trust_remote_code: true}}"
        )


def foreign_objects(file: Path) -> list[str]:
    """Return what a `.pth` holds beside tensors, by class; nothing of it is loaded.

    Empty also for a file of the old format, which does not tell without being read.
    """
    if not zipfile.is_zipfile(file):
        return []
    found: list[str] = []
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.endswith("/data.pkl"):
                found += _globals(archive.read(name))
    return sorted({name for name in found if name.split(".")[0] not in _PLAIN_MODULES})


def _globals(pickled: bytes) -> list[str]:
    found, texts = [], ["", ""]
    try:
        for operation, argument, _ in pickletools.genops(pickled):
            if operation.name == "GLOBAL":
                found.append(str(argument).replace(" ", "."))
            elif operation.name == "STACK_GLOBAL":
                found.append(".".join(texts[-2:]))
            elif isinstance(argument, str):
                texts.append(argument)
    except ValueError:  # cut off: whoever loads it says so
        return found
    return found
