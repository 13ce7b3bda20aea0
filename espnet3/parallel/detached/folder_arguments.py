"""Encode run folders as words of the command line in a job script."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from espnet3.text import has_control_characters

_ENCODED = "json:"


def encode_folders(folders: Sequence[Path]) -> list[str]:
    """Return a word per folder, none of which has a line break or another control character.

    A line of a job script that begins with `#$` is an option for Grid Engine wherever it stands,
    also inside quotes; and a submit file of HTCondor has no way to write a line break.
    """
    return [_spell(os.fspath(folder)) for folder in folders]


def _spell(folder: str) -> str:
    if has_control_characters(folder) or folder.startswith(_ENCODED):
        return _ENCODED + json.dumps(folder)
    return folder


def decode_folder(word: str) -> Path:
    """Return the folder that a word stands for.

    Raises:
        ValueError: if the word is damaged.
    """
    return Path(json.loads(word.removeprefix(_ENCODED)) if word.startswith(_ENCODED) else word)
