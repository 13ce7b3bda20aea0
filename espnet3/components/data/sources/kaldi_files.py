"""The text files of a Kaldi data directory, read fast and refused with file and line."""

import math
import re
import shlex
from codecs import BOM_UTF8
from collections.abc import Mapping
from pathlib import Path

from espnet3.io.scp import RecordError, check_id, read_scp

Segment = tuple[str, float, float | None]
"""Recording, start and end in seconds; None for the end of the recording."""

_TO_THE_END = re.compile(r"-1(\.0*)?")
_ARCHIVE = re.compile(r":\d+(\[[\d:,]*\])?$")


def read_table(file: Path) -> dict[str, str]:
    """Return the values by id, in the order of the file; a line may have an id only.

    Raises:
        RecordError: A line has no id, an impossible one or one that was there before, or is not
            UTF-8.
    """
    # Four times as fast as `read_scp`, which is left to find the line and the words for it. ASCII
    # white space only, as in Kaldi; a backslash is one.
    lines = file.read_bytes().removeprefix(BOM_UTF8).removesuffix(b"\n").split(b"\n")
    try:
        pairs = [(id.decode(), rest) for id, rest in map(_split, lines)]
        table = {id: rest.decode() for id, rest in pairs}
        for id in table:
            check_id(id)
    except ValueError:
        table, pairs = {}, [("", b"")]
    if len(table) < len(pairs) and lines != [b""]:
        for _ in read_scp(file):
            pass
        raise RecordError(f"{file} is no table of `<id> <value>` lines. Write it again.")
    return table


def read_segments(file: Path, recordings: Mapping[str, str]) -> dict[str, Segment] | None:
    """Return the parts by utterance, or None if there is no such file.

    Raises:
        RecordError: A line is not `<id> <recording> <start> <end>`, or names no recording of
            `wav.scp`.
    """
    if not file.exists():
        return None
    return {id: _segment(id, rest, file, recordings) for id, rest in read_table(file).items()}


def read_numbers(file: Path) -> dict[str, float]:
    """Return the seconds by id; empty if there is no such file.

    Raises:
        RecordError: A value is not a finite number, 0 or more.
    """
    if not file.exists():
        return {}
    return {id: _seconds(text, id, file) for id, text in read_table(file).items()}


def check_wav_values(wavs: Mapping[str, str], file: Path) -> None:
    """Raise a `RecordError` for the first value that is not the path of a file."""
    for id, value in wavs.items():
        if not value:
            raise RecordError(f"{line_of(file, id)} has no path. Write: {id} /path/to/{id}.wav")
        if value.endswith("|"):
            raise RecordError(
                f"{line_of(file, id)} is a command, {value!r:.80}, and commands are never executed "
                f"here. Run them once, then write path: {file.parent}_wav. "
                f"{_command_to_run_pipes(file)}"
            )
        # Without a look at the file: a name may end like that, but hardly ever does.
        if _ARCHIVE.search(value) or value == "-":
            raise RecordError(
                f"{line_of(file, id)} is a part of an archive, {value!r:.80}, and not an audio "
                "file. In the ESPnet2 recipe, write files: scripts/audio/format_wav_scp.sh "
                f"--audio-format wav {shlex.quote(str(file))} {shlex.quote(f'{file.parent}_wav')}"
            )


def line_of(file: Path, id: str) -> str:
    """Return `<file>:<line> (<id>)`; for errors, so it reads the file again."""
    lines = file.read_bytes().split(b"\n")
    number = next((n for n, line in enumerate(lines, 1) if _split(line)[0] == id.encode()), 0)
    return f"{file}:{number} ({id})"


def _split(line: bytes) -> tuple[bytes, bytes]:
    match line.split(None, 1):
        case [id, rest]:
            return id, rest.rstrip()
        case [id]:
            return id, b""
    return b"", b""


def _segment(id: str, rest: str, file: Path, recordings: Mapping[str, str]) -> Segment:
    parts = rest.split()
    if len(parts) < 3:
        raise RecordError(
            f"{line_of(file, id)} is incomplete. Write: {id} RECORDING START END, times in seconds"
        )
    if len(parts) > 3:
        raise RecordError(
            f"{line_of(file, id)} has {parts[3]!r} after its end, a channel in Kaldi, which is not "
            "read here. Delete it, and choose the channel of all utterances: channel: 0"
        )
    recording, start = parts[0], _seconds(parts[1], id, file)
    if recording not in recordings:
        raise RecordError(
            f"{line_of(file, id)} names the recording {recording!r}, which wav.scp does not have. "
            f"Make them agree: utils/fix_data_dir.sh {shlex.quote(str(file.parent))}"
        )
    end = None if _TO_THE_END.fullmatch(parts[2]) else _seconds(parts[2], id, file)
    if end is not None and end <= start:
        raise RecordError(
            f"{line_of(file, id)} ends at {end:g} s, not after its start at {start:g} s. Correct "
            "the line, or write -1 for the end of the recording."
        )
    return recording, start, end


def _seconds(text: str, id: str, file: Path) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if 0 <= seconds < math.inf:
        return seconds
    raise RecordError(
        f"{line_of(file, id)} has {text!r} where a number of seconds is expected. "
        "Write one, 0 or more, such as 3.25"
    )


def _command_to_run_pipes(file: Path) -> str:
    old, new = shlex.quote(str(file.parent)), shlex.quote(f"{file.parent}_wav")
    return (
        f"cp -r {old} {new} && while read -r id command; do "
        f'eval "${{command%|}}" < /dev/null > {new}/"$id".wav && '
        f'echo "$id" {new}/"$id".wav; done < {old}/wav.scp > {new}/wav.scp'
    )
