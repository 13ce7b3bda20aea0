"""The recordings of AudioMNIST: which speakers said which digits, in which files."""

import re
from collections import defaultdict
from pathlib import Path

from espnet3.errors import ConfigError

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

Takes = dict[str, dict[str, list[str]]]
"""For each speaker and word the files, relative to the corpus, by the number of the take."""

_NAME = re.compile(r"(\d)_(\d\d)_(\d+)\.(wav|flac)")
_HOW = (
    "Clone https://github.com/soerenab/AudioMNIST, and name the folder that has its data/: "
    "create_dataset.source=/corpora/AudioMNIST"
)


def find_takes(source: str | Path) -> Takes:
    """Return all recordings below `<source>/data/<speaker>/<digit>_<speaker>_<take>.wav`, or .flac.

    Raises:
        ConfigError: The folder is not the corpus, or a speaker lacks a digit.
    """
    root = Path(source)
    found: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for path in sorted(root.glob("data/*/*")):
        match = _NAME.fullmatch(path.name)
        if match and match[2] == path.parent.name:
            files = found[match[2], DIGITS[int(match[1])]]
            files[int(match[3])] = str(path.relative_to(root))
    speakers = sorted({speaker for speaker, _ in found})
    if not speakers:
        raise ConfigError(
            f"create_dataset.source is {str(source)!r}, which has no data/01/0_01_0.wav and so on. "
            f"{_HOW}"
        )
    for speaker in speakers:
        missing = [digit for digit in DIGITS if len(found[speaker, digit]) < 2]
        if missing:
            raise ConfigError(
                f"{root}/data/{speaker} has fewer than two takes of {', '.join(missing)}; two are "
                f"needed, one for training and one for validation. Copy the corpus again. {_HOW}"
            )
    return {s: {d: _by_number(found[s, d]) for d in DIGITS} for s in speakers}


def _by_number(files: dict[int, str]) -> list[str]:
    return [files[number] for number in sorted(files)]
