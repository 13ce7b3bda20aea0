"""Speak digit strings with espeak-ng, so that the examples have real audio without a download."""

from pathlib import Path

import soundfile

from espnet3.components.data.espeak import SAMPLE_RATE, speak

VOICES = ["en-us+m1", "en-us+m3", "en-us+m7", "en-us+f1", "en-us+f2", "en-us+f4"]
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def make_corpus(folder: Path, n_utterances: int) -> None:
    """Write `<utt>.wav` files of one to six digits, in turn by each voice."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(n_utterances):
        voice = VOICES[n % len(VOICES)]
        words = [DIGITS[(7 * n + 3 * k) % 10] for k in range(1 + n % 6)]
        path = folder / f"{voice}-{n:04d}.wav"
        soundfile.write(path, speak(" ".join(words), voice), SAMPLE_RATE, subtype="PCM_16")
