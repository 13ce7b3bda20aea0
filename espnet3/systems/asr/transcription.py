"""Transcribe audio with a model and no recipe: `espnet3 transcribe`, a front of the `infer` stage.

The audio becomes test sets, the model a `model` block, and the texts files that others read. What
decodes, survives kills, resumes and uses a cluster is `infer`.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.commands import corrected_command
from espnet3.components.data.audio import BY_FFMPEG, BY_SNDFILE
from espnet3.components.data.sources.kaldi import read_table
from espnet3.components.text.subtitles import format_ctm, format_srt, format_textgrid, format_vtt
from espnet3.errors import ConfigError, MissingExtraError, closest, suggest
from espnet3.io.atomic import dump_json, open_atomic, write_text
from espnet3.io.scp import load_scp, safe_name
from espnet3.shards.merge import read_failures
from espnet3.systems.base.context import CONFIG
from espnet3.text import count, listed

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

FORMATS = ("text", "jsonl", "srt", "vtt", "ctm", "textgrid")
_TIMED = ("srt", "vtt", "ctm", "textgrid")
_ENDINGS = {"srt": ".srt", "vtt": ".vtt", "textgrid": ".TextGrid"}
_ASR = "espnet3.systems.asr"
_WINDOW_SECONDS = 30.0
_BATCH_SECONDS = 120.0
_DECODING = "decoding"
_LISTED = "audio"
_MANIFESTS = {".jsonl": "jsonl", ".tsv": "tsv"}


@dataclass(frozen=True)
class TranscriptionRequest:
    """Audio, model and output folder of a transcription."""

    inputs: tuple[str, ...]
    """Audio files, folders, Kaldi data directories, `.jsonl` or `.tsv` manifests."""
    output: Path
    model: str | None = None
    """A training's folder, a packed model, a folder of Hugging Face, or a class by dotted path."""
    formats: tuple[str, ...] = ("text",)
    reference: Path | None = None
    """A file with an id and its text in each line."""
    parallel: tuple[str, ...] = ()
    """Config files with a `parallel` block."""
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Transcript:
    """The text of one utterance."""

    id: str
    text: str
    audio: str = ""
    seconds: float = 0.0
    words: tuple["WordRow", ...] | None = None

    def as_json(self) -> str:
        """Return it as one line."""
        row: dict[str, Any] = {"id": self.id, "audio": self.audio, "duration": self.seconds}
        row["text"] = self.text
        if self.words is not None:
            row["words"] = [vars(word) for word in self.words]
        return dump_json(row)


@dataclass(frozen=True)
class WordRow:
    """A word and when it was said, in seconds."""

    word: str
    start: float
    end: float
    confidence: float


@dataclass(frozen=True)
class TestSet:
    """A part of the audio with one source."""

    name: str
    source: str
    path: str
    has_text: bool = False


@dataclass
class _Loose:
    """Audio files that no manifest lists, with the ids that they get."""

    files: list[tuple[str, Path]] = field(default_factory=list)

    def add(self, file: Path, folder: Path) -> None:
        self.files.append((file.relative_to(folder).as_posix(), file))

    def rows(self, references: Mapping[str, str]) -> Iterator[dict[str, str]]:
        for id, (_, file) in zip(self._ids(), self.files, strict=True):
            row = {"utt_id": id, "audio_filepath": str(file)}
            yield {**row, "text": references[id]} if id in references else row

    def _ids(self) -> list[str]:
        """Return the names without ending; with it, and then a number, where they repeat."""
        names = ["_".join(name.split()) for name, _ in self.files]
        stems = [name.removesuffix(Path(name).suffix) for name in names]
        n_with = Counter(stems)
        ids = [s if n_with[s] == 1 else n for s, n in zip(stems, names, strict=True)]
        seen = Counter[str]()
        for i, id in enumerate(ids):
            seen[id] += 1
            if seen[id] > 1:
                ids[i] = f"{id}-{seen[id]}"
        return ids


def prepare(request: TranscriptionRequest) -> "LoadedConfig":
    """Find the audio and the model, and return the config with which `infer` decodes it.

    Writes the list of audio files into the output folder, and nothing else.

    Raises:
        ConfigError: there is no audio, no such model, or the settings do not fit each other.
    """
    from espnet3.config.load import load_config
    from espnet3.systems.base.context import DEFAULTS

    unknown = [name for name in request.formats if name not in FORMATS]
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} is no format.{suggest(unknown[0], FORMATS)}",
            fix=f"Write one or several of: --format {' '.join(FORMATS)}",
        )
    # Results with the times of words have the texts as well, and serve all formats.
    has_times = any(request.output.glob(f"{_DECODING}/*/words.scp"))
    wants_times = has_times or bool({*request.formats} - {"text"})
    model = model_settings(request.model, wants_times=wants_times)
    _check_times(request, model)
    test_sets = find_audio(request)
    config = {
        "exp_tag": request.output.name,  # there is no config file to take a name from
        "exp_dir": str(request.output),
        "dataset": {"test": [_entry(one, model) for one in test_sets]},
        "inference_dir": str(request.output / _DECODING),
        "runner": {"on_error": "skip"},  # one bad file must not cost the others
        "parallel": {"env": "local", "n_workers": 1},
        **model,
    }
    config.pop("sample_rate", None)
    above = load_config(request.parallel) if request.parallel else None
    if above is not None:
        _check_parallel(above, request.parallel)
    return load_config(config, request.overrides, below=DEFAULTS, above=above)


def _check_times(request: TranscriptionRequest, model: Mapping[str, Any]) -> None:
    timed = [name for name in request.formats if name in _TIMED]
    has_times = model["model"].get("word_times") or "from_packed" in model["model"]["_target_"]
    if timed and not has_times:
        raise ConfigError(
            f"--format {timed[0]} needs to know when each word was said, which "
            f"{model['model']['_target_'].rpartition('.')[2]} does not tell.",
            fix="Write: --format text jsonl; or give a model with CTC, whose words are aligned",
        )


def _check_parallel(loaded: "LoadedConfig", files: Sequence[str]) -> None:
    others = [str(key) for key in loaded.config if key != "parallel"]
    if others or "parallel" not in loaded.config:
        what = f"has {others[0]}" if others else "has no parallel block"
        raise ConfigError(
            f"--parallel {' '.join(files)} {what}; it says where workers run, and nothing else.",
            fix="Give a file such as conf/parallel_slurm.yaml, or write: parallel.n_workers=4",
        )


def _entry(test_set: TestSet, model: Mapping[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {"path": test_set.path, "channel": "mix"}
    if rate := model.get("sample_rate"):
        arguments |= {"sample_rate": rate, "resample": True}
    return {"name": test_set.name, "data_src": test_set.source, "data_src_args": arguments}


def find_audio(request: TranscriptionRequest) -> list[TestSet]:
    """Return the test sets that the inputs make; loose files are listed in one of them.

    Raises:
        ConfigError: an input is not there, is no audio, or there is none at all.
    """
    references = read_table(request.reference) if request.reference else {}
    loose, test_sets = _Loose(), list[TestSet]()
    for name in request.inputs:
        path = Path(name)
        if source := _manifest_kind(path):
            taken = {one.name for one in test_sets} | {_LISTED}
            test_sets.append(TestSet(_free_name(path, taken), source, str(path.absolute())))
        elif path.is_dir():
            _add_folder(loose, path)
        else:
            _check_audio(path)
            loose.add(path.absolute(), path.absolute().parent)
    if references and test_sets:
        raise ConfigError(
            f"--reference {request.reference} goes with audio files and folders; "
            f"{test_sets[0].path} has texts of its own, or none.",
            fix="Leave out --reference: texts of a manifest are scored",
        )
    if loose.files:
        path = request.output / f"{_LISTED}.jsonl"
        _write_list(path, loose.rows(references), references, request)
        test_sets.insert(0, TestSet(_LISTED, "jsonl", str(path.absolute()), bool(references)))
    return test_sets


def _manifest_kind(path: Path) -> str:
    if path.is_dir():
        return "kaldi" if (path / "wav.scp").is_file() else ""
    return _MANIFESTS.get(path.suffix.lower(), "") if path.is_file() else ""


def _free_name(path: Path, taken: set[str]) -> str:
    stem = safe_name(path.absolute().stem) or "set"
    names = [stem, *(f"{stem}-{n}" for n in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def _add_folder(loose: _Loose, folder: Path) -> None:
    endings = BY_SNDFILE | BY_FFMPEG
    found = [
        Path(place, name)
        # Links too: corpora are often folders of links to a shared disk.
        for place, _, names in os.walk(folder.absolute(), followlinks=True)
        for name in names
        if Path(name).suffix.lower() in endings and not name.startswith(".")
    ]
    if not found:
        raise ConfigError(
            f"{folder} has no audio files: none that ends in "
            f"{', '.join(sorted(endings))}, also below it.",
            fix="Give another folder, files, a Kaldi data directory, or a .jsonl or .tsv manifest",
        )
    for file in sorted(found):
        loose.add(file, folder.absolute())


def _check_audio(path: Path) -> None:
    if not path.exists():
        siblings = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        close = closest(path.name, siblings)
        line = corrected_command([str(path)], [str(path.parent / close)]) if close else ""
        fix = f"Write: {line}" if line else "Give an audio file or folder that is there"
        raise ConfigError(f"There is no {path}.", fix=fix)
    if path.suffix.lower() in BY_SNDFILE | BY_FFMPEG:
        return
    raise ConfigError(
        f"{path} is no audio by its name, and no manifest.",
        fix="Give files that end in .wav, .flac, .mp3, .ogg, .opus or .m4a; a .jsonl or .tsv "
        "manifest; or a folder",
    )


def _write_list(
    path: Path,
    rows: Iterable[dict[str, str]],
    references: Mapping[str, str],
    request: TranscriptionRequest,
) -> None:
    """Write the list of loose files; one that says the same already is left alone."""
    listed = list(rows)
    missing = [row["utt_id"] for row in listed if references and "text" not in row]
    if missing:
        raise ConfigError(
            f"--reference {request.reference} has no text for {count(len(missing), 'file')}, such "
            f"as {missing[0]!r}.",
            fix=f"Add a line for each: {missing[0]} THE TEXT",
        )
    text = "".join(dump_json(row) + "\n" for row in listed)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def model_settings(named: str | None, *, wants_times: bool) -> dict[str, Any]:
    """Return the keys of an inference config that follow from a model.

    Args:
        named: as on the command line.
        wants_times: whether to align words, where the model can.

    Raises:
        ConfigError: there is no such model.
    """
    if named is None:
        return _moonshine()
    path = Path(named)
    if path.is_file() and path.name.endswith((".tar.gz", ".tgz", ".zip")):
        return _recognizer({"_target_": f"{_ASR}.inference.Speech2Text.from_packed",
                            "path": str(path.absolute())}, wants_times)  # fmt: skip
    if path.is_dir():
        return _model_in(path, wants_times)
    if _is_dotted(named):
        return _own_class(named)
    raise ConfigError(
        f"--model {named} is no folder, no packed model and no class.",
        fix="Give the folder of a training (exp/training), what pack_model wrote "
        "(exp/training/NAME.tar.gz), a folder of Hugging Face, or a class: src.model.MyModel",
    )


def _model_in(folder: Path, wants_times: bool) -> dict[str, Any]:
    from espnet3.systems.asr.trained_model import (
        find_weights,
        is_packed,
        read_decoding,
        read_training_config,
    )

    if is_packed(folder):
        target = f"{_ASR}.inference.Speech2Text.from_packed"
        return _recognizer({"_target_": target, "path": str(folder.absolute())}, wants_times)
    if (folder / "config.json").is_file():
        return _hugging_face({"model": str(folder.absolute())}, folder, wants_times)
    _refuse_recipe(folder)
    weights = find_weights(folder).absolute()
    trained = str(read_training_config(weights)["model"].get("_target_", ""))
    if trained.endswith(".HuggingFaceSeq2Seq"):
        return _texts_of_hugging_face({"weights": str(weights)})
    last = {k: v for k, v in read_decoding(folder).items() if k in ("decoder", "device")}
    target = f"{_ASR}.inference.Speech2Text"
    return _recognizer({"_target_": target, "weights": str(weights), **last}, wants_times)


def _refuse_recipe(folder: Path) -> None:
    """Refuse a folder in which nothing is trained: that of a recipe, with the line for a training.

    Raises:
        ConfigError: with the newest training below it.
    """
    from espnet3.systems.base.training_record import has_weights

    if has_weights(folder):
        return
    files = [*folder.glob(f"exp/*/{CONFIG}"), *folder.glob(f"*/{CONFIG}")]
    newest_first = sorted(files, key=lambda file: -file.stat().st_mtime)
    trained = [str(file.parent) for file in newest_first if has_weights(file.parent)]
    line = corrected_command([str(folder)], trained[:1]) if trained else ""
    raise ConfigError(
        f"{folder} has no trained model{f', but {listed(trained)} has' if trained else ''}.",
        fix=f"Write: {line}" if line else "Give the folder of a training, such as exp/training",
    )


def _recognizer(block: dict[str, Any], wants_times: bool) -> dict[str, Any]:
    times = {"word_times": True} if wants_times else {}
    return {
        "model": {**block, "window_seconds": _WINDOW_SECONDS, **times},
        "input_key": ["speech", "sample_rate"],
        "output_fn": f"{_ASR}.inference.output_fn",
        "batch_seconds": _BATCH_SECONDS,
    }


def _hugging_face(block: dict[str, Any], folder: Path, wants_times: bool) -> dict[str, Any]:
    try:
        names = json.loads((folder / "config.json").read_text()).get("architectures") or []
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"{folder / 'config.json'} cannot be read ({error}).",
            fix="Give a folder that save_pretrained wrote",
        ) from error
    target = f"{_ASR}.huggingface_inference.HuggingFaceSpeech2Text"
    if any(name.endswith("ForCTC") for name in names):
        return _recognizer({"_target_": target, **block}, wants_times)
    return _texts_of_hugging_face(block)


def _texts_of_hugging_face(block: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a sequence-to-sequence model, which tells no times."""
    return _recognizer(
        {"_target_": f"{_ASR}.huggingface_inference.HuggingFaceSpeech2Text", **block}, False
    )


def _moonshine() -> dict[str, Any]:
    from importlib.util import find_spec

    from espnet3.systems.asr.moonshine import INSTALL, SAMPLE_RATE

    if find_spec("moonshine_voice") is None or find_spec("onnxruntime") is None:
        raise MissingExtraError(
            "No --model is given, and the one that would be taken then, Moonshine for English, is "
            "not installed.",
            fix=f"Give one: --model exp/training; or install it. {INSTALL}",
        )
    return {
        "model": {"_target_": f"{_ASR}.moonshine.Moonshine"},
        "device": "cpu",
        "sample_rate": SAMPLE_RATE,
        "batch_size": 8,
        "batch_seconds": 60.0,
    }


def _is_dotted(text: str) -> bool:
    parts = text.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def _own_class(name: str) -> dict[str, Any]:
    """Return the settings of a class of the user's, which is called with speech or a rate too."""
    from espnet3.config.targets import BadTarget, locate, signature_of

    if os.getcwd() not in sys.path:  # as `python run.py` has it
        sys.path.insert(0, os.getcwd())
    try:
        found = locate(name)
    except BadTarget as error:
        raise ConfigError(
            f"--model is {name!r}, but {error}", fix="Give a class that can be imported from here"
        ) from None
    call = signature_of(found.__call__) if isinstance(found, type) else None
    names = call.parameters if call is not None else ()
    keys = ["speech", "sample_rate"] if "sample_rate" in names else "speech"
    return {"model": {"_target_": name}, "input_key": keys}


def read_transcripts(loaded: "LoadedConfig") -> Iterator[Transcript]:
    """Yield what was recognised, in the order of the audio."""
    from espnet3.systems.base.inference import open_test_set

    for name, folder in _results(loaded).items():
        texts = load_scp(folder / "hyp.scp")
        words = load_scp(folder / "words.scp") if (folder / "words.scp").is_file() else {}
        dataset = open_test_set(loaded, name)
        seconds = dataset.durations(0.0)
        for i in range(len(dataset)):
            id = dataset.fields(i)["utt_id"]
            if id in texts:  # else it failed
                timed = _words_of(words[id]) if id in words else None
                audio = dataset.audio_file(i)
                yield Transcript(id, texts[id], audio, round(seconds[i], 3), timed)


def scoring_config(loaded: "LoadedConfig") -> "LoadedConfig | None":
    """Return what scores the texts; None unless each test set has references."""
    from espnet3.config.load import load_config

    if not all((folder / "ref.scp").is_file() for folder in _results(loaded).values()):
        return None
    metrics = [
        {"metric": {"_target_": f"{_ASR}.metrics.{name}.{name.upper()}",
                    "ref_key": "ref", "hyp_key": "hyp"}}
        for name in ("wer", "cer")
    ]  # fmt: skip
    folder = str(loaded.config.inference_dir)
    return load_config({"inference_dir": folder, "metrics": metrics, "on_missing": "skip"})


def failures(loaded: "LoadedConfig") -> dict[Path, list[dict[str, Any]]]:
    """Return the audio that could not be recognised, by run folder."""
    found = {folder: read_failures(folder) for folder in _results(loaded).values()}
    return {folder: items for folder, items in found.items() if items}


def _results(loaded: "LoadedConfig") -> dict[str, Path]:
    """Return the run folders by test set."""
    from espnet3.systems.base.context import results_folder
    from espnet3.systems.base.inference_config import listed_test_sets, load_inference_config

    config = load_inference_config(loaded)
    names = listed_test_sets(config.dataset)
    return {name: results_folder(config.inference_dir, name) for name in names}


def _words_of(line: str) -> tuple[WordRow, ...]:
    return tuple(WordRow(**row) for row in json.loads(line))


def write_transcripts(
    transcripts: Sequence[Transcript], output: Path, formats: Sequence[str]
) -> list[Path]:
    """Write the texts in each format, and return the files or, of several, their folder."""
    written = []
    for name in formats:
        if name in _ENDINGS:
            folder = output / name
            for one in transcripts:
                _write_single(one, name, folder)
            written.append(folder)
        else:
            path = output / f"transcripts.{'txt' if name == 'text' else name}"
            with open_atomic(path, "w") as file:
                file.writelines(_lines_of(one, name) for one in transcripts)
            written.append(path)
    return written


def _write_single(one: Transcript, name: str, folder: Path) -> None:
    parts = [safe_name(part) for part in one.id.split("/") if part not in ("", ".", "..")]
    file = folder.joinpath(*parts[:-1], f"{parts[-1]}{_ENDINGS[name]}")
    file.parent.mkdir(parents=True, exist_ok=True)
    words = one.words or ()
    if name == "textgrid":
        write_text(file, format_textgrid(words, one.seconds))
    else:
        write_text(file, format_srt(words) if name == "srt" else format_vtt(words))


def _lines_of(one: Transcript, name: str) -> str:
    if name == "ctm":
        return format_ctm(one.id, one.words or ())
    if name == "jsonl":
        return one.as_json() + "\n"
    return f"{one.id} {one.text}".rstrip() + "\n"
