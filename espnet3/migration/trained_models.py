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
_FURTHER = (
    "dtype", "enh_s2t_task", "hugging_face_decoder", "hugging_face_decoder_conf",
    "lang_prompt_token", "max_mask_parallel", "max_seq_len", "multi_asr", "ngram_file",
    "ngram_weight", "nlp_prompt_token", "normalize_length", "partial_ar", "prompt_token_file",
    "quantize_asr_model", "quantize_dtype", "quantize_lm", "quantize_modules", "streaming",
    "threshold_probability", "time_sync", "transducer_conf",
)  # fmt: skip
"""Further options of ESPnet2's decoding, for `options`."""
_NOT_DECODING = {
    "batch_size": "batch_seconds of the inference config", "ngpu": "device, parallel.env",
    "num_workers": "parallel.n_workers", "log_level": "not used", "output_dir": "inference_dir",
    "seed": "nothing is drawn", "allow_variable_data_keys": "not used",
}  # fmt: skip
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
    chosen = _chosen(recipe, trained)
    if chosen is None:
        for one in trained:
            note = (
                f"of another config than --asr_config; to decode it, see {OLD_CONFIG} of the docs"
            )
            recipe.journal.left_out(Origin(str(one.relative_to(recipe.folder))), "training", "",
                                    note)  # fmt: skip
        return None
    for other in trained:
        other_place = str(other.relative_to(recipe.folder))
        if other != chosen:
            note = f"another training; write its files into model of {OLD_CONFIG}"
            recipe.journal.left_out(Origin(other_place), "training", "", note)
    _note_weights(recipe, chosen / wanted)
    place = chosen.relative_to(recipe.folder).as_posix()
    lm = old_language_model(recipe, decode)
    if not lm and recipe.is_on("use_lm") and decode.values.get("lm_weight", 1.0):
        note = f"the old recipe has no trained language model, so {OLD_CONFIG} decodes without one"
        recipe.journal.left_out(recipe.origin("inference_lm"), "--inference_lm",
                                recipe.get("inference_lm"), note)  # fmt: skip
    model = {
        "_target_": "espnet3.systems.espnet2.inference.ESPnet2Inference",
        "task": "asr",
        "config": f"${{{OLD_RECIPE}}}/{place}/config.yaml",
        "weights": f"${{{OLD_RECIPE}}}/{place}/{wanted}",
        **lm,
    }
    return {**model, **decoding_options(decode, has_lm="lm_file" in model)}


def _chosen(recipe: SourceRecipe, trained: list[Path]) -> Path | None:
    """Return the training that the call of `asr.sh` would decode, by the names that it gives."""
    stem = Path(recipe.get("asr_config")).stem
    expdir = recipe.get("expdir")
    names = [recipe.get("asr_exp"), f"{expdir}/asr_{recipe.get('asr_tag')}"]
    exact = [one for one in trained if one.relative_to(recipe.folder).as_posix() in names]
    tagged = [one for one in trained if one.name.startswith(f"asr_{stem}_")]
    same = [one for one in trained if one.name == f"asr_{stem}"]
    return next(iter([*exact, *same, *tagged]), None)


def decoding_options(decode: ConfigFile, *, has_lm: bool) -> dict[str, Any]:
    """Return the options of a decode config under ESPnet2's names; others go to `options`."""
    named: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for key, value in decode.values.items():
        if key in _DECODING:
            if key != "lm_weight" or has_lm:
                named[key] = value
        elif key in _FURTHER and value is not None:
            options[key] = value
    return named | ({"options": options} if options else {})


def note_decoding(recipe: SourceRecipe, decode: ConfigFile, made: Mapping[str, Any]) -> None:
    """Note what became of each option of a decode config."""
    journal = recipe.journal
    for key, value in decode.values.items():
        origin = decode.origin(key)
        if key in made:
            journal.taken(origin, key, value, f"model.{key}", "as it is")
        elif key in made.get("options", {}):
            journal.taken(origin, key, value, f"model.options.{key}", "as it is")
        elif key in _NOT_DECODING:
            journal.unneeded(origin, key, value, _NOT_DECODING[key])
        elif value is None or (key in ("lm_weight", "word_lm_weight") and not recipe.is_on(
            "use_lm")):  # fmt: skip
            journal.unneeded(origin, key, value, "nothing is set" if value is None else
                             "no language model is used")  # fmt: skip
        elif key == "lm_weight":
            journal.unneeded(origin, key, value, "see --inference_lm")
        else:
            journal.changes(origin, key, value, "is no option of ESPnet2's decoding that is known")


def old_language_model(recipe: SourceRecipe, decode: ConfigFile) -> Mapping[str, str]:
    """Return the keys that name the language model that the old recipe trained, if one is used."""
    if not recipe.is_on("use_lm") or not decode.values.get("lm_weight", 1.0):
        return {}
    wanted = recipe.get("inference_lm")
    for folder in sorted(recipe.folder.glob(f"{recipe.get('expdir')}/lm_*")):
        if (folder / "config.yaml").is_file() and (folder / wanted).is_file():
            place = folder.relative_to(recipe.folder).as_posix()
            recipe.journal.taken(Origin(f"{place}/{wanted}"), "weights", "", "model.lm_file")
            return {
                "lm_train_config": f"${{{OLD_RECIPE}}}/{place}/config.yaml",
                "lm_file": f"${{{OLD_RECIPE}}}/{place}/{wanted}",
            }
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
