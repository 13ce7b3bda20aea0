"""The layout of AN4: recordings in NIST Sphere files, and two lists of transcripts."""

import re
from dataclasses import dataclass
from pathlib import Path

from espnet3.components.data.errors import DataError

FOLDERS = {"train": "an4_clstk", "test": "an4test_clstk"}

_LINE = re.compile(r"(?:<s> )?(?P<text>.*?)(?: </s>)? \((?P<name>[^()\s]+)\)\s*")


@dataclass(frozen=True)
class Utterance:
    """One recording and its transcript."""

    name: str
    speaker: str
    text: str
    path: Path

    @property
    def utt_id(self) -> str:
        """The speaker comes first, as Kaldi wants it."""
        return f"{self.speaker}-{self.name}"


def find_corpus(folder: Path) -> Path | None:
    """Return the folder `an4` below another one, or None."""
    found = sorted(folder.glob("**/an4/etc/an4_train.transcription"))
    return found[0].parent.parent if found else None


def read_utterances(corpus: Path, split: str) -> tuple[list[Utterance], list[str]]:
    """Return the utterances of `train` or `test` by their ids, and recordings without transcript.

    Raises:
        DataError: A line is of another form, or its recording is missing.
    """
    recordings = {path.stem: path for path in (corpus / "wav" / FOLDERS[split]).glob("*/*.sph")}
    transcripts = corpus / "etc" / f"an4_{split}.transcription"
    found = []
    for number, line in enumerate(transcripts.read_text("utf-8").splitlines(), start=1):
        match = _LINE.fullmatch(line)
        path = recordings.pop(match["name"], None) if match else None
        if match is None or path is None:
            problem = "is of another form" if match is None else "has no recording"
            raise DataError(f"{transcripts}:{number} {problem}: {line!r}. Unpack AN4 again.")
        found.append(Utterance(match["name"], path.parent.name, match["text"], path))
    return sorted(found, key=lambda utterance: utterance.utt_id), sorted(recordings)
