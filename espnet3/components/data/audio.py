"""Read audio files and their lengths with soundfile, and say what is wrong with a file.

Nothing is resampled or mixed unasked. What happens to odd files is in docs/audio.md.
"""

import io
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from espnet3.components.data.errors import AudioError
from espnet3.errors import ConfigError
from espnet3.text import count

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


Source = str | os.PathLike[str] | bytes
"""A path, or the content of an audio file."""
BY_SNDFILE = frozenset(
    [".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".sph", ".aif", ".aiff", ".au", ".snd",
     ".w64", ".rf64", ".caf"]
)  # fmt: skip
"""Usual endings of files that libsndfile reads."""
BY_FFMPEG = frozenset([".m4a", ".mp4", ".aac", ".wma", ".webm", ".mkv", ".mov", ".amr", ".3gp"])
"""Endings of files that are decoded by the program ffmpeg, where it is installed."""
_FFMPEG_SECONDS = 3600.0
CHANNEL_CHOICES = ("mix", "only")
"""What `channel` may be besides a number."""
T = TypeVar("T")
R = TypeVar("R")
# Segments are often rounded up; Kaldi cuts off as much without a word.
_MAX_OVERSHOOT_SECONDS = 0.5
# A header takes 50 microseconds on a local disk, where threads are no gain, and milliseconds on a
# network file system, where they are.
_N_THREADS = 8
# A task for each item would cost as much as reading a header from a local disk.
_ITEMS_PER_TASK = 64
# The length that these declare is not exact.
_LOSSY = ("MP3", "OGG")
_MAX_SHORTFALL_SECONDS = 0.1
_FLOATS = ("FLOAT", "DOUBLE")
# libsndfile takes what is there for the length, and says only here what the header promised.
_SHORT_CHUNK = re.compile(r"^ *(?:data|SSND|Data Size) *: (\d+) \(should be (\d+)\)", re.MULTILINE)
_RF64_FRAMES = re.compile(r"Calculated frame count \d+ does not match value .* of (\d+)")
_CHUNKED = ("WAV", "WAVEX", "AIFF", "AU", "RF64")
# What writes to a pipe cannot know the length: sox and ffmpeg promise two or four gigabytes.
_LEAST_UNKNOWN_SIZE = 0x7FFF0000
_NIST_SAMPLES = re.compile(rb"^sample_count -i (\d+)", re.MULTILINE)
_NIST_HEADER = 1024
# A header without samples is much smaller.
_MAX_EMPTY_BYTES = 4096
# libsndfile reports 2**63 - 1 for an unknown length.
_MAX_FRAMES = 1 << 62


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
        # A file that is cut short may end before the part begins: check_length() then says so.
        file.seek(min(first, file.frames))
        samples = file.read(last - first, dtype="float32")
        check_length(len(samples), last - first, file, source)
        check_finite(samples, file, source)
        samples, rate = pick_channel(samples, channel, source), file.samplerate
    if sample_rate is None:
        return Audio(samples, rate)
    return Audio(change_rate(samples, rate, sample_rate), sample_rate)


@dataclass(frozen=True)
class AudioForm:
    """The options that all sources have in common; see `read_audio`.

    Raises:
        ConfigError: One of them is of another type, or `resample` lacks a `sample_rate`.
    """

    sample_rate: int | None = None
    channel: int | str | None = None
    resample: bool = False

    def __post_init__(self) -> None:
        _check_whole_number("sample_rate", self.sample_rate, 16000, least=1)
        if self.channel not in CHANNEL_CHOICES:
            _check_whole_number("channel", self.channel, 0, least=0)
        if not isinstance(self.resample, bool):
            raise ConfigError(
                f"resample is {self.resample!r}, but must be true or false.",
                fix="Write the rate as sample_rate: 16000, and resample: true",
            )
        if self.resample and self.sample_rate is None:
            raise ConfigError(
                "resample is true, but sample_rate is not set.",
                fix="Write the rate to bring all audio to: sample_rate: 16000",
            )

    def read(self, source: Source, start: float = 0.0, end: float | None = None) -> Audio:
        """Read a file or a part of it.

        Raises:
            AudioError: It cannot be read, or is of another form.
        """
        return read_audio(
            source,
            start=start,
            end=end,
            channel=self.channel,
            sample_rate=self.sample_rate,
            resample=self.resample,
        )

    def apply(self, audio: Audio, source: Source) -> Audio:
        """Bring audio that something else has read into this form; errors call it `source`."""
        samples = pick_channel(audio.samples, self.channel, source)
        if self.sample_rate is None:
            return Audio(samples, audio.sample_rate)
        if not self.resample:
            check_sample_rate(audio.sample_rate, self.sample_rate, source)
        return Audio(change_rate(samples, audio.sample_rate, self.sample_rate), self.sample_rate)

    def settings(self) -> dict[str, Any]:
        """Return what the samples depend on; without `resample`, as before there was one."""
        settings: dict[str, Any] = {"sample_rate": self.sample_rate, "channel": self.channel}
        return {**settings, "resample": "soxr HQ"} if self.resample else settings


def _check_whole_number(name: str, value: Any, example: int, least: int) -> None:
    if value is None:
        return
    # In Python a bool is an int, so `channel: true` would be channel 1.
    if not isinstance(value, int) or isinstance(value, bool):
        more = " or one of: mix, only" if name == "channel" else ""
        raise ConfigError(
            f"{name} is {value!r}, of type {type(value).__name__}, but must be a whole number"
            f"{more}.",
            fix=f"Write it without quotes or unit: {name}: {example}",
        )
    if value < least:
        raise ConfigError(f"{name} is {value}, but must be at least {least}: {name}: {example}")


def read_duration(source: Source) -> float:
    """Return the length in seconds from the header; no audio is decoded.

    Raises:
        AudioError: The file is missing or unreadable.
    """
    with _opened(source) as file:
        return float(promised_frames(file, source) / file.samplerate)


def read_form(source: Source) -> tuple[int, int, int]:
    """Return sampling rate, samples of a channel, and channels from the header.

    Raises:
        AudioError: The file is missing or unreadable.
    """
    with _opened(source) as file:
        return int(file.samplerate), int(promised_frames(file, source)), int(file.channels)


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
        path = _path(source)
        raise AudioError(
            f"{name} is sampled at {found} Hz, but sample_rate is {wanted}. Audio is never "
            "resampled unasked.",
            fix=f"Convert it: sox {path} -r {wanted} OUT.wav (or ffmpeg -i {path} "
            f"-ar {wanted} OUT.wav); or let it be done when it is read: resample: true; or take it "
            f"as it is: sample_rate: {found}",
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
            f"{name_of(source)} has {count(n_channels, 'channel')}, but channel is {number}, "
            "counted from 0.",
            fix=f"Write a number below {n_channels}, such as channel: 0",
        )
    # A copy, so that the other channels do not stay in memory.
    return samples[:, number].copy() if samples.ndim == 2 else samples


@contextmanager
def _opened(source: Source) -> Iterator[Any]:
    import soundfile

    content = source
    if not isinstance(source, bytes) and os.path.splitext(source)[1].lower() in BY_FFMPEG:
        content = _decoded(os.fspath(source))
    try:
        with soundfile.SoundFile(
            io.BytesIO(content) if isinstance(content, bytes) else os.fspath(content)
        ) as file:
            yield file
    except soundfile.SoundFileError as error:
        raise AudioError(diagnose(source, error)) from error


def _decoded(path: str) -> bytes:
    """Return what ffmpeg makes of a file, as AU: of all headers the one that needs no length.

    Raises:
        AudioError: There is no ffmpeg, or it cannot read the file.
    """
    if not os.path.isfile(path):
        raise AudioError(f"{path} is not there.", fix="Correct the path")
    command = ["ffmpeg", "-nostdin", "-v", "error", "-i", f"file:{path}", "-vn"]
    command += ["-c:a", "pcm_s16be", "-f", "au", "-"]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=_FFMPEG_SECONDS, check=False)
    except FileNotFoundError:
        raise AudioError(
            f"{path} can only be read with the program ffmpeg, which is not installed.",
            fix=f"Install ffmpeg, or convert it elsewhere: ffmpeg -i {_path(path)} OUT.flac",
        ) from None
    except subprocess.TimeoutExpired:
        raise AudioError(f"{path}: ffmpeg did not end within an hour.") from None
    if ended.returncode or not ended.stdout:
        why = " ".join(ended.stderr.decode(errors="replace").split())[-300:]
        raise AudioError(f"{path} cannot be read by ffmpeg: {why}", fix="Make the file again")
    return ended.stdout


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


def name_of(source: Source) -> str:
    """Return how an error calls a source."""
    return f"audio of {len(source)} bytes" if isinstance(source, bytes) else os.fspath(source)


def promised_frames(file: Any, source: Source) -> int:
    """Return how many frames the header of an open file promises, be they there or not.

    Raises:
        AudioError: The header has no length, or says none in a file that holds more.
    """
    if file.frames > _MAX_FRAMES:
        raise AudioError(
            f"{name_of(source)} does not say how long it is, as it was written to a pipe.",
            fix=f"Write it again: ffmpeg -i {_path(source)} OUT.flac",
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
            "audio; perhaps a recording was not finished.",
            fix=f"Mend it: ffmpeg -i {_path(source)} OUT.wav; or make it again.",
        )
    return n_frames


def check_length(n_read: int, n_wanted: int, file: Any, source: Source) -> None:
    """Raise an `AudioError` if less could be read than the header promises."""
    allowed = _MAX_SHORTFALL_SECONDS * file.samplerate if file.format in _LOSSY else 0
    if n_wanted - n_read > allowed:
        raise AudioError(
            f"{name_of(source)} is cut short: its header promises {n_wanted} samples, and "
            f"{n_read} could be read.",
            fix="Copy or make the file again.",
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
            f"{name_of(source)} has {count(int(is_bad.sum()), 'sample')} without a finite value, "
            f"the first at {first / file.samplerate:g} s of what was read.",
            fix="Make the file again, or leave the utterance out.",
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
    # The chunk is counted in bytes; what is there tells how many make a frame.
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


def change_rate(samples: "Array", from_rate: int, to_rate: int) -> "Array":
    """Return [samples] or [samples, channels] at another rate, as float32.

    The same samples give the same result on any worker. Tones up to 0.85 of half the lower
    rate stay the same to within -60 dB; what would come back as another tone is removed.

    Args:
        samples: Real numbers of full scale 1. Peaks may come out slightly higher.
        from_rate: Their rate in Hz.
        to_rate: The rate of the result, which has `resampled_length` samples.

    Example:
        >>> import numpy as np
        >>> change_rate(np.zeros(44100, np.float32), 44100, 16000).shape
        (16000,)
    """
    import numpy as np

    samples = np.ascontiguousarray(samples, dtype=np.float32)
    if from_rate == to_rate:
        return samples
    n_samples = resampled_length(len(samples), from_rate, to_rate)
    if not n_samples:
        return np.zeros((0, *samples.shape[1:]), np.float32)
    import soxr

    changed = soxr.resample(samples, from_rate, to_rate, quality="HQ")[:n_samples]
    missing = n_samples - len(changed)
    if missing:  # soxr rounds in its own way
        changed = np.pad(changed, [(0, missing)] + [(0, 0)] * (samples.ndim - 1))
    return np.ascontiguousarray(changed)


def resampled_length(n_samples: int, from_rate: int, to_rate: int) -> int:
    """Return how many samples `change_rate` makes: the same seconds, to the nearest sample.

    Example:
        >>> resampled_length(44101, 44100, 16000), resampled_length(1, 48000, 16000)
        (16000, 0)
    """
    # In integers, as floats would round differently for long files.
    return (2 * n_samples * to_rate + from_rate) // (2 * from_rate)
