"""What is wrong with audio files, beyond what libsndfile says: how to see it, and words for it."""

import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from espnet3.components.data.errors import AudioError

if TYPE_CHECKING:
    import numpy as np

Source = str | os.PathLike[str] | bytes
"""A path, or the content of an audio file."""

# The length that these declare is not exact.
_LOSSY = ("MP3", "OGG")
_MAX_SHORTFALL_SECONDS = 0.1
_FLOATS = ("FLOAT", "DOUBLE")
# libsndfile takes what is there for the length, and tells only here what the header promised.
_SHORT_CHUNK = re.compile(r"^ *(?:data|SSND|Data Size) *: (\d+) \(should be (\d+)\)", re.MULTILINE)
_RF64_FRAMES = re.compile(r"Calculated frame count \d+ does not match value .* of (\d+)")
_CHUNKED = ("WAV", "WAVEX", "AIFF", "AU", "RF64")
# What writes to a pipe cannot know the length: sox and ffmpeg promise two or four gigabytes.
_LEAST_UNKNOWN_SIZE = 0x7FFF0000
_NIST_SAMPLES = re.compile(rb"^sample_count -i (\d+)", re.MULTILINE)
_NIST_HEADER = 1024
# A header without samples is much smaller.
_MAX_EMPTY_BYTES = 4096
_MAX_FRAMES = 1 << 62


def name_of(source: Source) -> str:
    """Return how an error calls a source."""
    return f"audio of {len(source)} bytes" if isinstance(source, bytes) else os.fspath(source)


def promised_frames(file: Any, source: Source) -> int:
    """Return how many frames the header of an open file promises, be they there or not.

    Raises:
        AudioError: The header does not tell, or says none in a file that holds more.
    """
    if file.frames > _MAX_FRAMES:
        raise AudioError(
            f"{name_of(source)} does not say how long it is, as it was written to a pipe. Write "
            f"it again: ffmpeg -i {_path(source)} OUT.flac"
        )
    n_frames: int = file.frames
    if file.format in _CHUNKED:
        n_frames = _promised_by_chunk(file.extra_info, n_frames, source)
    elif file.format == "NIST":
        found = _NIST_SAMPLES.search(_beginning(source, _NIST_HEADER))
        n_frames = max(n_frames, int(found[1])) if found else n_frames
    if n_frames == 0 and _size(source) > _MAX_EMPTY_BYTES:
        raise AudioError(
            f"{name_of(source)} has {_size(source)} bytes, but its header says that there is no "
            f"audio; perhaps a recording was not finished. Mend it: ffmpeg -i {_path(source)} "
            "OUT.wav; or make it again."
        )
    return n_frames


def check_length(n_read: int, n_wanted: int, file: Any, source: Source) -> None:
    """Raise an `AudioError` if less could be read than the header promises."""
    allowed = _MAX_SHORTFALL_SECONDS * file.samplerate if file.format in _LOSSY else 0
    if n_wanted - n_read > allowed:
        raise AudioError(
            f"{name_of(source)} is cut short: its header promises {n_wanted} samples, and "
            f"{n_read} could be read. Copy or make the file again."
        )


def check_finite(samples: "np.ndarray[Any, Any]", file: Any, source: Source) -> None:
    """Raise an `AudioError` if a sample is NaN or infinite, which only files of floats can hold."""
    import numpy as np

    if file.subtype not in _FLOATS:
        return
    is_bad = ~np.isfinite(samples)
    if is_bad.any():
        first = int(np.argmax(is_bad.any(axis=1) if is_bad.ndim == 2 else is_bad))
        raise AudioError(
            f"{name_of(source)} has {int(is_bad.sum())} samples that are no finite number, the "
            f"first at {first / file.samplerate:g} s of what was read. Make the file again, or "
            "leave the utterance out."
        )


def diagnose(source: Source, error: Exception) -> str:
    """Return why soundfile could not read something, and what to do."""
    name = name_of(source)
    if isinstance(source, bytes):
        reason = "It is no audio that soundfile knows. Make the data again."
    elif not name:
        return "The path of an audio file is empty. Write it where the data is listed."
    elif not os.path.exists(source):
        return f"{name} does not exist. Correct its path, or make the file."
    elif os.path.isdir(source):
        return f"{name} is a folder. Write the path of an audio file."
    elif not os.access(source, os.R_OK):
        return f"{name} may not be read by you. Let its owner run: chmod a+r {_path(source)}"
    elif os.path.getsize(source) == 0:
        return f"{name} is empty. Copy or make the file again."
    else:
        reason = (
            f"If it plays, convert it: ffmpeg -i {_path(source)} OUT.wav; if not, make it again."
        )
    # soundfile names the file first: its path, or the object that it was read from.
    text = str(error).rpartition(": ")[2].rstrip(".")
    return f"{name} cannot be read as audio: {text}. {reason}"


def _promised_by_chunk(info: str, n_frames: int, source: Source) -> int:
    exact = _RF64_FRAMES.search(info)
    if exact:
        return max(n_frames, int(exact[1]))
    found = _SHORT_CHUNK.search(info)
    if not found or int(found[1]) >= _LEAST_UNKNOWN_SIZE:
        return n_frames
    promised, there = int(found[1]), int(found[2])
    if not n_frames:
        return promised  # in bytes; all that matters is that it is more than 0
    return n_frames + max(0, promised - there) * n_frames // there


def _path(source: Source) -> str:
    return "IN.wav" if isinstance(source, bytes) else shlex.quote(os.fspath(source))


def _size(source: Source) -> int:
    return len(source) if isinstance(source, bytes) else os.path.getsize(source)


def _beginning(source: Source, n_bytes: int) -> bytes:
    if isinstance(source, bytes):
        return source[:n_bytes]
    with open(source, "rb") as file:
        return file.read(n_bytes)
