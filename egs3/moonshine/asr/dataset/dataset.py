"""Speech in the layout of LibriSpeech."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.components.data.audio import in_threads, read_audio, read_duration
from espnet3.components.data.errors import DataError
from espnet3.config.fingerprint import digest
from espnet3.io.scp import read_scp

SAMPLE_RATE = 16000
FLAC_HEADER = 42  # bytes; the last 16 are a checksum of the samples


@dataclass(frozen=True)
class Utterance:
    """One FLAC file and its line in the transcripts."""

    utt_id: str
    text: str
    path: Path

    @property
    def speaker(self) -> str:
        """The first part of `<speaker>-<chapter>-<number>`."""
        return self.utt_id.partition("-")[0]


class Dataset:
    """All utterances below a folder: `<speaker>/<chapter>/` with FLAC files and `*.trans.txt`.

    Args:
        path: The folder, such as `/corpora/LibriSpeech/test-clean`.

    Raises:
        DataError: There are no transcripts, an utterance has no FLAC file or is there twice.
    """

    def __init__(self, path: str | Path) -> None:
        self._utterances = _find_utterances(Path(path))

    def __len__(self) -> int:
        return len(self._utterances)

    def __getitem__(self, index: int) -> dict[str, Any]:
        utterance = self._utterances[index]
        speech, sample_rate = read_audio(utterance.path, sample_rate=SAMPLE_RATE)
        return {
            "utt_id": utterance.utt_id,
            "speech": speech,
            "sample_rate": sample_rate,
            "text": utterance.text,
            "speaker": utterance.speaker,
        }

    def durations(self) -> list[float]:
        """Return the seconds of each utterance, from the headers."""
        return in_threads(read_duration, [utterance.path for utterance in self._utterances])

    def fingerprint(self) -> str:
        """Return a digest of ids, texts and the checksums in the headers."""
        headers = in_threads(_read_header, [utterance.path for utterance in self._utterances])
        texts = [(utterance.utt_id, utterance.text) for utterance in self._utterances]
        return digest({"texts": texts, "headers": headers})


def _find_utterances(folder: Path) -> list[Utterance]:
    files = sorted(folder.glob("**/*.trans.txt"))
    if not files:
        problem = "has no */*/*.trans.txt below it" if folder.is_dir() else "is no folder"
        raise DataError(
            f"path is {str(folder)!r}, which {problem}. For the speech that comes with the model, "
            "run the stage create_dataset first; for LibriSpeech, name the folder of a subset: "
            "dataset_dir=/corpora/LibriSpeech/test-clean"
        )
    found: dict[str, Utterance] = {}
    for file in files:
        for utt_id, text in read_scp(file):
            if utt_id in found:
                raise DataError(
                    f"{utt_id} is in {file} and in {found[utt_id].path.parent}. Write the path of "
                    "one subset, or remove one of the two."
                )
            found[utt_id] = Utterance(utt_id, text, _flac_of(utt_id, file))
    return list(found.values())


def _flac_of(utt_id: str, transcripts: Path) -> Path:
    path = transcripts.with_name(f"{utt_id}.flac")
    if not path.is_file():
        raise DataError(
            f"{transcripts} has the text of {utt_id}, but {path} does not exist. Unpack the corpus "
            "again, or delete that line."
        )
    return path


def _read_header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FLAC_HEADER)
