"""The layout of LibriSpeech: `<subset>/<speaker>/<chapter>/` with FLAC files and a transcript."""

from pathlib import Path
from typing import Any

from espnet3.components.data.errors import DataError
from espnet3.errors import ConfigError, suggest
from espnet3.io.scp import read_scp

MD5 = {
    "train-clean-100": "2a93770f6d5c6c964bc36631d331a522",
    "train-clean-360": "c0e676e450a7ff2f54aeade5171606fa",
    "train-other-500": "d1a0fd59409feb2c614ce4d30c387708",
    "dev-clean": "42e2234ba48799c1f50f24a7926300a1",
    "dev-other": "c8d0bcc9cca99d4f8b62fcc847357931",
    "test-clean": "32fa31d27d2e1cad72775fee3f4849a9",
    "test-other": "fb5a50374b501bb3bac4815ee91d3135",
}
"""The subsets, with the checksums of their archives that openslr.org publishes."""


def check_subsets(subsets: Any) -> list[str]:
    """Return the names, or raise a `ConfigError` for one that LibriSpeech does not have."""
    names = [subsets] if isinstance(subsets, str) else list(subsets)
    for name in names:
        if name not in MD5:
            raise ConfigError(
                f"create_dataset.subsets has {name!r}, which LibriSpeech does not."
                f"{suggest(str(name), MD5)} It has: {', '.join(MD5)}."
            )
    return names


def read_subset(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each utterance, in the order of speakers, chapters and numbers.

    Raises:
        DataError: There are no transcripts, or one of an utterance without a FLAC file.
    """
    rows = []
    for file in sorted(folder.glob("*/*/*.trans.txt"), key=_numbers):
        audio = {path.name for path in file.parent.iterdir()}
        for utt_id, text in read_scp(file):
            if f"{utt_id}.flac" not in audio:
                raise DataError(
                    f"{file} has the text of {utt_id}, but {utt_id}.flac is not beside it. Unpack "
                    "the archive again."
                )
            path = str(file.with_name(f"{utt_id}.flac").absolute())
            speaker = utt_id.partition("-")[0]
            rows.append({"utt_id": utt_id, "audio": path, "text": text, "speaker": speaker})
    if not rows:
        raise DataError(f"{folder} has no */*/*.trans.txt below it. Unpack the archive again.")
    return rows


def _numbers(file: Path) -> tuple[Any, ...]:
    return tuple((len(part), part) for part in file.parts[-3:-1])
