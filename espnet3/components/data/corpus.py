"""Build a synthetic corpus: a table of its utterances, then the audio of each by workers."""

import hashlib
import importlib
import io
import json
import logging
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.components.data.data_organizer import RECIPE_PREFIX, load_package
from espnet3.components.data.errors import DataError
from espnet3.io.atomic import (
    JsonlWriter,
    dump_json,
    fsync_dir,
    fsync_file,
    is_temp_name,
    open_atomic,
    write_bytes,
    write_json,
)
from espnet3.io.scp import safe_name
from espnet3.io.tables import read_jsonl
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.env_provider import EnvironmentProvider
from espnet3.parallel.identity import RULE, describe_code
from espnet3.parallel.own_modules import describe_value

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]
MakeAudio = Callable[[Any], Any]
AUDIO = "audio"
_MANIFEST = "manifest"
_RESULTS = "results.jsonl"
_MARKER = "corpus.json"
_BUILD = ".build"
_CODE_RULE = "code_rule"


@dataclass(frozen=True)
class Corpus:
    """Source and target folder of a corpus that is made.

    Args:
        folder: All that is in it afterwards is the corpus: the audio in `audio/`, a manifest that
            the source `jsonl` reads, and `corpus.json`, written last.
        rows: A mapping of plain values for each utterance, in the order of the manifest; `utt_id`
            names it, `text` is what is said. The manifest has all of it, and adds `audio`, a path
            relative to it, and `duration` in seconds.
        make_audio: A function of a module that returns the samples of a row, reals from -1 to 1 of
            [samples] or [samples, channels]. It must depend on the row alone.
        sample_rate: Of the samples, in Hz.
        format: Of the files: flac or wav, of 16 bits.
        split_by: A field of the rows, such as `set`: each of its values gets a manifest of its own,
            `<value>.jsonl`. None: there is one, `manifest.jsonl`.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> def beep(row):
        ...     return 0.5 * np.sin(row["pitch"] * np.arange(800))
        >>> folder = Path(tempfile.mkdtemp())
        >>> rows = [{"utt_id": "a", "text": "beep", "pitch": 0.1}]
        >>> corpus = Corpus(folder, rows, beep, sample_rate=8000)
        >>> corpus.is_built(), corpus.build(), corpus.is_built()
        (False, None, True)
        >>> next(read_jsonl(folder / "manifest.jsonl"))["duration"]
        0.1
    """

    folder: Path
    rows: Sequence[Row]
    make_audio: MakeAudio
    sample_rate: int
    format: str = "flac"
    split_by: str | None = None

    def is_built(self) -> bool:
        """Tell whether all is there, made from these very rows by this very function."""
        return self._is_whole(self._digest()) and not (self.folder / _BUILD).exists()

    def _is_whole(self, digest: str) -> bool:
        marker = self.folder / _MARKER
        if not marker.is_file():
            return False
        facts = json.loads(marker.read_bytes())
        return facts["digest"] == digest or (_CODE_RULE not in facts and self._has_these_rows())

    def _has_these_rows(self) -> bool:
        """Tell whether the manifests are of these rows, which an earlier version wrote.

        Its digest has another form of the code, and to make a large corpus again for that alone
        would be no help: the audio is the same to the last byte.
        """
        names = [self.folder / f"{name}.jsonl" for name in self._manifests(self.rows)]
        there = [row for name in names if name.is_file() for row in read_jsonl(name)]
        found = {row["utt_id"]: row for row in there}
        # As they come back from a file, in which a tuple is a list.
        wanted = [json.loads(dump_json(dict(row))) for row in self.rows]
        is_same = len(found) == len(wanted) > 0 and all(
            found.get(row["utt_id"], {}).items() >= row.items() for row in wanted
        )
        if not is_same or not self._has_form_of(self.folder / there[0]["audio"]):
            return False
        logger.warning(
            "The corpus in %s is of an earlier ESPnet3: whether the code that makes it changed "
            "since then was not compared", self.folder,
        )  # fmt: skip
        return True

    def _has_form_of(self, audio: Path) -> bool:
        import soundfile

        is_right = audio.suffix == f".{self.format}" and audio.is_file()
        return is_right and bool(soundfile.info(audio).samplerate == self.sample_rate)

    def build(self) -> None:
        """Make what is missing; a corpus of other rows in this folder is removed first.

        Raises:
            DataError: The rows are wrong, or the folder holds something else.
        """
        self._check_rows()
        digest = self._digest()
        if not self._is_whole(digest):
            self._make(digest)
        shutil.rmtree(self.folder / _BUILD, ignore_errors=True)

    def _make(self, digest: str) -> None:
        # Named by the digest, so that the remains of another corpus are never continued.
        work = self.folder / _BUILD / digest[:16]
        if not work.exists():
            self._clear(work)
        _write_rows(work / "rows.jsonl", self.rows)
        provider = CorpusProvider(
            {
                "rows": str(work / "rows.jsonl"),
                "folder": str(self.folder.resolve()),
                "sample_rate": self.sample_rate,
                "format": self.format,
            },
            self.make_audio,
        )
        runner = CorpusRunner(provider, output_dir=work / "run", depends_on={"corpus": digest})
        made = runner(range(len(self.rows)))
        self._finish(list(read_jsonl(made)), digest)

    def _finish(self, made: Sequence[Row], digest: str) -> None:
        for path in (self.folder / AUDIO).iterdir():
            if is_temp_name(path.name):  # of a worker that was killed
                path.unlink()
        rows = [{**row, **facts} for row, facts in zip(self.rows, made, strict=True)]
        for name, own in self._manifests(rows).items():
            _write_rows(self.folder / f"{name}.jsonl", own)
        seconds = sum(row["duration"] for row in rows)
        facts = {"digest": digest, "n_utterances": len(rows), "seconds": round(seconds, 3)}
        facts[_CODE_RULE] = RULE
        write_json(self.folder / _MARKER, facts)

    def _manifests(self, rows: Sequence[Row]) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in rows:
            name = _MANIFEST if self.split_by is None else str(row[self.split_by])
            found.setdefault(name, []).append(row)
        return found

    def _digest(self) -> str:
        described = {
            "rows": [dict(row) for row in self.rows],
            "make_audio": describe_value(self.make_audio),
            "code": describe_code(self.make_audio),
            "sample_rate": self.sample_rate,
            "format": self.format,
            "split_by": self.split_by,
        }
        return hashlib.sha256(dump_json(described).encode()).hexdigest()

    def _check_rows(self) -> None:
        ids = [row.get("utt_id") for row in self.rows]
        if not ids:
            raise DataError(f"The corpus {self.folder} has no rows; give it one per utterance.")
        for i, id in enumerate(ids):
            if not isinstance(id, str) or not id or len(id.split()) != 1:
                raise DataError(
                    f"Row {i} of the corpus {self.folder} has the utt_id {id!r}; it must be one "
                    f"word, such as utt{i:04d}."
                )
        if len(set(ids)) < len(ids):
            twice = next(id for id in ids if ids.count(id) > 1)
            raise DataError(
                f"The utt_id {twice!r} is in two rows of the corpus {self.folder}. Number them."
            )
        if self.split_by is not None and any(self.split_by not in row for row in self.rows):
            raise DataError(
                f"A row of the corpus {self.folder} lacks {self.split_by!r}, by which its "
                "manifests are split.",
                fix="Add it to each row.",
            )

    def _clear(self, work: Path) -> None:
        """Remove another corpus, its mark of completeness first."""
        is_ours = (self.folder / _MARKER).exists() or (self.folder / _BUILD).exists()
        if self.folder.exists() and not is_ours and any(self.folder.iterdir()):
            raise DataError(
                f"{self.folder} is to hold a corpus, but holds something else.",
                fix="Name another folder, or empty it.",
            )
        # Killed between any two of these, the next call comes here again.
        (self.folder / _BUILD).mkdir(parents=True, exist_ok=True)
        (self.folder / _MARKER).unlink(missing_ok=True)
        for manifest in self.folder.glob("*.jsonl"):
            manifest.unlink()
        shutil.rmtree(self.folder / AUDIO, ignore_errors=True)
        for other in (self.folder / _BUILD).iterdir():
            shutil.rmtree(other)
        (self.folder / AUDIO).mkdir()
        work.mkdir()


def build_corpus(
    folder: str | Path,
    rows: Sequence[Row],
    make_audio: MakeAudio,
    *,
    sample_rate: int,
    format: str = "flac",
    split_by: str | None = None,
) -> None:
    """Make a corpus unless it is there; see `Corpus`."""
    corpus = Corpus(Path(folder), rows, make_audio, sample_rate, format, split_by)
    if not corpus.is_built():
        corpus.build()


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    with open_atomic(path) as file:
        file.writelines(dump_json(dict(row)) + "\n" for row in rows)


@dataclass(frozen=True)
class RecipeFunction:
    """A function of a recipe's `dataset/`, which no worker could import under its name."""

    file: str
    """The `__init__.py` of the package."""
    module: str
    name: str

    def load(self) -> Any:
        """Return the function."""
        load_package(Path(self.file))
        return getattr(importlib.import_module(self.module), self.name)


class CorpusProvider(EnvironmentProvider):
    """Gives a worker the rows and the function; `config` has `rows`, `folder` and the format."""

    def __init__(self, config: dict[str, Any], make_audio: Callable[[Any], Any]) -> None:
        super().__init__(config)
        self.make_audio = _as_sent(make_audio)

    def build_env_local(self) -> dict[str, Any]:
        """Read the rows."""
        function = self.make_audio
        return {
            "rows": list(read_jsonl(self.config["rows"])),
            "make_audio": function.load() if isinstance(function, RecipeFunction) else function,
            "folder": Path(self.config["folder"]),
            "sample_rate": self.config["sample_rate"],
            "format": self.config["format"],
        }

    def build_worker_setup_fn(self) -> Callable[[], dict[str, Any]]:
        """Return what does the same in a worker."""
        return self.build_env_local


class CorpusRunner(BaseRunner):
    """Writes the audio files to their final place, and where they are to `results.jsonl`.

    A shard may run twice, at the same time even: a file appears whole, and is the same each time.
    """

    can_detach = False  # the manifest is written from what it returns
    not_results = ("config.rows", "config.folder", "make_audio")  # `depends_on` has a digest

    @staticmethod
    def forward(  # type: ignore[override]
        idx: int,
        rows: list[dict[str, Any]],
        make_audio: Callable[[Any], Any],
        folder: Path,
        sample_rate: int,
        format: str,
    ) -> dict[str, Any]:
        """Make one file and return its path and duration."""
        row = rows[idx]
        samples = _checked(make_audio(row), row)
        path = f"{AUDIO}/{safe_name(row['utt_id'])}.{format}"
        # What another file of the shard, or a crash, may take away is forced to disk at its end.
        write_bytes(folder / path, _encode(samples, sample_rate, format), sync=False)
        return {"audio": path, "duration": len(samples) / sample_rate}

    @staticmethod
    def open_writers(shard_dir: Path, **env: Any) -> JsonlWriter:
        """Open the file of results of a shard."""
        return JsonlWriter(shard_dir / _RESULTS)

    @staticmethod
    def write_record(writers: JsonlWriter, result: Any, state: dict[str, Any], **env: Any) -> None:
        """Write a line for a file."""
        state.setdefault("paths", []).append(result["audio"])
        writers.write(result)

    @staticmethod
    def close_writers(writers: JsonlWriter, state: dict[str, Any], **env: Any) -> None:
        """Force the audio of the shard to disk: when it counts as done, it must be there."""
        writers.close()
        for path in state.get("paths", []):
            fsync_file(env["folder"] / path)
        fsync_dir(env["folder"] / AUDIO)

    def merge(self, shard_dirs: Any) -> Path:
        """Join the results."""
        from espnet3.shards.merge import join_files

        assert self.output_dir is not None
        join_files(shard_dirs, _RESULTS, self.output_dir / _RESULTS)
        return self.output_dir / _RESULTS


def _as_sent(function: Callable[[Any], Any]) -> Any:
    """Return a function as it can be sent to a worker."""
    package = function.__module__.partition(".")[0]
    if not package.startswith(RECIPE_PREFIX):
        return function
    file = str(sys.modules[package].__file__)
    return RecipeFunction(file, function.__module__, function.__qualname__)


def _checked(samples: Any, row: dict[str, Any]) -> "np.ndarray[Any, Any]":
    import numpy as np

    audio = np.asarray(samples)
    if audio.ndim in (1, 2) and audio.dtype.kind == "f" and len(audio) and np.isfinite(audio).all():
        return audio
    raise DataError(
        f"make_audio returned {audio.dtype} of shape {audio.shape} for {row['utt_id']}, where real "
        "numbers from -1 to 1 of [samples] or [samples, channels] are expected, none of them NaN."
    )


def _encode(samples: "np.ndarray[Any, Any]", sample_rate: int, format: str) -> bytes:
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, samples, sample_rate, format=format, subtype="PCM_16")
    return buffer.getvalue()
