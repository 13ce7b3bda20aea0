"""Moonshine tiny for English, on the CPU: model, greedy search and tokenizer.

The weights come inside the package `moonshine-voice`, which the extra `moonshine` installs.
"""

import math
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espnet3.errors import ConfigError, EspnetError, MissingExtraError

SAMPLE_RATE = 16000
FRAME = 320  # samples: 20 ms

MIN_SECONDS = 0.1  # no word is shorter, and the encoder needs 895 samples
MAX_SECONDS = 30  # about the longest speech that the model was trained on
INSTALL = "In your clone of ESPnet3: pip install -c constraints.txt -e '.[moonshine]'"
START = 1
END = 2
N_SPECIAL = 3  # <unk>, <s>, </s>
HOP = 384  # samples per frame of the encoder; the decoder takes its mask in samples
WIDTH, N_LAYERS, N_HEADS, HEAD_SIZE = 288, 6, 8, 36
CACHE = [
    f"{layer}.{side}.{kind}"
    for layer in range(N_LAYERS)
    for side in ("decoder", "encoder")
    for kind in ("key", "value")
]

Speech = NDArray[np.float32]
State = dict[str, NDArray[Any]]


class SpeechError(EspnetError, ValueError):
    """The model was given something other than mono speech at 16 kHz in float32."""


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
        self._tokenizer = MoonshineTokenizer(_asset(folder, "tokenizer.bin"))
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


def check_sample_rate(sample_rate: int | Sequence[int]) -> None:
    """Raise a `SpeechError` unless all rates are 16 kHz."""
    rates = sample_rate if isinstance(sample_rate, list | tuple) else [sample_rate]
    wrong = [rate for rate in rates if rate != SAMPLE_RATE]
    if wrong:
        raise SpeechError(
            f"The sample rate is {wrong[0]} Hz, but Moonshine takes {SAMPLE_RATE}. Convert the "
            f"files once, such as with: sox in.wav -r {SAMPLE_RATE} out.flac"
        )


def check_speech(speech: Any) -> Speech:
    """Return the speech if it is one channel of float32, else raise a `SpeechError`."""
    if not isinstance(speech, np.ndarray):
        raise SpeechError(
            f"speech is of type {type(speech).__name__}, not a numpy array. "
            "Pass numpy.asarray(speech, dtype=numpy.float32)."
        )
    if speech.dtype != np.float32:
        raise SpeechError(
            f"speech is of type {speech.dtype}, not float32 between -1 and 1. "
            'Read it with soundfile.read(path, dtype="float32").'
        )
    if speech.ndim != 1:
        raise SpeechError(
            f"speech has shape {speech.shape}, not [samples]. Of [samples, channels], take one "
            "channel: speech[:, 0]."
        )
    if not np.isfinite(speech).all():
        raise SpeechError(
            "speech holds NaN or infinite values. Write the file again, or leave the utterance out."
        )
    return speech


def split_at_pauses(speech: Speech, max_samples: int) -> list[Speech]:
    """Return the speech in pieces of at most `max_samples`, one if it is short enough.

    Each cut is at the quietest place in the second half of what a piece may hold.
    """
    cuts = [0]
    while len(speech) - cuts[-1] > max_samples:
        earliest = cuts[-1] + max_samples // 2
        cuts.append(earliest + _quietest_place(speech[earliest : cuts[-1] + max_samples]))
    return [speech[start:end] for start, end in pairwise([*cuts, len(speech)])]


def _quietest_place(speech: Speech) -> int:
    """Return the middle of the quietest 0.2 s, in samples."""
    n_frames = len(speech) // FRAME
    energy = np.square(speech[: n_frames * FRAME].reshape(n_frames, FRAME)).mean(axis=1)
    around = np.convolve(np.pad(energy, 5, mode="edge"), np.ones(11), mode="valid")
    return int(around.argmin()) * FRAME + FRAME // 2


class GreedyDecoder:
    """Decodes a batch with a key/value cache; a row leaves the batch when it has ended.

    Args:
        session: The decoder as a session of onnxruntime.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def decode(self, hidden: list[NDArray[np.float32]], max_tokens: list[int]) -> list[list[int]]:
        """Return the tokens of each utterance without the last, END.

        Args:
            hidden: Per utterance its encoder output, [frames, WIDTH].
            max_tokens: Per utterance the number of tokens to stop at, one or more.
        """
        tokens: list[list[int]] = [[] for _ in hidden]
        rows = list(range(len(hidden)))
        state = _first_state(hidden)
        while rows:
            best = self._step(state)
            for row, token in zip(rows, best, strict=True):
                tokens[row].append(int(token))
            keep = [
                place
                for place, row in enumerate(rows)
                if tokens[row][-1] != END and len(tokens[row]) < max_tokens[row]
            ]
            if len(keep) < len(rows):
                rows = [rows[place] for place in keep]
                state = _rows_of(state, keep)
            state["input_ids"] = best[keep, None]
        return [[token for token in row if token != END] for row in tokens]

    def _step(self, state: State) -> NDArray[np.int64]:
        """Update the cache in `state` and return the best next token of each row."""
        logits, *cache = self._session.run(["logits", *(f"present.{n}" for n in CACHE)], state)
        is_first = not state["use_cache_branch"][0]
        for name, value in zip(CACHE, cache, strict=True):
            # The encoder's part is whole after the first step; later steps return it empty.
            if is_first or ".decoder." in name:
                state[f"past_key_values.{name}"] = value
        state["use_cache_branch"] = np.array([True])
        best: NDArray[np.int64] = logits[:, -1].argmax(axis=-1)
        return best


def _first_state(hidden: list[NDArray[np.float32]]) -> State:
    n_frames = max(map(len, hidden), default=0)
    states = np.zeros((len(hidden), n_frames, WIDTH), np.float32)
    mask = np.zeros((len(hidden), n_frames * HOP), np.int64)
    for row, frames in enumerate(hidden):
        states[row, : len(frames)] = frames
        mask[row, : len(frames) * HOP] = 1
    no_cache = np.zeros((0, N_HEADS, 1, HEAD_SIZE), np.float32)
    return {
        "input_ids": np.full((len(hidden), 1), START, np.int64),
        "encoder_hidden_states": states,
        "encoder_attention_mask": mask,
        "use_cache_branch": np.array([False]),
        **{f"past_key_values.{name}": no_cache for name in CACHE},
    }


def _rows_of(state: State, keep: list[int]) -> State:
    flag = "use_cache_branch"
    return {name: value if name == flag else value[keep] for name, value in state.items()}


class MoonshineTokenizer:
    """The pieces of a `tokenizer.bin`; single bytes are among them, so any text is possible.

    Args:
        path: The file: per piece its length, as one byte below 128 or two (low 7 bits first), then
            its UTF-8 bytes, with U+2581 for a blank.
    """

    def __init__(self, path: Path) -> None:
        self.pieces = _read_pieces(path.read_bytes())

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of the tokens, without the special ones."""
        text = b"".join(self.pieces[token] for token in tokens if token >= N_SPECIAL)
        return text.decode("utf-8", errors="replace").replace("\u2581", " ").strip()


def _read_pieces(data: bytes) -> list[bytes]:
    pieces, position = [], 0
    while position < len(data):
        length = data[position]
        position += 1
        if length >= 128:
            length += 128 * (data[position] - 1)
            position += 1
        pieces.append(data[position : position + length])
        position += length
    return pieces
