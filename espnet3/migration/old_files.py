"""Find the data directories, token lists and models that an ESPnet2 recipe has made so far."""

import pickletools
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.components.data.sources.kaldi import check_wav_values, read_segments, read_table
from espnet3.components.text.tokenizer import CharacterTokenizer, SentencePieceTokenizer, Tokenizer
from espnet3.errors import RecordError
from espnet3.migration.journal import Journal, Origin
from espnet3.migration.source_recipe import ConfigFile, SourceRecipe

OLD_RECIPE = "espnet2_dir"
"""The key of our configs that holds the folder of the old recipe."""
_OTHER_TABLES = {"utt2category", "utt2lang", "utt2gender", "spk2gender", "enroll.scp", "utt2uniq"}
"""Tables of a data directory that nothing here reads; others, such as spk2utt, say nothing new."""
_SPEED = "espnet3.components.data.augmentation.SpeedPerturb"


@dataclass(frozen=True)
class DataSet:
    """A data directory of Kaldi."""

    name: str
    path: str
    """Below the old recipe."""
    is_formatted: bool
    """Whether it is of `dump/`, where audio has the rate of `--fs` already."""
    is_perturbed: bool = False
    """Whether it holds copies of other speeds already."""
    has_speakers: bool = False

    def entry(self, sample_rate: int, *, named: bool = False) -> dict[str, Any]:
        """Return the entry of a `dataset` block."""
        arguments: dict[str, Any] = {
            "path": f"${{{OLD_RECIPE}}}/{self.path}",
            "sample_rate": sample_rate,
        }
        if not self.is_formatted:
            arguments["resample"] = True
        entry: dict[str, Any] = {"data_src": "kaldi", "data_src_args": arguments}
        return {"name": self.name.replace("/", "_"), **entry} if named else entry


def find_set(recipe: SourceRecipe, name: str, *, for_training: bool = False) -> DataSet:
    """Return the directory of a set: of `dump/` if it is there, else of `data/`.

    What cannot be read, or is not there yet, is noted as something to do.
    """
    dump = f"{recipe.get('dumpdir')}/{recipe.get('feats_type')}"
    places = [f"{dump}/{name}", f"{dump}/org/{name}", f"data/{name}"]
    found = [place for place in places if (recipe.folder / place / "wav.scp").is_file()]
    problems = {place: _problem(recipe.folder / place) for place in found}
    good = next((place for place in found if not problems[place]), None)
    perturbed = f"{dump}/{name}_sp"
    has_copies = for_training and (recipe.folder / perturbed / "wav.scp").is_file()
    if good is None and has_copies and not _problem(recipe.folder / perturbed):
        return _noted(recipe, name, perturbed, is_perturbed=True)
    if good is not None:
        return _noted(recipe, name, good)
    if found:
        recipe.journal.todo(f"{found[0]} cannot be read: {problems[found[0]]}")
        return _noted(recipe, name, found[0])
    expected = places[0] if (recipe.folder / dump).is_dir() else places[-1]
    recipe.journal.todo(
        f"{expected} is not there yet. In the old recipe, make it: cd {recipe.folder} && "
        f"./{recipe.script} --stage 1 --stop_stage 4; or write another path under dataset"
    )
    return DataSet(name, expected, not expected.startswith("data/"))


def _problem(folder: Path) -> str:
    """Return why a data directory cannot be read, and what to do; empty if it can."""
    try:
        wavs = read_table(folder / "wav.scp")
        check_wav_values(wavs, folder / "wav.scp")
        read_segments(folder / "segments", wavs)
        if not (folder / "text").is_file():
            return f"{folder / 'text'} is missing, so there are no transcripts."
    except (RecordError, OSError) as error:
        return str(error)
    return ""


def _noted(recipe: SourceRecipe, name: str, place: str, *, is_perturbed: bool = False) -> DataSet:
    folder = recipe.folder / place
    files = [
        file
        for file in ("wav.scp", "segments", "text", "utt2spk", "utt2dur", "reco2dur")
        if (folder / file).is_file()
    ]
    unread = sorted(
        file.name
        for file in folder.iterdir()
        if file.name in _OTHER_TABLES or file.name.startswith("text.")
    )
    note = f"reads {', '.join(files)}" + (f"; not {', '.join(unread)}" if unread else "")
    recipe.journal.taken(Origin(place), "data directory", "", f"dataset: {name}", note)
    is_formatted = not place.startswith("data/")
    return DataSet(name, place, is_formatted, is_perturbed, "utt2spk" in files)


def train_entries(recipe: SourceRecipe, sets: list[DataSet]) -> list[dict[str, Any]]:
    """Return the entries of `dataset.train`, with speed perturbation."""
    factors = [_float(word) for word in recipe.get("speed_perturb_factors").split()]
    if any(factor is None for factor in factors):
        recipe.journal.changes(
            recipe.origin("speed_perturb_factors"), "--speed_perturb_factors",
            recipe.get("speed_perturb_factors"), "are not all numbers",
        )  # fmt: skip
        factors = []
    elif factors:
        recipe.journal.taken(
            recipe.origin("speed_perturb_factors"), "--speed_perturb_factors",
            recipe.get("speed_perturb_factors"), "dataset.train.0.transform",
            "drawn again in each epoch instead of copied; weight keeps the length of an epoch",
        )  # fmt: skip
    entries = []
    for one in sets:
        entry = one.entry(recipe.sample_rate)
        if factors and not one.is_perturbed:
            entry["transform"] = {"_target_": _SPEED, "factors": factors}
            entry["weight"] = len(factors)
        entries.append(entry)
    return entries


def _float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value > 0 else None


TRAINED_KINDS = ("bpe", "char")
"""Kinds of tokens that train_tokenizer makes."""


@dataclass(frozen=True)
class TokenFiles:
    """The tokens of a recipe, as far as they are there."""

    kind: str
    """As in `--token_type`."""
    tokens: Path | None = None
    bpe_model: Path | None = None
    expected: str = ""
    """Where the old recipe writes the list."""


def find_tokens(recipe: SourceRecipe) -> TokenFiles:
    """Return the files of `data/*token_list/`, as `asr.sh` names them."""
    kind = recipe.get("token_type")
    size = recipe.get("nbpe")
    name = f"bpe_{recipe.get('bpemode')}{size}" if kind == "bpe" else kind
    if kind == "hugging_face":
        name += f"_{recipe.get('hugging_face_model_name_or_path').replace('/', '-')}"
    lang = recipe.get("lang")
    places = [f"data/{lang}_token_list/{name}", f"data/token_list/{name}"]
    expected = f"{places[lang == 'noinfo']}/tokens.txt"
    folders = [recipe.folder / place for place in places]
    folder = next((one for one in folders if (one / "tokens.txt").is_file()), None)
    if folder is None:
        return TokenFiles(kind, expected=expected)
    tokens, model = folder / "tokens.txt", folder / "bpe.model"
    if kind == "bpe" and not model.is_file():
        place = str(folder.relative_to(recipe.folder))
        recipe.journal.left_out(Origin(place), "tokens.txt", "", "bpe.model is not beside it")
        return TokenFiles(kind, expected=expected)
    return TokenFiles(kind, tokens, model if kind == "bpe" else None)


def convert_tokens(files: TokenFiles, bpe_mode: str, journal: Journal) -> Tokenizer | None:
    """Return the old tokens as a tokenizer of ours; None where that cannot be done exactly."""
    if files.tokens is None:
        return None
    listed = tuple(files.tokens.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    origin = Origin(str(files.tokens))
    tokenizer: Tokenizer
    try:
        if files.bpe_model is not None:
            pieces = _without_ends(files.bpe_model.read_bytes())
            tokenizer = SentencePieceTokenizer(pieces, bpe_mode)
        else:
            tokenizer = CharacterTokenizer(listed)
    # SentencePiece and protobuf have errors of their own kinds for a file that is no model.
    except Exception as error:
        journal.left_out(origin, "token list", "", f"cannot be read ({error!s:.80}); trained again")
        return None
    if tokenizer.tokens != listed:
        note = "does not fit the model beside it; the tokenizer is trained again"
        journal.changes(origin, "token list", "", note)
        return None
    return tokenizer


def _without_ends(model: bytes) -> bytes:
    """Return a SentencePiece model without the pieces for begin and end, which ours do not have."""
    from sentencepiece import sentencepiece_model_pb2

    protocol: Any = sentencepiece_model_pb2  # its classes are made when it is imported
    parsed = protocol.ModelProto()
    parsed.ParseFromString(model)
    control = protocol.ModelProto.SentencePiece.CONTROL
    kept = [piece for piece in parsed.pieces if piece.type != control]
    del parsed.pieces[:]
    parsed.pieces.extend(kept)
    for name in ("bos_id", "eos_id", "pad_id"):
        setattr(parsed.trainer_spec, name, -1)
    parsed.trainer_spec.vocab_size = len(kept)
    return bytes(parsed.SerializeToString())


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
