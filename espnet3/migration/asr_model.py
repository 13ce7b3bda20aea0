"""Model and decoding of a recogniser: ESPnet2's own by its keys, or the nearest of ESPnet3."""

from collections.abc import Collection, Mapping
from typing import Any

from espnet3.migration.journal import Origin
from espnet3.migration.old_files import (
    OLD_RECIPE,
    TRAINED_KINDS,
    TokenFiles,
    decoding_options,
    note_decoding,
)
from espnet3.migration.source_recipe import ConfigFile, SourceRecipe
from espnet3.migration.training_keys import LoopKeys

_MODELS = "espnet3.components.models"
_DECODING = "espnet3.components.decoding"
_SUBSAMPLING = {"conv2d": 4, "conv2d1": 1, "conv2d2": 2, "conv2d8": 8, "linear": 1, "embed": 1}
# What our blocks are anyway; other values of these keys are another network.
_OF_CONFORMER = {
    "macaron_style": True, "use_cnn_module": True, "normalize_before": True, "concat_after": False,
    "activation_type": "swish", "pos_enc_layer_type": "rel_pos", "padding_idx": -1,
    "positionwise_layer_type": "linear", "selfattention_layer_type": "rel_selfattn",
    "rel_pos_type": "latest", "zero_triu": False, "max_pos_emb_len": None, "qk_norm": False,
}  # fmt: skip
_OF_MODEL = {
    "ignore_id", "report_cer", "report_wer", "sym_space", "sym_blank", "sym_sos", "sym_eos",
    "extract_feats_in_collect_stats", "length_normalized_loss", "transducer_multi_blank_durations",
}  # fmt: skip
TEXT_KEYS = {
    "token_type": "as --token_type of run.sh", "bpemodel": "of the tokenizer",
    "token_list": "of the tokenizer", "input_size": "of the front end",
    "non_linguistic_symbols": "see --nlsyms_txt", "g2p": "not used",
}  # fmt: skip


def build_model(keys: LoopKeys, normalize: str | None) -> dict[str, Any]:
    """Return the `model` block of a recogniser.

    Args:
        keys: Of the training config; those of the model are read here.
        normalize: `global_mvn`, `utterance_mvn` or None.
    """
    features = _features(keys, normalize)
    encoder = _encoder(keys)
    for key in ("preencoder", "postencoder"):
        if keys.value(key) is not None:
            keys.lose(key, "is not here; the encoder gets the features themselves")
        keys.value(f"{key}_conf")
    model_conf = keys.block("model_conf")
    ctc = model_conf.pop("ctc_weight", 0.5)
    kind = keys.value("decoder", "rnn")
    parts = {"tokenizer": "${tokenizer.save_path}", **features, "encoder": encoder}
    if kind == "transducer":
        return _transducer(keys, parts, ctc, model_conf)
    smoothing = model_conf.pop("lsm_weight", 0.0)
    block: dict[str, Any] = {"_target_": "espnet3.systems.asr.model.ASRModel", **parts}
    if ctc != 1.0 and kind is not None and str(kind) != "none":
        block["decoder"] = _decoder(keys, str(kind), encoder)
        block |= {"ctc_weight": ctc, "label_smoothing": smoothing}
    else:
        keys.note("decoder", "", "not used: ctc_weight is 1")
        keys.value("decoder_conf")
    _note_model_conf(keys, model_conf)
    return block


def reported(model: Mapping[str, Any]) -> set[str]:
    """Return the metrics that a model reports while training."""
    with_attention = {"acc", "loss_att"} if "ctc_weight" in model and "decoder" in model else set()
    return {"loss", "loss_ctc", "cer", "wer"} | with_attention


def _note_model_conf(keys: LoopKeys, rest: Mapping[str, Any]) -> None:
    unknown = {k: v for k, v in rest.items() if k not in _OF_MODEL and v not in (0.0, None, False)}
    if unknown:
        keys.lose("model_conf", f"without a counterpart: {', '.join(sorted(unknown))}", "model")
    else:
        note = "ctc_weight, label_smoothing; losses are means over tokens"
        keys.note("model_conf", "model", note)
    keys.value("ctc_conf")
    keys.note("ctc_conf", "", "CTC of torch, without blanks in the text")


def _features(keys: LoopKeys, normalize: str | None) -> dict[str, Any]:
    rate = keys.recipe.sample_rate
    kind = keys.value("frontend", "default")
    conf = keys.block("frontend_conf")
    if kind != "default":
        keys.lose("frontend", "is not here; log mel features taken", "model.frontend")
        conf = {}
    known = {"n_mels", "n_fft", "win_length", "hop_length", "fs", "fmin", "fmax"}
    if set(conf) - known:
        names = ", ".join(sorted(set(conf) - known))
        keys.lose("frontend_conf", f"without a counterpart: {names}", "model.frontend")
    else:
        keys.note("frontend_conf", "model.frontend")
    if kind == "default":
        keys.note("frontend", "model.frontend")
    window = _whole(conf.get("win_length") or conf.get("n_fft"), 512)
    frontend = {
        "_target_": f"{_MODELS}.log_mel.LogMel",
        "sample_rate": rate,
        "n_mels": _whole(conf.get("n_mels"), 80),
        "window_ms": 1000 * window / rate,
        "shift_ms": 1000 * _whole(conf.get("hop_length"), 128) / rate,
    }
    for theirs, ours in (("fmin", "low_hz"), ("fmax", "high_hz")):
        if conf.get(theirs) is not None:
            frontend[ours] = conf[theirs]
    parts: dict[str, Any] = {"frontend": frontend}
    if normalize == "global_mvn":
        parts["normalize"] = {
            "_target_": f"{_MODELS}.normalization.GlobalNormalization",
            "stats_file": "${stats_dir}/train/feats_stats.npz",
        }
    elif normalize is not None:
        parts["normalize"] = {"_target_": f"{_MODELS}.normalization.UtteranceNormalization"}
    masks = _masks(keys)
    return parts | ({"spec_augment": masks} if masks else {})


def _masks(keys: LoopKeys) -> dict[str, Any] | None:
    kind = keys.value("specaug")
    conf = keys.block("specaug_conf")
    if kind is None:
        return None
    if conf.pop("apply_time_warp", True):
        keys.lose("specaug_conf", "time is not warped here, only masked", "model.spec_augment")
    else:
        keys.note("specaug_conf", "model.spec_augment")
    keys.note("specaug", "model.spec_augment")
    with_bands, with_spans = conf.get("apply_freq_mask", True), conf.get("apply_time_mask", True)
    masks: dict[str, Any] = {
        "_target_": f"{_MODELS}.spec_augment.SpecAugment",
        "n_freq_masks": conf.get("num_freq_mask", 2) if with_bands else 0,
        "max_freq_width": _last(conf.get("freq_mask_width_range"), 20),
        "n_time_masks": conf.get("num_time_mask", 2) if with_spans else 0,
    }
    part = conf.get("time_mask_width_ratio_range")
    if part is not None:
        # Wider than any span, so that the share of the utterance alone is the limit.
        return masks | {"max_time_width": 10_000, "max_time_part": _last(part, 0.05)}
    return masks | {"max_time_width": _last(conf.get("time_mask_width_range"), 100)}


def _last(span: Any, default: Any) -> Any:
    if isinstance(span, list | tuple) and span:
        return span[-1]
    return default if span is None else span


def _encoder(keys: LoopKeys) -> dict[str, Any]:
    kind = str(keys.value("encoder", "rnn"))
    conf = keys.block("encoder_conf")
    if kind == "conformer":
        keys.note("encoder", "model.encoder")
    else:
        keys.lose("encoder", "is not here; a Conformer of its size taken", "model.encoder")
    hidden = _whole(conf.pop("output_size", conf.pop("hidden_size", 256)), 256)
    heads = _whole(conf.pop("attention_heads", 4), 4)
    kernel = _whole(conf.pop("cnn_module_kernel", conf.pop("cgmlp_conv_kernel", 31)), 31)
    layer = str(conf.pop("input_layer", "conv2d"))
    subsampling = _SUBSAMPLING.get(layer, 4)
    dropout = conf.pop("dropout_rate", conf.pop("dropout", 0.1))
    encoder = {
        "_target_": f"{_MODELS}.conformer.Conformer",
        "input_size": _whole(keys.block("frontend_conf").get("n_mels", 80), 80),
        "hidden": hidden + hidden % 2,
        "n_layers": _whole(conf.pop("num_blocks", conf.pop("num_layers", 6)), 6),
        "subsampling": subsampling,
        "n_heads": heads if hidden % heads == 0 else 1,
        "feed_forward": _whole(conf.pop("linear_units", 2048), 2048),
        "kernel_size": kernel + 1 - kernel % 2,
        "dropout": dropout,
    }
    if kind == "conformer":
        lost = _lost(conf, _OF_CONFORMER, dropout)
        if layer not in _SUBSAMPLING:
            lost.append(f"input_layer {layer}")
        if lost:
            note = f"without a counterpart: {', '.join(lost)}"
            keys.lose("encoder_conf", note, "model.encoder")
            return encoder
    keys.note("encoder_conf", "model.encoder", "size, layers, heads, kernel, dropout")
    return encoder


def _lost(conf: Mapping[str, Any], ours: Mapping[str, Any], dropout: Any) -> list[str]:
    """Return the arguments whose value is another than what our block does."""
    lost = []
    for name, value in conf.items():
        expected = dropout if name.endswith("dropout_rate") else ours.get(name, value)
        if name not in ours and not name.endswith("dropout_rate"):
            lost.append(name)
        elif value != expected:
            lost.append(f"{name} {value}")
    return lost


def _whole(value: Any, default: int) -> int:
    if isinstance(value, list) and value:
        value = max((v for v in value if isinstance(v, int)), default=default)
    return value if isinstance(value, int) and value > 0 else default


def _decoder(keys: LoopKeys, kind: str, encoder: Mapping[str, Any]) -> dict[str, Any]:
    conf = keys.block("decoder_conf")
    if kind == "transformer":
        keys.note("decoder", "model.decoder")
    else:
        keys.lose("decoder", "is not here; a Transformer decoder taken", "model.decoder")
    heads = _whole(conf.pop("attention_heads", 4), 4)
    dropout = conf.pop("dropout_rate", 0.1)
    decoder = {
        "_target_": f"{_MODELS}.attention_decoder.TransformerDecoder",
        "_partial_": True,
        "n_layers": _whole(conf.pop("num_blocks", conf.pop("num_layers", 6)), 6),
        "n_heads": heads if encoder["hidden"] % heads == 0 else 1,
        "hidden": encoder["hidden"],
        "feed_forward": _whole(conf.pop("linear_units", 2048), 2048),
        "dropout": dropout,
    }
    usual = {"input_layer": "embed", "use_output_layer": True, "normalize_before": True,
             "concat_after": False}  # fmt: skip
    lost = _lost(conf, usual, dropout) if kind == "transformer" else []
    if lost:
        keys.lose("decoder_conf", f"without a counterpart: {', '.join(lost)}", "model.decoder")
    else:
        keys.note("decoder_conf", "model.decoder", "layers, heads, size, dropout")
    return decoder


def _transducer(
    keys: LoopKeys, parts: Mapping[str, Any], ctc: Any, model_conf: dict[str, Any]
) -> dict[str, Any]:
    conf = keys.block("decoder_conf")
    joint = keys.block("joint_net_conf")
    for key, became in (("decoder", "model"), ("decoder_conf", "model.prediction"),
                        ("joint_net_conf", "model.joint_size")):  # fmt: skip
        keys.note(key, became)
    model_conf.pop("lsm_weight", None)
    default = ctc if "ctc_weight" in keys.block("model_conf") else 0.0
    weight = model_conf.pop("auxiliary_ctc_weight", default)
    if not 0 < weight < 1:
        keys.lose("model_conf", "CTC is always trained beside it here; ctc_weight is 0.3", "model")
        weight = 0.3
    _note_model_conf(keys, model_conf)
    return {
        "_target_": "espnet3.systems.asr.transducer_model.Transducer",
        **parts,
        "prediction": {
            "_target_": f"{_MODELS}.transducer.LSTMPrediction",
            "_partial_": True,
            "size": _whole(conf.get("hidden_size", 320), 320),
            "n_layers": _whole(conf.get("num_layers", 1), 1),
            "dropout": conf.get("dropout", 0.0),
        },
        "joint_size": _whole(joint.get("joint_space_size", 256), 256),
        "ctc_weight": weight,
    }


def build_search(
    recipe: SourceRecipe, decode: ConfigFile, model: Mapping[str, Any], lm: str | None
) -> dict[str, Any]:
    """Return the `decoder` block of the inference config.

    Args:
        recipe: Gets the notes.
        decode: The decode config, after `--inference_args`.
        model: The `model` block of the training.
        lm: The file of the language model's weights; None without one.
    """
    search = _Search(recipe, decode)
    if "prediction" in model:
        return search.transducer()
    return search.joint("decoder" in model, lm)


class _Search:
    def __init__(self, recipe: SourceRecipe, decode: ConfigFile) -> None:
        self.journal, self.decode = recipe.journal, decode
        self.read: set[str] = set()

    def value(self, key: str, default: Any, became: str = "") -> Any:
        self.read.add(key)
        found = self.decode.values.get(key)
        if found is None or isinstance(found, bool) or not isinstance(found, int | float):
            if found is not None:
                self.lose(key, f"is not a number; {default} taken")
            return default
        if became:
            self.journal.taken(self.decode.origin(key), key, found, f"model.decoder.{became}")
        return found

    def lose(self, key: str, note: str) -> None:
        self.journal.changes(self.decode.origin(key), key, self.decode.values.get(key), note)

    def transducer(self) -> dict[str, Any]:
        conf = self.decode.values.get("transducer_conf")
        self.read |= {"transducer_conf", "ctc_weight", "lm_weight", "penalty"}
        beam = self.value("beam_size", 20, "beam_size")
        if conf:
            self.lose("transducer_conf", "the search is TransducerBeam, frame by frame")
        for key in ("lm_weight",):
            if self.decode.values.get(key):
                self.lose(key, "a language model does not join the search of a transducer here")
        self.finish()
        return {"_target_": f"{_DECODING}.transducer_beam.TransducerBeam", "beam_size": int(beam)}

    def joint(self, has_attention: bool, lm: str | None) -> dict[str, Any]:
        weight = self.value("ctc_weight", 0.5, "ctc_weight")
        if not has_attention and weight != 1:
            origin = self.decode.origin("ctc_weight")
            note = "the model has CTC only, so it is 1"
            self.journal.unneeded(origin, "ctc_weight", weight, note)
            weight = 1.0
        search = {
            "_target_": f"{_DECODING}.joint_beam.JointBeam",
            "beam_size": int(self.value("beam_size", 20, "beam_size")),
            "ctc_weight": weight,
        }
        lm_weight = self.value("lm_weight", 1.0)
        if lm:
            search |= {"lm": lm, "lm_weight": lm_weight}
            origin = self.decode.origin("lm_weight")
            self.journal.taken(origin, "lm_weight", lm_weight, "model.decoder.lm_weight")
        elif self.decode.values.get("lm_weight"):
            origin = self.decode.origin("lm_weight")
            self.journal.unneeded(origin, "lm_weight", lm_weight, "no language model is used")
        penalty = self.value("penalty", 0.0, "length_bonus")
        if penalty:
            search["length_bonus"] = penalty
        search |= self._lengths()
        self.finish()
        return search

    def _lengths(self) -> dict[str, Any]:
        most = self.value("maxlenratio", 0.0)
        if most < 0:
            self.lose("maxlenratio", "a fixed length is not here; as many tokens as frames")
        elif "maxlenratio" in self.decode.values:
            origin = self.decode.origin("maxlenratio")
            became = "model.decoder.max_length_ratio"
            self.journal.taken(origin, "maxlenratio", most, became, "0 is 1 here")
        if self.value("minlenratio", 0.0):
            self.lose("minlenratio", "is not here; results may be shorter")
        elif "minlenratio" in self.decode.values:
            origin = self.decode.origin("minlenratio")
            self.journal.unneeded(origin, "minlenratio", 0.0, "there is no shortest length")
        return {"max_length_ratio": most} if most > 0 else {}

    def finish(self) -> None:
        harmless = {"batch_size": "batch_seconds of the inference config", "nbest": "model.n_best",
                    "ngpu": "parallel.env", "num_workers": "not used", "log_level": "not used",
                    "word_lm_weight": "no word language model",
                    "ngram_weight": "no n-gram"}  # fmt: skip
        for key, value in self.decode.values.items():
            if key in self.read:
                continue
            origin = self.decode.origin(key)
            if key in harmless and (key != "ngram_weight" or not value):
                self.journal.unneeded(origin, key, value, harmless[key])
            else:
                self.journal.changes(origin, key, value, "an option of decoding that is not here")


def build_language_model(keys: LoopKeys, tokenizer: str) -> dict[str, Any]:
    """Return the `model` block of a language model."""
    kind = str(keys.value("lm", "seq_rnn"))
    conf = keys.block("lm_conf")
    known: Collection[str] = ("seq_rnn", "transformer", "transformer_opt")
    if kind not in known:
        keys.lose("lm", "is not here; an LSTM taken", "model.kind")
    else:
        keys.note("lm", "model.kind")
    keys.note("lm_conf", "model", "size, layers, heads, dropout")
    block = {"_target_": "espnet3.systems.asr.language_model.LanguageModel", "tokenizer": tokenizer}
    if kind.startswith("transformer"):
        hidden = _whole(conf.get("att_unit", 256), 256)
        heads = _whole(conf.get("head", 2), 2)
        return block | {
            "kind": "transformer",
            "hidden": hidden,
            "n_layers": _whole(conf.get("layer", 4), 4),
            "n_heads": heads if hidden % heads == 0 else 1,
            "dropout": conf.get("dropout_rate", 0.1),
        }
    if conf.get("rnn_type", "lstm") != "lstm":
        keys.lose("lm_conf", f"rnn_type {conf['rnn_type']}; an LSTM taken", "model.kind")
    return block | {
        "kind": "lstm",
        "hidden": _whole(conf.get("unit", conf.get("nhid", 650)), 650),
        "n_layers": _whole(conf.get("nlayers", 2), 2),
        "dropout": conf.get("dropout_rate", 0.0),
    }


def normalization_of(recipe: SourceRecipe, config: ConfigFile) -> str | None:
    """Return `global_mvn`, `utterance_mvn` or None, as `asr.sh` decides."""
    asked = recipe.get("feats_normalize")
    if asked == "global_mvn":
        note = "needs collect_stats before train"
        recipe.journal.taken(
            recipe.origin("feats_normalize"), "--feats_normalize", asked, "model.normalize",
            note if "feats_normalize" in recipe.options else f"the default of asr.sh; {note}",
        )  # fmt: skip
        return asked
    found = config.values.get("normalize", "utterance_mvn")
    note = f"asr.sh asks only whether it is global_mvn; the config decides: {found}"
    origin: Origin = recipe.origin("feats_normalize")
    recipe.journal.taken(origin, "--feats_normalize", asked, "model.normalize", note)
    return None if found in (None, "none") else str(found)


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
