"""Moonshine tiny for English, on the CPU."""

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from espnet3.errors import ConfigError, MissingExtraError
from src.decoder import GreedyDecoder
from src.speech import SAMPLE_RATE, Speech, check_sample_rate, check_speech, split_at_pauses
from src.tokenizer import Tokenizer

MIN_SECONDS = 0.1  # no word is shorter, and the encoder needs 895 samples
MAX_SECONDS = 30  # about the longest speech that the model was trained on
INSTALL = "In your clone of ESPnet3: pip install -c constraints.txt -e '.[moonshine]'"


class Moonshine:
    """English speech to text with the weights that come inside the package `moonshine-voice`.

    Each utterance is encoded alone: the encoder normalises over time, so padding would change its
    result. The decoder works on the whole batch. It quantises activations with one scale per batch,
    so that a close decision may still depend on the other utterances.

    Args:
        device: `cpu`; the weights are 8-bit integers made for it.
        max_tokens_per_second: Where to stop an utterance that does not end by itself.
        assets: Folder with the three files of the model; by default that of the package.
    """

    def __init__(
        self,
        device: str = "cpu",
        max_tokens_per_second: float = 6.5,
        assets: str | Path | None = None,
    ) -> None:
        if device != "cpu":
            raise ConfigError(
                f"device is {device!r}, but Moonshine needs a CPU. Write: device: cpu"
            )
        if not max_tokens_per_second > 0:
            raise ConfigError(
                f"max_tokens_per_second is {max_tokens_per_second}, which allows no token. "
                "Write: max_tokens_per_second: 6.5"
            )
        folder = _packaged_assets() if assets is None else Path(assets)
        self._max_tokens_per_second = max_tokens_per_second
        self._tokenizer = Tokenizer(_asset(folder, "tokenizer.bin"))
        self._encoder = _open_session(_asset(folder, "encoder_model.ort"))
        self._decoder = GreedyDecoder(_open_session(_asset(folder, "decoder_model_merged.ort")))

    def __call__(
        self, speech: Speech | Sequence[Speech], sample_rate: int | Sequence[int] = SAMPLE_RATE
    ) -> Any:
        """Return the text of one utterance, or the texts of a list of them.

        Digital silence, and what is shorter than 0.1 s, has no text. What is longer than 30 s is
        cut at pauses.

        Raises:
            SpeechError: An utterance is not one channel of float32 at 16 kHz.
        """
        check_sample_rate(sample_rate)
        if isinstance(speech, list | tuple):
            return self._transcribe([check_speech(item) for item in speech])
        return self._transcribe([check_speech(speech)])[0]

    def _transcribe(self, utterances: list[Speech]) -> list[str]:
        pieces = [
            (index, piece)
            for index, utterance in enumerate(utterances)
            for piece in split_at_pauses(utterance, MAX_SECONDS * SAMPLE_RATE)
            if len(piece) >= MIN_SECONDS * SAMPLE_RATE and piece.any()
        ]
        hidden = [self._encode(piece) for _, piece in pieces]
        tokens = self._decoder.decode(hidden, [self._max_tokens(piece) for _, piece in pieces])
        texts: list[list[str]] = [[] for _ in utterances]
        for (index, _), row in zip(pieces, tokens, strict=True):
            texts[index].append(self._tokenizer.decode(row))
        return [" ".join(filter(None, parts)) for parts in texts]

    def _encode(self, speech: Speech) -> Speech:
        mask = np.ones((1, len(speech)), np.int64)
        inputs = {"input_values": speech[None], "attention_mask": mask}
        hidden: Speech = self._encoder.run(["last_hidden_state"], inputs)[0][0]
        return hidden

    def _max_tokens(self, speech: Speech) -> int:
        return math.ceil(len(speech) / SAMPLE_RATE * self._max_tokens_per_second)


def _packaged_assets() -> Path:
    # The package is not imported: that would load a library of its own, which is not used.
    spec = find_spec("moonshine_voice")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(
            "The weights of Moonshine come inside the package 'moonshine-voice', which is not "
            f"installed. {INSTALL}"
        )
    return Path(spec.submodule_search_locations[0]) / "assets" / "tiny-en"


def _asset(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise MissingExtraError(
            f"{path} is not there. The weights come with moonshine-voice 0.1.0; later versions "
            f"have none. {INSTALL}"
        )
    return path


def _open_session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError(
            f"Moonshine needs the package 'onnxruntime', which cannot be imported ({error}). "
            f"{INSTALL}"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # workers are the parallelism: one core for each
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
