"""The tasks of ESPnet2, other than asr, whose recipes are migrated: options, files, model keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from espnet3.migration.source_recipe import SourceRecipe

File = tuple[str, str, str]
"""A file of a data directory, the name of what it holds, and its type, as ESPnet2 has them."""
_RECOGNISER = ("frontend", "specaug", "normalize", "preencoder", "encoder", "postencoder",
               "decoder", "model")  # fmt: skip
_NOT_TRIED = "of ESPnet2Model is for it, but its training was not tried, and infer has none"
_UNITS = "of the discrete units, which the old recipe makes"
_LISTED = "measure has its own: see conf/metrics.yaml"


@dataclass(frozen=True)
class TaskKind:
    """What is different in the recipes of a task.

    Args:
        config: The option that names its training config.
        arguments: That with further keys of it.
        weights: That with the checkpoint that is decoded.
        decode: That with the config of decoding.
        parts: Keys of the model; each may have a further `_conf`.
        files: Returns what its data directories hold.
        reads: What `infer` gives to the model.
    """

    config: str
    arguments: str
    weights: str
    parts: tuple[str, ...]
    files: Callable[[SourceRecipe], list[File]]
    reads: str = "speech"
    decode: str = "inference_config"
    metrics: tuple[str, ...] | None = None
    """Names that the model reports, for the choice of checkpoints; None for any."""
    trained_as: str = ""
    """ESPnet2's name of the task of the model; empty: that of the script."""
    is_inferred: bool = True
    """Whether `infer` takes such a model; else the recipe trains one."""
    has_copies: bool = False
    """Whether speed perturbation is in the data already, of a set `NAME_sp`: where what is read
    beside the audio depends on its speed."""
    data_stage: int = 4
    """The stage of the script after which its data directories are whole."""
    token_stage: int = 5
    """That after which it has its token lists."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Options that are missing without changing results, and why."""


def _speech_and_text(recipe: SourceRecipe) -> list[File]:
    files = [("wav.scp", "speech", "sound"), ("text", "text", "text")]
    if recipe.is_on("use_transcript"):
        files.append(("transcript", "transcript", "text"))
    return files


def _text_of(recipe: SourceRecipe, side: str) -> str:
    parts = ["text", recipe.get(f"{side}_case"), recipe.get(f"{side}_lang")]
    return ".".join(part for part in parts if part)


def _two_texts(recipe: SourceRecipe) -> list[File]:
    return [(_text_of(recipe, "tgt"), "text", "text"), (_text_of(recipe, "src"), "src_text",
            "text")]  # fmt: skip


def _marked_texts(recipe: SourceRecipe) -> list[File]:
    """The target, the text before it, and the transcript for CTC: docs of ESPnet2's s2t1."""
    return [("wav.scp", "speech", "sound"), ("text", "text", "text"),
            ("text.prev", "text_prev", "text"), ("text.ctc", "text_ctc", "text")]  # fmt: skip


def _languages(recipe: SourceRecipe) -> list[File]:
    return [("wav.scp", "speech", "sound"), ("utt2lang", "lid_labels", "label")]


def _text_and_speech(recipe: SourceRecipe) -> list[File]:
    files = [("text", "text", "text"), ("wav.scp", "speech", "sound")]
    if recipe.is_on("use_sid"):
        files.append(("utt2sid", "sids", "text_int"))
    if recipe.is_on("use_lid"):
        files.append(("utt2lid", "lids", "text_int"))
    return files


def _mixtures(recipe: SourceRecipe) -> list[File]:
    files = [("wav.scp", "speech_mix", "sound")]
    speakers = range(1, int(recipe.number("spk_num")) + 1)
    files += [(f"spk{n}.scp", f"speech_ref{n}", "sound") for n in speakers]
    for switch, name, ours, number in (
        ("use_noise_ref", "noise", "noise_ref", "noise_type_num"),
        ("use_dereverb_ref", "dereverb", "dereverb_ref", "dereverb_ref_num"),
    ):
        if recipe.is_on(switch):
            numbers = range(1, int(recipe.number(number)) + 1)
            files += [(f"{name}{n}.scp", f"{ours}{n}", "sound") for n in numbers]
    return files


def _speakers(recipe: SourceRecipe) -> list[File]:
    return [("wav.scp", "speech", "sound"), ("utt2spk", "spk_labels", "label")]


KINDS: Mapping[str, TaskKind] = {
    "st": TaskKind(
        "st_config", "st_args", "inference_st_model",
        (*_RECOGNISER, "extra_asr_decoder", "extra_mt_decoder", "extra_mt_encoder", "md_encoder",
         "hier_encoder", "ctc", "st_ctc", "init", "input_size"),
        lambda recipe: [("wav.scp", "speech", "sound"), *_two_texts(recipe)],
    ),
    "mt": TaskKind(
        "mt_config", "mt_args", "inference_mt_model", (*_RECOGNISER, "ctc", "init", "input_size"),
        _two_texts, reads="src_text",
    ),
    "slu": TaskKind(
        "slu_config", "slu_args", "inference_slu_model",
        (*_RECOGNISER, "ctc", "joint_net", "postdecoder", "deliberationencoder", "init",
         "input_size"),
        _speech_and_text,
    ),
    "tts": TaskKind(
        "train_config", "train_args", "inference_model",
        ("tts", "feats_extract", "normalize", "pitch_extract", "pitch_normalize", "energy_extract",
         "energy_normalize", "model", "odim"),
        _text_and_speech, reads="text",
        left_out={
            "tag": "exp_tag=NAME on the line", "tts_exp": "exp_dir=FOLDER on the line",
            "tts_stats_dir": "stats_dir=FOLDER on the line",
        },
    ),
    "enh": TaskKind(
        "enh_config", "enh_args", "inference_model",
        ("encoder", "separator", "decoder", "mask_module", "criterions", "diffusion_model", "model",
         "init"),
        _mixtures, reads="speech_mix", decode="inference_enh_config",
        metrics=("loss", "si_snr_loss"),
        left_out={
            "scoring_protocol": _LISTED, "enh_tag": "exp_tag=NAME on the line",
            "ref_channel": "of ESPnet2's scoring; SI-SNR here is of audio with one channel",
            "inf_num": "as --spk_num", "ref_num": "as --spk_num",
            "extra_wav_list": "of the formatting, which the old recipe does",
        },
    ),
    "spk": TaskKind(
        "spk_config", "spk_args", "inference_model",
        ("frontend", "specaug", "normalize", "encoder", "pooling", "projector", "loss", "model",
         "init", "input_size"),
        _speakers, metrics=("loss", "accuracy"),
        left_out={
            "spk_tag": "exp_tag=NAME on the line", "cohort_set": "of the normalisation of scores",
        },
    ),
    "asr2": TaskKind(
        "asr_config", "asr_args", "inference_asr_model",
        (*_RECOGNISER, "ctc", "init", "input_size"),
        lambda recipe: _two_texts(recipe)[::-1], reads="src_text", trained_as="mt",
        has_copies=True, data_stage=6, token_stage=7,
        left_out={
            **dict.fromkeys(("kmeans_opts", "kmeans_feature", "nclusters", "portion",
                             "storage_save_mode", "feature_num"), _UNITS),
            "asr_tag": "exp_tag=NAME on the line", "asr_exp": "exp_dir=FOLDER on the line",
        },
    ),
    "s2t": TaskKind(
        "s2t_config", "s2t_args", "inference_s2t_model",
        (*_RECOGNISER, "ctc", "init", "input_size"), _marked_texts, is_inferred=False,
        metrics=("loss", "loss_ctc", "loss_att", "acc", "cer_ctc", "cer", "wer"), has_copies=True,
        left_out={
            **dict.fromkeys(("s2t_tag", "lm_tag", "inference_tag"), "exp_tag=NAME on the line"),
            "s2t_exp": "exp_dir=FOLDER on the line", "s2t_stats_dir": "stats_dir=FOLDER",
            **dict.fromkeys(("s2t_speech_fold_length", "s2t_text_fold_length"),
                            "batches are limited by their padded seconds"),
            **dict.fromkeys(("num_splits_s2t",), "a large corpus: data in shards"),
            "bpe_nlsyms": "of the word pieces, which the old recipe makes",
        },
    ),
    "lid": TaskKind(
        "lid_config", "lid_args", "inference_model",
        ("frontend", "specaug", "normalize", "encoder", "pooling", "projector", "loss",
         "encoder_condition", "pooling_condition", "projector_condition", "model", "init",
         "input_size"),
        _languages, metrics=("loss", "accuracy"), is_inferred=False,
        left_out={"lid_tag": "exp_tag=NAME on the line", "lid_exp": "exp_dir=FOLDER on the line"},
    ),
}  # fmt: skip
"""Those that `espnet3.systems.espnet2` trains, and most of which it infers."""
BY_HAND: Mapping[str, str] = {
    "svs": "task: svs of ESPnet2Model trains such a model where ESPnet2 can import it, infer does "
    "not take it yet",
    "lm": "task: lm of ESPnet2Model trains such a model, and infer computes its perplexity",
    "hubert": "task: hubert of ESPnet2Model, with ESPnet2Collate, trains such a model",
    "ssl": "task: ssl of ESPnet2Model, with ESPnet2Collate, trains such a model",
    "diar": "task: diar of ESPnet2Model trains such a model, infer does not take it yet",
    "enh_asr": "task: enh_s2t of ESPnet2Model trains such a model, infer does not take it yet",
    "enh_diar": f"task: enh_s2t {_NOT_TRIED}",
    "enh_st": f"task: enh_s2t {_NOT_TRIED}",
    "tts2": f"task: tts2 {_NOT_TRIED}; its discrete units are made by ESPnet2",
    "s2st": f"task: s2st {_NOT_TRIED}",
    "cls": f"task: cls, where ESPnet2 can import it (torcheval), {_NOT_TRIED}",
    "asvspoof": "ESPnet2 202511 itself computes no loss with the only decoder of its task asvspoof",
    "codec": "ESPnet2 trains its task gan_codec by two losses in turn, which ESPnet2Model does not "
    "do: train it with ESPnet2",
    "uasr": "ESPnet2 trains its task uasr by two losses in turn, which ESPnet2Model does not do: "
    "train it with ESPnet2",
    "avsr": "its task reads video, which no data source here does: train it with ESPnet2",
    "tse": "task: enh_tse of ESPnet2Model trains such a model, infer does not take it yet",
}
"""What can be done for a task whose recipes are not migrated."""
