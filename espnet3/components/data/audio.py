"""Read audio files and their lengths with soundfile; nothing is resampled or mixed unasked."""

import io
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from espnet3.components.data.errors import AudioError

if TYPE_CHECKING:
    import numpy as np

Source = str | os.PathLike[str] | bytes
"""A path, or the content of an audio file."""

T = TypeVar("T")
R = TypeVar("R")

# Segments are often rounded up; Kaldi cuts off as much without a word.
_MAX_OVERSHOOT_SECONDS = 0.5
# The length that lossy formats declare is not exact.
_MAX_SHORTFALL_SECONDS = 0.1
# A header takes 50 microseconds on a local disk, where threads are no gain, and milliseconds on a
# network file system, where they are.
_N_THREADS = 8
_ITEMS_PER_TASK = 64


class Audio(NamedTuple):
    """Samples as float32 of full scale 1, [samples] or [samples, channels], and their rate in Hz.

    Example:
        >>> speech, rate = read_audio("utt1.flac", sample_rate=16000)  # doctest: +SKIP
    """

    samples: "np.ndarray[Any, np.dtype[np.float32]]"
    sample_rate: int


def read_audio(
    source: Source,
    *,
    start: float = 0.0,
    end: float | None = None,
    channel: int | None = None,
    sample_rate: int | None = None,
) -> Audio:
    """Read a file or a part of it.

    Args:
        source: A path, or the content of a file.
        start: In seconds.
        end: In seconds; None for the end of the file. Up to 0.5 s beyond it are cut off.
        channel: Counted from 0. None keeps all: one channel as [samples], several as
            [samples, channels].
        sample_rate: The rate that the file must have; None for any.

    Raises:
        AudioError: The file is missing, unreadable, shorter than asked for, or has another rate or
            fewer channels; the message has a line to run or to write.
    """
    with _opened(source) as file:
        check_sample_rate(file.samplerate, sample_rate, source)
        first, last = _frame_range(file, start, end, source)
        file.seek(first)
        samples = file.read(last - first, dtype="float32")
        if last - first - len(samples) > _MAX_SHORTFALL_SECONDS * file.samplerate:
            raise AudioError(
                f"{name_of(source)} is cut short: its header promises {last - first} samples, and "
                f"{len(samples)} could be read. Copy or make the file again."
            )
        return Audio(pick_channel(samples, channel, source), file.samplerate)


def read_duration(source: Source) -> float:
    """Return the length in seconds from the header; no audio is decoded.

    Raises:
        AudioError: The file is missing or unreadable.
    """
    with _opened(source) as file:
        return float(file.frames / file.samplerate)


def in_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return `function(item)` for each item, in order; made for waiting on many small files."""
    from concurrent.futures import ThreadPoolExecutor

    def run(start: int) -> list[R]:
        return [function(item) for item in items[start : start + _ITEMS_PER_TASK]]

    starts = range(0, len(items), _ITEMS_PER_TASK)
    with ThreadPoolExecutor(_N_THREADS) as threads:
        return [result for results in threads.map(run, starts) for result in results]


def check_sample_rate(found: int, wanted: int | None, source: Source) -> None:
    """Raise an `AudioError` with the command that converts, unless the rate is as wanted."""
    if wanted is not None and found != wanted:
        name = name_of(source)
        path = shlex.quote(name) if not isinstance(source, bytes) else "IN.wav"
        raise AudioError(
            f"{name} is sampled at {found} Hz, but sample_rate is {wanted}. Audio is never "
            f"resampled unasked. Convert it: sox {path} -r {wanted} OUT.wav (or ffmpeg -i {path} "
            f"-ar {wanted} OUT.wav); or take it as it is: sample_rate: {found}"
        )


def pick_channel(samples: Any, channel: int | None, source: Source) -> Any:
    """Return one channel of [samples] or [samples, channels]; None keeps all."""
    if channel is None:
        return samples
    n_channels = samples.shape[1] if samples.ndim == 2 else 1
    if not 0 <= channel < n_channels:
        raise AudioError(
            f"{name_of(source)} has {n_channels} channel(s), but channel is {channel}, counted "
            f"from 0. Write a number below {n_channels}, such as channel: 0"
        )
    # A copy, so that the other channels do not stay in memory.
    return samples[:, channel].copy() if samples.ndim == 2 else samples


def name_of(source: Source) -> str:
    """Return how an error calls a source."""
    return f"audio of {len(source)} bytes" if isinstance(source, bytes) else os.fspath(source)


@contextmanager
def _opened(source: Source) -> Iterator[Any]:
    import soundfile

    try:
        with soundfile.SoundFile(
            io.BytesIO(source) if isinstance(source, bytes) else os.fspath(source)
        ) as file:
            yield file
    except soundfile.SoundFileError as error:
        raise AudioError(_diagnose(source, error)) from error


def _diagnose(source: Source, error: Exception) -> str:
    name = name_of(source)
    if isinstance(source, bytes):
        reason = "It is no audio that soundfile knows. Make the data again."
    elif not os.path.exists(source):
        return f"{name} does not exist. Correct its path, or make the file."
    elif os.path.isdir(source):
        return f"{name} is a folder. Write the path of an audio file."
    elif os.path.getsize(source) == 0:
        return f"{name} is empty. Copy or make the file again."
    else:
        path = shlex.quote(name)
        reason = f"If it plays, convert it: ffmpeg -i {path} OUT.wav; if not, make it again."
    # soundfile names the file first: its path, or the object that it was read from.
    text = str(error).rpartition(": ")[2].rstrip(".")
    return f"{name} cannot be read as audio: {text}. {reason}"


def _frame_range(file: Any, start: float, end: float | None, source: Source) -> tuple[int, int]:
    rate, n_frames = file.samplerate, file.frames
    first = round(start * rate)
    last = n_frames if end is None else round(end * rate)
    stop = min(last, n_frames)
    is_whole = first == 0 and end is None  # perhaps of a file without samples
    if not (is_whole or 0 <= first < stop) or last - n_frames > _MAX_OVERSHOOT_SECONDS * rate:
        until = "its end" if end is None else f"{end:g} s"
        raise AudioError(
            f"{name_of(source)} is {n_frames / rate:g} s long, but the part from {start:g} s to "
            f"{until} was asked for. Correct the start and end of that part."
        )
    return first, stop
