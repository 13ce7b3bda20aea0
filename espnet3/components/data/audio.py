"""Read audio files and their lengths with soundfile; nothing is resampled or mixed unasked.

What happens to odd files is in docs/audio.md.
"""

import io
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from espnet3.components.data.audio_problems import (
    Source,
    check_finite,
    check_length,
    diagnose,
    name_of,
    promised_frames,
)
from espnet3.components.data.errors import AudioError
from espnet3.components.data.resampling import resample as to_rate

if TYPE_CHECKING:
    import numpy as np

CHANNEL_CHOICES = ("mix", "only")
"""What `channel` may be besides a number."""

T = TypeVar("T")
R = TypeVar("R")

# Segments are often rounded up; Kaldi cuts off as much without a word.
_MAX_OVERSHOOT_SECONDS = 0.5
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
    channel: int | str | None = None,
    sample_rate: int | None = None,
    resample: bool = False,
) -> Audio:
    """Read a file or a part of it.

    Args:
        source: A path, or the content of a file.
        start: In seconds.
        end: In seconds; None for the end of the file. Up to 0.5 s beyond it are cut off.
        channel: The one to take, counted from 0; `mix` for the mean of all, `only` for the only
            one of a file that must not have more. None keeps all: one channel as [samples],
            several as [samples, channels].
        sample_rate: The rate that the file must have; None for any.
        resample: Bring a file of another rate to `sample_rate`, instead of refusing it.

    Raises:
        AudioError: The file is missing, unreadable, shorter than asked for, has another rate or
            fewer channels, or samples that are no finite number; the message has a line to run or
            to write.
    """
    with _opened(source) as file:
        if not resample:
            check_sample_rate(file.samplerate, sample_rate, source)
        first, last = _frame_range(file, start, end, source)
        file.seek(min(first, file.frames))
        samples = file.read(last - first, dtype="float32")
        check_length(len(samples), last - first, file, source)
        check_finite(samples, file, source)
        samples, rate = pick_channel(samples, channel, source), file.samplerate
    if sample_rate is None:
        return Audio(samples, rate)
    return Audio(to_rate(samples, rate, sample_rate), sample_rate)


def read_duration(source: Source) -> float:
    """Return the length in seconds from the header; no audio is decoded.

    Raises:
        AudioError: The file is missing or unreadable.
    """
    with _opened(source) as file:
        return float(promised_frames(file, source) / file.samplerate)


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
            f"-ar {wanted} OUT.wav); or let it be done when it is read: resample: true; or take it "
            f"as it is: sample_rate: {found}"
        )


def pick_channel(samples: Any, channel: int | str | None, source: Source) -> Any:
    """Return one channel of [samples] or [samples, channels]; see `read_audio`."""
    n_channels = samples.shape[1] if samples.ndim == 2 else 1
    if channel is None or (samples.ndim == 1 and channel in CHANNEL_CHOICES):
        return samples
    if channel == "mix":
        return samples.mean(axis=1)
    if channel == "only" and n_channels > 1:
        raise AudioError(
            f"{name_of(source)} has {n_channels} channels, but channel is only. Take one, such as "
            "channel: 0, or their mean: channel: mix"
        )
    number = 0 if channel == "only" else int(channel)
    if not 0 <= number < n_channels:
        raise AudioError(
            f"{name_of(source)} has {n_channels} channel(s), but channel is {number}, counted "
            f"from 0. Write a number below {n_channels}, such as channel: 0"
        )
    # A copy, so that the other channels do not stay in memory.
    return samples[:, number].copy() if samples.ndim == 2 else samples


@contextmanager
def _opened(source: Source) -> Iterator[Any]:
    import soundfile

    try:
        with soundfile.SoundFile(
            io.BytesIO(source) if isinstance(source, bytes) else os.fspath(source)
        ) as file:
            yield file
    except soundfile.SoundFileError as error:
        raise AudioError(diagnose(source, error)) from error


def _frame_range(file: Any, start: float, end: float | None, source: Source) -> tuple[int, int]:
    rate, n_frames = file.samplerate, promised_frames(file, source)
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
