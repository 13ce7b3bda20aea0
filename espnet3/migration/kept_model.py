"""Keep the model of ESPnet2: its keys as they are, for `espnet3.systems.espnet2`."""

from collections.abc import Mapping
from typing import Any

from espnet3.migration.data_sets import OLD_RECIPE, TRAINED_KINDS, TokenFiles
from espnet3.migration.source_recipe import ConfigFile, SourceRecipe
from espnet3.migration.trained_models import decoding_options, note_decoding
from espnet3.migration.training_keys import LoopKeys

_PARTS = ("frontend", "specaug", "preencoder", "encoder", "postencoder", "decoder", "model")
_MODEL_KEYS = (
    *_PARTS, *(f"{part}_conf" for part in _PARTS), "ctc_conf", "joint_net_conf", "init",
    "input_size",
)  # fmt: skip
_TEXT_KEYS = ("cleaner", "g2p", "speech_volume_normalize", "preprocessor", "preprocessor_conf")
_SYSTEM = "espnet3.systems.espnet2"


def token_keys(recipe: SourceRecipe, files: TokenFiles, bpe_mode: str) -> dict[str, Any]:
    """Return the keys that name the tokens: the old ones, or those that train_tokenizer makes."""
    keys: dict[str, Any] = {"token_type": files.kind}
    if files.tokens is not None:
        place = files.tokens.relative_to(recipe.folder).as_posix()
        keys["token_list"] = f"${{{OLD_RECIPE}}}/{place}"
    elif files.kind not in TRAINED_KINDS:
        keys["token_list"] = f"${{{OLD_RECIPE}}}/{files.expected}"
    else:
        keys["token_list"] = "${tokenizer.save_path}/tokens.txt"
    if files.bpe_model is not None:
        place = files.bpe_model.relative_to(recipe.folder).as_posix()
        keys["bpemodel"] = f"${{{OLD_RECIPE}}}/{place}"
    elif files.kind == "bpe":
        keys["bpemodel"] = f"${{tokenizer.save_path}}/{bpe_mode}.model"
    elif files.kind.startswith("whisper"):
        keys["bpemodel"] = files.kind
    elif files.kind == "hugging_face":
        option = "hugging_face_model_name_or_path"
        keys["bpemodel"] = recipe.get(option)
        recipe.journal.taken(
            recipe.origin(option), f"--{option}", recipe.get(option), "model.bpemodel"
        )
    for option in ("cleaner", "g2p"):
        value = recipe.get(option)
        if value and value != "none":
            keys[option] = value
            _note_spelling(recipe, files, option, value)
    symbols = recipe.get("nlsyms_txt")
    if symbols and symbols != "none":
        keys["non_linguistic_symbols"] = f"${{{OLD_RECIPE}}}/{symbols}"
        became = "model.non_linguistic_symbols"
        if files.tokens is None and files.kind == "char":
            note = (
                "train_tokenizer does not make them tokens: make the token list in the old recipe "
                f"first, ./{recipe.script} --stage 5 --stop_stage 5, and migrate then"
            )
            recipe.journal.changes(
                recipe.origin("nlsyms_txt"), "--nlsyms_txt", symbols, note, became
            )
        else:
            recipe.journal.taken(recipe.origin("nlsyms_txt"), "--nlsyms_txt", symbols, became)
    return keys


def _note_spelling(recipe: SourceRecipe, files: TokenFiles, option: str, value: str) -> None:
    """Note how texts are cleaned or made into phonemes, which the tokens must fit."""
    origin, became = recipe.origin(option), f"model.{option}"
    if files.tokens is None and files.kind in TRAINED_KINDS:
        note = "train_tokenizer does not do it: make the token list in the old recipe first, "
        note += f"./{recipe.script} --stage 5 --stop_stage 5, and migrate then"
        recipe.journal.changes(origin, f"--{option}", value, note, became)
    else:
        recipe.journal.taken(origin, f"--{option}", value, became)


def build_kept_model(
    keys: LoopKeys, tokens: dict[str, Any], normalize: str | None
) -> dict[str, Any]:
    """Return the `model` block with ESPnet2's own keys."""
    model: dict[str, Any] = {"_target_": f"{_SYSTEM}.model.ESPnet2Model", "task": "asr", **tokens}
    for key in _MODEL_KEYS:
        value = keys.value(key)
        if key == "init" and value == "none":
            continue
        # A front end that is null is none; one that is not named is ESPnet2's default.
        if value is not None or (key == "frontend" and key in keys.config.values):
            model[key] = value
            keys.note(key, f"model.{key}", "as it is")
    rate = keys.recipe.sample_rate
    if model.get("frontend", "default") is not None:
        model["frontend_conf"] = {**keys.block("frontend_conf"), "fs": rate}
    model["normalize"] = normalize
    if normalize == "global_mvn":
        model["normalize_conf"] = {"stats_file": "${stats_dir}/train/feats_stats.npz"}
    elif keys.block("normalize_conf"):
        model["normalize_conf"] = keys.block("normalize_conf")
    # The initialisation is ESPnet2's own, and not one of the training.
    keys.config.values.pop("init", None)
    return model


def kept_preprocessor(keys: LoopKeys, tokens: dict[str, Any]) -> dict[str, Any]:
    """Return `dataset.preprocessor`."""
    block: dict[str, Any] = {
        "_target_": f"{_SYSTEM}.preprocessor.ESPnet2Preprocessor",
        "task": "asr",
        **tokens,
    }
    for key in _TEXT_KEYS:
        value = keys.value(key)
        if value is not None and key not in block:  # an option of run.sh wins
            block[key] = value
            keys.note(key, f"dataset.preprocessor.{key}", "as it is")
    return block


def below_network(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings whose names of weights are those of our model, which has ESPnet2's inside."""
    changed = dict(settings)
    if "init" in settings:
        changed["init"] = [
            {**entry, "to": ".".join(filter(None, ["network", entry.get("to", "")]))}
            for entry in settings["init"]
        ]
    if "freeze" in settings:
        changed["freeze"] = [f"network.{pattern}" for pattern in settings["freeze"]]
    return changed


def build_kept_inference(
    recipe: SourceRecipe, decode: ConfigFile, weights: str, lm: Mapping[str, str]
) -> dict[str, Any]:
    """Return the `model` block that decodes what the new recipe has trained.

    Args:
        recipe: The old one.
        decode: Its config of decoding.
        weights: What training leaves.
        lm: Keys that name a language model, if there is one.
    """
    model = {
        "_target_": f"{_SYSTEM}.inference.ESPnet2Inference",
        "task": "asr",
        "config": "${exp_dir}/config.yaml",
        "weights": weights,
        **lm,
    }
    options = decoding_options(decode, has_lm="lm_file" in model)
    note_decoding(recipe, decode, options)
    return {**model, **options}
