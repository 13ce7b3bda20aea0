"""Speak digit strings with espeak-ng, so that the demo has real audio without a download."""

import ctypes
import wave
from pathlib import Path

import espeakng_loader

VOICES = ["en-us+m1", "en-us+m3", "en-us+m7", "en-us+f1", "en-us+f2", "en-us+f4"]
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


class Speaker:
    """The espeak-ng library of the `espeakng-loader` package, called directly."""

    def __init__(self) -> None:
        self._espeak = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path().encode()
        synchronous = 2
        self.sample_rate = self._espeak.espeak_Initialize(synchronous, 0, data, 0)
        self._espeak.espeak_ng_SetRandSeed(1)  # it would seed itself from the clock
        self._samples = bytearray()
        self._callback = _CALLBACK(self._receive)  # kept: the library holds only a pointer
        self._espeak.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples, n_samples, events) -> int:
        if samples and n_samples:
            self._samples += ctypes.string_at(samples, 2 * n_samples)
        return 0

    def say(self, text: str, voice: str) -> bytes:
        """Return 16-bit samples."""
        self._samples.clear()
        self._espeak.espeak_SetVoiceByName(voice.encode())
        data = text.encode() + b"\0"
        self._espeak.espeak_Synth(data, len(data), 0, 0, 0, 1, None, None)
        self._espeak.espeak_Synchronize()
        return bytes(self._samples)


def make_corpus(folder: Path, n_utterances: int) -> None:
    """Write `<utt>.wav` files of one to six digits, in turn by each voice."""
    folder.mkdir(parents=True, exist_ok=True)
    speaker = Speaker()
    for n in range(n_utterances):
        voice = VOICES[n % len(VOICES)]
        words = [DIGITS[(7 * n + 3 * k) % 10] for k in range(1 + n % 6)]
        path = folder / f"{voice}-{n:04d}.wav"
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, speaker.sample_rate, 0, "NONE", ""))
            file.writeframes(speaker.say(" ".join(words), voice))
