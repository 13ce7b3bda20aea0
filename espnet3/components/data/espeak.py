"""Speech from espeak-ng, for corpora that need no download: `pip install espeakng-loader`.

The package carries the library and its voices. An utterance depends on its arguments alone, not on
what was spoken before, nor on the process or the time; `espeak_server` says how.
"""

import importlib.util
import json
import os
import struct
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.components.data import espeak_server
from espnet3.components.data.audio import change_rate
from espnet3.components.data.errors import DataError
from espnet3.errors import MissingExtraError

if TYPE_CHECKING:
    import numpy as np

    Speech = np.ndarray[Any, np.dtype[np.float32]]

SAMPLE_RATE = 22050
ACCENTS = (
    "en-us",
    "en-us-nyc",
    "en-gb-scotland",
    "en-gb-x-rp",
    "en-029",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
)
"""The accents of English that it has. A voice is one of them, with `+` and a variant."""

_LENGTH = struct.Struct("<i")


def speak(
    text: str,
    voice: str = "en-us",
    *,
    sample_rate: int = SAMPLE_RATE,
    speed: int = 175,
    pitch: int = 50,
    pitch_range: int = 50,
    seed: int = 0,
) -> "Speech":
    """Return an utterance, of samples from -1 to 1.

    Args:
        text: What to say.
        voice: An accent and perhaps a variant, such as `en-us+f2`; see `ACCENTS`.
        sample_rate: What to resample it to; espeak-ng synthesises at 22,050 Hz.
        speed: Words per minute, 80 to 450.
        pitch: From 0 to 100; 50 is that of the voice.
        pitch_range: How lively, from 0 to 100.
        seed: Of the noise in it.

    Raises:
        MissingExtraError: espeakng-loader is not installed.
        DataError: There is no such voice, or espeak-ng crashed at this text.

    Example:
        >>> speech = speak("one two", "en-us+f2")  # doctest: +SKIP
        >>> round(len(speech) / SAMPLE_RATE, 1)  # doctest: +SKIP
        0.9
    """
    request = {
        "text": text,
        "voice": voice,
        "speed": speed,
        "pitch": pitch,
        "pitch_range": pitch_range,
        "seed": seed,
    }
    return change_rate(_server(os.getpid()).say(request), SAMPLE_RATE, sample_rate)


def check_espeak() -> None:
    """Raise a `MissingExtraError` with the line that installs, unless the package is there."""
    if importlib.util.find_spec("espeakng_loader") is None:
        raise MissingExtraError(
            "Speech synthesis needs the package 'espeakng-loader', which is not installed.",
            fix="In your clone of ESPnet3: pip install -c constraints.txt -e '.[demo]'",
        )


def stop_speaking() -> None:
    """End the synthesiser of this process, if it has one; the next call starts another."""
    _server(os.getpid()).stop()


@lru_cache(maxsize=1)
def _server(pid: int) -> "_Server":
    """Return the server of this process; a fork of it must not read the answers of its parent."""
    return _Server()


class _Server:
    """A process of `espeak_server` that ends with this one, also if this one is killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def say(self, request: dict[str, Any]) -> "Speech":
        import numpy as np

        with self._lock:
            process = self._running()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                data = self._answer(process)
            except (BrokenPipeError, EOFError):
                self._process = None
                message = f"espeak-ng ended while it was to say {request!r}. Run the stage again."
                raise DataError(message) from None
        return np.frombuffer(data, np.dtype("<i2")).astype(np.float32) / np.float32(32768)

    def stop(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
            process.kill()  # what was forked of this process may still have the pipes
            process.wait()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            self._process = _start()
        return self._process

    def _answer(self, process: "subprocess.Popen[bytes]") -> bytes:
        (length,) = _LENGTH.unpack(_read(process, _LENGTH.size))
        data = _read(process, abs(length))
        if length >= 0:
            return data
        raise DataError(
            f"{data.decode(errors='replace')}. Voices are such as en-us+f2; accents: "
            f"{', '.join(ACCENTS)}"
        )


def _start() -> "subprocess.Popen[bytes]":
    check_espeak()
    import espeakng_loader

    script = Path(espeak_server.__file__)
    paths = (espeakng_loader.get_library_path(), espeakng_loader.get_data_path())
    process = subprocess.Popen(
        # Isolated: what it imports is all that a fork has to copy.
        [sys.executable, "-I", "-S", str(script), *map(str, paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    (sample_rate,) = _LENGTH.unpack(_read(process, _LENGTH.size))
    if sample_rate == SAMPLE_RATE:
        return process
    process.kill()
    raise DataError(f"espeak-ng works at {sample_rate} Hz here, where {SAMPLE_RATE} was expected.")


def _read(process: "subprocess.Popen[bytes]", n_bytes: int) -> bytes:
    assert process.stdout is not None
    data = process.stdout.read(n_bytes)
    if len(data) < n_bytes:
        raise EOFError("espeak-ng ended")
    return data
