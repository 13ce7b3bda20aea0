"""What the model is fed. Replace `__init__` and `__getitem__` by what reads your corpus."""

from pathlib import Path
from typing import Any

from espnet3.components.data.audio import read_audio
from espnet3.config.fingerprint import file_identity
from espnet3.io.tables import read_jsonl

MANIFEST = "manifest.jsonl"
SAMPLE_RATE = 8000


class Dataset:
    """The utterances of a manifest; made from the `data_src_args` of a config.

    Args:
        path: Folder with the manifest, to which the paths of the audio are relative.
    """

    def __init__(self, path: str | Path) -> None:
        self._folder = Path(path)
        self._rows = list(read_jsonl(self._folder / MANIFEST))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self._rows[index]
        audio = read_audio(self._folder / row["audio"], sample_rate=SAMPLE_RATE)
        return {
            "utt_id": row["utt_id"],
            "speech": audio.samples,
            "text": row["text"],
            "speaker": row["speaker"],
        }

    def durations(self) -> list[float]:
        """Return the seconds of each utterance: for batches, and to start with the longest."""
        return [row["duration"] for row in self._rows]

    def fingerprint(self) -> str:
        """Return what changes when the data does: results of other data are then not reused."""
        return str(file_identity(self._folder / MANIFEST)["sha256"])
