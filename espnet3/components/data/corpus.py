"""A corpus that is made, not downloaded: a table of what each utterance is to be, then its audio.

The audio is made on the workers of the `parallel` block that is in force. Killed, the same call
goes on, and the files are the same to the last byte, whatever the number of workers.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.components.data.corpus_runner import AUDIO, CorpusProvider, CorpusRunner
from espnet3.components.data.errors import DataError
from espnet3.io.atomic import is_temp_name, open_atomic, write_json
from espnet3.io.json_text import dump_json
from espnet3.io.tables import read_jsonl
from espnet3.parallel.live_values import describe_value
from espnet3.parallel.source import RULE, describe_code

logger = logging.getLogger(__name__)
Row = Mapping[str, Any]
MakeAudio = Callable[[Any], Any]

_MANIFEST = "manifest"
_MARKER = "corpus.json"
_BUILD = ".build"
_CODE_RULE = "code_rule"


@dataclass(frozen=True)
class Corpus:
    """What a corpus is made from, and where.

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

        Its digest has another form of the code, and to make a large corpus anew for that alone
        would be no help: the audio is the same to the last byte.
        """
        names = [self.folder / f"{name}.jsonl" for name in self._manifests(self.rows)]
        there = [row for name in names if name.is_file() for row in read_jsonl(name)]
        found = {row["utt_id"]: row for row in there}
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
                "manifests are split. Add it to each row."
            )

    def _clear(self, work: Path) -> None:
        """Remove another corpus, its mark of completeness first."""
        is_ours = (self.folder / _MARKER).exists() or (self.folder / _BUILD).exists()
        if self.folder.exists() and not is_ours and any(self.folder.iterdir()):
            raise DataError(
                f"{self.folder} is to hold a corpus, but holds something else. Name another "
                "folder, or empty it."
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
