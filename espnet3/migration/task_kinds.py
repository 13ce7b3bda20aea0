"""Tasks of ESPnet2, other than asr, whose recipes are migrated: options, files, keys, tokens."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet3.migration.jobs import AddConfig
from espnet3.migration.journal import Origin
from espnet3.migration.language_models import TOKENIZER
from espnet3.migration.old_files import OLD_RECIPE, TRAINED_KINDS
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
    """Differences of the recipes of a task.

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
"""Advice for each task whose recipes are not migrated."""


_SIDES = {"st": ("tgt", "src"), "mt": ("tgt", "src"), "slu": ("",), "tts": ("",),
          "asr2": ("tgt", "src"), "s2t": ("",)}  # fmt: skip
"""Tasks with texts; what the names of the options of each text begin with."""
_MARKED = ("s2t",)
"""Tasks whose tokens are marks of tasks, languages and times too, which only ESPnet2 makes."""
_OWN = "data/tokens"


class TaskTokens:
    """The keys of the model that name tokens, and how those that are missing are made.

    Args:
        recipe: The old one.
        add_config: Adds a file to the new one.
        train: The directory of the first training set, below the old recipe.
    """

    def __init__(self, recipe: SourceRecipe, add_config: AddConfig, train: str) -> None:
        self.recipe, self.train = recipe, train
        self.keys: dict[str, Any] = {}
        """Of the model, and of the preprocessor."""
        self.block: dict[str, Any] = {}
        """For the stage train_tokenizer."""
        self.is_trained = False
        for side in _SIDES.get(recipe.task, ()):
            if side == "src" and recipe.is_on("token_joint"):
                self._joint()
            else:
                self._side(side)
        joint = recipe.options.get("token_joint")
        if joint:
            became = "model.src_token_list" if recipe.is_on("token_joint") else ""
            recipe.journal.taken(joint.origin, "--token_joint", joint.value, became)
        if recipe.task == "tts":
            self._spoken()

    def _option(self, side: str, name: str) -> str:
        return f"{side}_{name}" if side else name

    def _value(self, side: str, name: str) -> str:
        """Return the option of a side, or what the script takes without it."""
        option = self._option(side, name)
        found = self.recipe.options.get(option)
        return found.value if found else self.recipe.get(name)

    def _side(self, side: str) -> None:
        kind = self._value(side, "token_type")
        prefix = "src_" if side == "src" else ""
        self.keys[f"{prefix}token_type"] = kind
        for name in ("token_type", "nbpe", "bpemode", "bpe_char_cover", "bpe_train_text",
                     "bpe_nlsyms"):  # fmt: skip
            option = self.recipe.options.get(self._option(side, name))
            if option:
                became = f"model.{prefix}token_list"
                self.recipe.journal.taken(option.origin, f"--{option.name}", option.value, became)
        found = self._find(side, kind)
        if found is not None:
            place = found.relative_to(self.recipe.folder).as_posix()
            self.keys[f"{prefix}token_list"] = f"${{{OLD_RECIPE}}}/{place}"
            self.recipe.journal.taken(Origin(place), "token list", "", f"model.{prefix}token_list")
            model = next(iter(sorted(found.parent.glob("*bpe.model"))), None)
            if kind == "bpe" and model is not None:
                place = model.relative_to(self.recipe.folder).as_posix()
                self.keys[f"{prefix}bpemodel"] = f"${{{OLD_RECIPE}}}/{place}"
        elif side != "src" and kind in TRAINED_KINDS and self.recipe.task not in _MARKED:
            self._train(side, kind)
        else:
            self._make(side, kind, prefix)

    def _joint(self) -> None:
        """Give the source texts the tokens of the target texts."""
        self.keys |= {
            f"src_{key}": self.keys[key]
            for key in ("token_type", "token_list", "bpemodel")
            if key in self.keys
        }
        if self.is_trained:
            option = self.recipe.options["token_joint"]
            note = "train_tokenizer reads the target texts alone: make the tokens in the old "
            stage = KINDS[self.recipe.task].token_stage
            note += f"recipe first, ./{self.recipe.script} --stage {stage} --stop_stage {stage}"
            self.recipe.journal.changes(option.origin, "--token_joint", option.value, note)

    def _find(self, side: str, kind: str) -> Path | None:
        """Return the token list of a text, by the words that the names of its folders have."""
        folder = self.recipe.folder
        wanted = [kind, self._value(side, "nbpe") if kind == "bpe" else ""]
        wanted += [self.recipe.get(f"{side}_lang") if side else ""]
        if self.recipe.task == "tts":
            wanted += [self.recipe.get(name) for name in ("cleaner", "g2p")]
        roots = ["data", self.recipe.get("dumpdir")]
        lists = [path for root in roots for path in sorted(folder.glob(f"{root}/*token_list/*/*"))]
        names = ("tokens.txt", f"{side}_tokens.txt")
        other = {"src": "tgt", "tgt": "src"}.get(side, "")
        fitting = [
            path
            for path in lists
            if path.name in names
            and all(word in path.parent.name for word in wanted if word and word != "none")
            and not (other and path.parent.name.startswith(f"{other}_"))
        ]
        return fitting[0] if fitting else None

    def _train(self, side: str, kind: str) -> None:
        self.is_trained = True
        mode = self._value(side, "bpemode")
        block: dict[str, Any] = {"save_path": f"${{recipe_dir}}/{TOKENIZER}"}
        if kind == "bpe":
            text = self._value(side, "nbpe")
            size = int(text) if text.isdigit() else 30
            block |= {"model_type": mode, "vocab_size": max(4, size)}
            self.keys["bpemodel"] = f"${{tokenizer.save_path}}/{mode}.model"
        else:
            block["model_type"] = "characters"
        self.keys["token_list"] = "${tokenizer.save_path}/tokens.txt"
        self.block = {"tokenizer": block}
        texts = self._value(side, "bpe_train_text")
        if kind == "bpe" and texts and not texts.startswith(self.train):
            note = "train_tokenizer reads the texts of dataset.train"
            option = self.recipe.options.get(self._option(side, "bpe_train_text"))
            name = Path(texts).name.split(".")[0]
            if option and (name != "text" or len(texts.split()) > 1):
                self.recipe.journal.changes(option.origin, f"--{option.name}", texts, note)

    def _make(self, side: str, kind: str, prefix: str) -> None:
        """Tell how ESPnet2 makes a list of tokens that our stages do not make."""
        name = f"{side or 'text'}_{kind}.txt"
        self.keys[f"{prefix}token_list"] = f"${{recipe_dir}}/{_OWN}/{name}"
        is_marked = self.recipe.task in _MARKED
        if kind == "bpe" or is_marked:
            pieces = f"{side or 'text'}_bpe.model"
            stage = KINDS[self.recipe.task].token_stage
            files, what = f"{_OWN}/{name}", "the tokens, with the marks of languages and times"
            if kind == "bpe":
                self.keys[f"{prefix}bpemodel"] = f"${{recipe_dir}}/{_OWN}/{pieces}"
                files = f"{files} and {pieces}"
            self.recipe.journal.todo(
                f"{files} are {what if is_marked else 'the word pieces of the source texts'}. In "
                f"the old recipe, make them: cd {self.recipe.folder} && ./{self.recipe.script} "
                f"--stage {stage} --stop_stage {stage}; and migrate then, or copy them"
            )
            return
        text = self.recipe.folder.resolve() / self.train / self._text(side)
        words = ["python", "-m", "espnet2.bin.tokenize_text", "--token_type", kind, "--field", "2-",
                 "--input", str(text), "--output", f"{_OWN}/{name}", "--write_vocabulary", "true",
                 "--add_symbol", "<blank>:0", "--add_symbol", "<unk>:1",
                 "--add_symbol", "<sos/eos>:-1"]  # fmt: skip
        for option in ("cleaner", "g2p") if self.recipe.task == "tts" else ():
            value = self.recipe.get(option)
            if value and value != "none":
                words += [f"--{option}", value]
        self.recipe.journal.todo(
            f"the token list {_OWN}/{name} is not there yet. Make it, in the new recipe: mkdir -p "
            f"{_OWN} && {shlex.join(words)}"
        )

    def _text(self, side: str) -> str:
        parts = ["text", self.recipe.get(f"{side}_case"), self.recipe.get(f"{side}_lang")]
        return ".".join(part for part in parts if part) if side else "text"

    def _spoken(self) -> None:
        """Take how a text is spoken: its cleaning and its phonemes."""
        for option in ("cleaner", "g2p"):
            value = self.recipe.get(option)
            if value and value != "none":
                self.keys[option] = value
            found = self.recipe.options.get(option)
            if found:
                self.recipe.journal.taken(found.origin, f"--{option}", value, f"model.{option}")
        found = self.recipe.options.get("srctexts")
        if found:
            note = "the token list is made of the training texts"
            self.recipe.journal.taken(found.origin, "--srctexts", found.value, "", note)
