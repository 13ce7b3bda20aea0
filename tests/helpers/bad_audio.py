"""Audio files of all odd kinds; what becomes of each is told in docs/audio.md."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile

RATE = 16000


def tone(seconds: float, rate: int = RATE, n_channels: int = 1, hertz: float = 440) -> np.ndarray:
    """Return a sine at a third of full scale; each further channel is half as loud."""
    wave = np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate) / 3
    columns = [wave / 2**channel for channel in range(n_channels)]
    return np.stack(columns, axis=1) if n_channels > 1 else wave


def encode(samples: np.ndarray, rate: int = RATE, subtype: str | None = None, kind="WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def _with_odd_values(*values: float) -> bytes:
    samples = tone(0.5).astype(np.float32)
    samples[1000 : 1000 + len(values)] = values
    return encode(samples, subtype="FLOAT")


def _noise(kind: str) -> bytes:
    return encode(np.random.default_rng(0).normal(0, 0.1, RATE), kind=kind)


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


GOOD: dict[str, Callable[[], bytes]] = {
    "plain.wav": lambda: encode(tone(0.5)),
    "without_samples.wav": lambda: encode(tone(0)),
    "one_sample.wav": lambda: encode(tone(1 / RATE)),
    "short.wav": lambda: encode(tone(0.05)),
    "24_bit.wav": lambda: encode(tone(0.5), subtype="PCM_24"),
    "8_bit.wav": lambda: encode(tone(0.5), subtype="PCM_U8"),
    "beyond_full_scale.wav": lambda: encode(6 * tone(0.5), subtype="FLOAT"),
    "from_a_pipe.wav": lambda: _with_size(encode(tone(0.5)), 0xFFFFFFFF),
}
"""What can be read as it is."""

OF_ANOTHER_FORM: dict[str, Callable[[], bytes]] = {
    "stereo.wav": lambda: encode(tone(0.5, n_channels=2)),
    "44100.wav": lambda: encode(tone(0.5, 44100), 44100),
    "48000_stereo.flac": lambda: encode(tone(0.5, 48000, 2), 48000, kind="FLAC"),
    "8000.wav": lambda: encode(tone(0.5, 8000), 8000),
}
"""What can be read if resampling and mixing are asked for."""

UNREADABLE: dict[str, tuple[Callable[[], bytes] | None, str]] = {
    "empty.wav": (lambda: b"", "is empty"),
    "text.wav": (lambda: b"not audio at all\n" * 9, "cannot be read as audio"),
    "header_cut.wav": (lambda: encode(tone(0.5))[:30], "cannot be read as audio"),
    "header_only.wav": (lambda: encode(tone(0.5))[:44], "is cut short"),
    "cut.wav": (lambda: _half(encode(tone(0.5))), "is cut short"),
    "nearly_whole.wav": (lambda: encode(tone(0.5))[:-100], "is cut short"),
    "cut_24_bit.wav": (lambda: _half(encode(tone(0.5), subtype="PCM_24")), "is cut short"),
    "cut.aiff": (lambda: _half(encode(tone(0.5), kind="AIFF")), "is cut short"),
    "cut.au": (lambda: _half(encode(tone(0.5), kind="AU")), "is cut short"),
    "cut.rf64": (lambda: _half(encode(tone(0.5), kind="RF64")), "is cut short"),
    "cut.sph": (lambda: _half(encode(tone(0.5), kind="NIST")), "is cut short"),
    "cut.flac": (lambda: _half(_noise("FLAC")), "cannot be read as audio: flac decoder lost sync"),
    "not_finished.wav": (lambda: _with_size(encode(tone(0.5)), 0), "says that there is no audio"),
    "nan.wav": (lambda: _with_odd_values(np.nan, np.nan), "has 2 samples without a finite"),
    "inf.wav": (lambda: _with_odd_values(-np.inf), "has 1 sample without a finite value"),
    "missing.wav": (None, "does not exist"),
}
"""What cannot be read, and what is said about it."""


def _with_size(data: bytes, size: int) -> bytes:
    """Return a WAV file whose header tells another size of the audio."""
    at = data.index(b"data") + 4
    return data[:at] + size.to_bytes(4, "little") + data[at + 4 :]


def write_all(folder: Path) -> None:
    """Write all of these, and a folder with the name of an audio file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in {**GOOD, **OF_ANOTHER_FORM}.items():
        (folder / name).write_bytes(make())
    for name, (make, _) in UNREADABLE.items():
        if make:
            (folder / name).write_bytes(make())
    (folder / "folder.wav").mkdir(exist_ok=True)
