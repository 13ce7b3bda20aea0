"""Greedy search with Moonshine's decoder."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from src.tokenizer import END, START

HOP = 384  # samples per frame of the encoder; the decoder takes its mask in samples
WIDTH, N_LAYERS, N_HEADS, HEAD_SIZE = 288, 6, 8, 36
CACHE = [
    f"{layer}.{side}.{kind}"
    for layer in range(N_LAYERS)
    for side in ("decoder", "encoder")
    for kind in ("key", "value")
]

State = dict[str, NDArray[Any]]


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
