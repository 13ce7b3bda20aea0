"""Cut the speech that comes with the model into utterances."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espnet3.components.data.audio import read_audio
from espnet3.components.data.dataset_builder import DatasetBuilder as BaseBuilder
from espnet3.errors import MissingExtraError
from espnet3.io.atomic import open_atomic

SPEAKER, CHAPTER = "reader", "two_cities"
SOURCE_RATE, SAMPLE_RATE = 48000, 16000
N_TAPS = 385  # of the low-pass filter: 8 ms

# Start and end in seconds, at pauses; Charles Dickens, A Tale of Two Cities (1859), the opening.
UTTERANCES = (
    (0.95, 4.69, "It was the best of times, it was the worst of times,"),
    (4.69, 8.51, "it was the age of wisdom, it was the age of foolishness,"),
    (8.51, 13.12, "it was the epoch of belief, it was the epoch of incredulity,"),
    (13.12, 17.12, "it was the season of Light, it was the season of Darkness,"),
    (17.12, 20.85, "it was the spring of hope, it was the winter of despair,"),
    (20.85, 24.33, "we had everything before us, we had nothing before us,"),
    (24.33, 28.73, "we were all going direct to Heaven, we were all going direct the other way"),
    (28.73, 32.59, "in short, the period was so far like the present period,"),
    (32.59, 36.76, "that some of its noisiest authorities insisted on its being received,"),
    (36.76, 42.25, "for good or for evil, in the superlative degree of comparison only."),
)


class DatasetBuilder(BaseBuilder):
    """Makes `<data_dir>/two_cities`, in the layout of LibriSpeech."""

    def is_source_prepared(self) -> bool:
        """Tell whether the package with the recording is installed."""
        return _find_recording() is not None

    def prepare_source(self) -> None:
        """Say how to install the package; nothing else is to be downloaded."""
        raise MissingExtraError(
            "The speech comes inside the package 'moonshine-voice' 0.1.0, which is not installed. "
            "In your clone of ESPnet3: pip install -c constraints.txt -e '.[moonshine]'"
        )

    def is_built(self, data_dir: str | Path) -> bool:
        """Tell whether the transcripts, which are written last, are those of this recipe."""
        transcripts = _transcripts(_folder(data_dir))
        return transcripts.is_file() and transcripts.read_text("utf-8") == _transcript_text()

    def build(self, data_dir: str | Path) -> None:
        """Write a FLAC file at 16 kHz for each utterance, then the transcripts."""
        import soundfile

        recording = _find_recording()
        assert recording is not None
        speech = _downsample(read_audio(recording, sample_rate=SOURCE_RATE).samples)
        folder = _folder(data_dir)
        folder.mkdir(parents=True, exist_ok=True)
        for utt_id, (start, end, _) in zip(_utt_ids(), UTTERANCES, strict=True):
            samples = speech[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)]
            soundfile.write(folder / f"{utt_id}.flac", samples, SAMPLE_RATE)
        with open_atomic(_transcripts(folder)) as file:
            file.write(_transcript_text())


def _find_recording() -> Path | None:
    # The package is not imported: that would load a library of its own, which is not used.
    spec = find_spec("moonshine_voice")
    folders = spec.submodule_search_locations if spec else None
    path = Path(folders[0]) / "assets" / "two_cities.wav" if folders else None
    return path if path is not None and path.is_file() else None


def _folder(data_dir: str | Path) -> Path:
    return Path(data_dir) / "two_cities" / SPEAKER / CHAPTER


def _transcripts(folder: Path) -> Path:
    return folder / f"{SPEAKER}-{CHAPTER}.trans.txt"


def _utt_ids() -> list[str]:
    return [f"{SPEAKER}-{CHAPTER}-{number:04}" for number in range(len(UTTERANCES))]


def _transcript_text() -> str:
    lines = zip(_utt_ids(), UTTERANCES, strict=True)
    return "".join(f"{utt_id} {text}\n" for utt_id, (_, _, text) in lines)


def _downsample(samples: NDArray[np.float32]) -> NDArray[Any]:
    """Go from 48 to 16 kHz: a windowed sinc that passes up to 7.5 kHz, then each third sample."""
    cutoff = 15500 / SOURCE_RATE  # twice 7.75 kHz
    times = np.arange(N_TAPS) - N_TAPS // 2
    taps = cutoff * np.sinc(cutoff * times) * np.kaiser(N_TAPS, 8.0)
    filtered = np.convolve(samples, taps / taps.sum(), mode="same")
    return filtered[:: SOURCE_RATE // SAMPLE_RATE]
