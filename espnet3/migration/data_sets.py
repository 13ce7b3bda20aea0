"""Find the data directories, token lists and models that an ESPnet2 recipe has made so far."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.components.data.sources.kaldi import check_wav_values, read_segments, read_table
from espnet3.components.text.characters import CharacterTokenizer
from espnet3.components.text.sentencepiece import SentencePieceTokenizer
from espnet3.components.text.tokenizer import Tokenizer
from espnet3.errors import RecordError
from espnet3.migration.journal import Journal, Origin
from espnet3.migration.source_recipe import SourceRecipe

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
        journal.left_out(origin, "token list", "", f"cannot be read ({error!s:.80}); trained anew")
        return None
    if tokenizer.tokens != listed:
        note = "does not fit the model beside it; the tokenizer is trained anew"
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
