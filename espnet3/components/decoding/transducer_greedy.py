"""Greedy decoding of transducers, batched over utterances."""

from typing import Any

import torch
from torch import Tensor

from espnet3.components.decoding.hypothesis import Hypothesis
from espnet3.components.text.tokenizer import BLANK
from espnet3.errors import ConfigError


class TransducerGreedy:
    """Takes the most likely symbol at each step: a token, or blank to advance to the next frame.

    The score is the log-probability of that one path.

    Args:
        max_tokens_per_frame: After so many tokens the next frame comes without a blank.
    """

    def __init__(self, max_tokens_per_frame: int = 5) -> None:
        self.max_tokens_per_frame = check_limit(max_tokens_per_frame)

    def __call__(self, model: Any, encoded: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Decode a batch.

        Args:
            model: has `prediction` and `joint`, as `Transducer` does.
            encoded: [B, T, D], padded at the end.
            lengths: frames of each utterance.
        """
        with torch.inference_mode():
            return self._decode(model, encoded, lengths.to(encoded.device))

    def _decode(self, model: Any, encoded: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        n, device = len(encoded), encoded.device
        starts = torch.full((n,), BLANK, device=device)
        predicted, state = model.prediction.step(starts, model.prediction.start(n, device))
        frame = torch.zeros(n, dtype=torch.int64, device=device)
        n_in_frame = torch.zeros_like(frame)
        scores = torch.zeros(n, dtype=torch.float64, device=device)
        tokens: list[list[int]] = [[] for _ in range(n)]
        while (active := torch.nonzero(frame < lengths).squeeze(1)).numel():
            logits = model.joint.pair(encoded[active, frame[active]], predicted[active])
            values, symbols = logits.double().log_softmax(-1).max(-1)
            scores[active] += values
            is_token = symbols != BLANK
            emitting, found = active[is_token], symbols[is_token]
            for utterance, token in zip(emitting.tolist(), found.tolist(), strict=True):
                tokens[utterance].append(token)
            if emitting.numel():
                predicted[emitting], state[emitting] = model.prediction.step(found, state[emitting])
            n_in_frame[emitting] += 1
            # Without the limit, a model that never prefers blank would stay in a frame for ever.
            is_done = ~is_token | (n_in_frame[active] >= self.max_tokens_per_frame)
            frame[active[is_done]] += 1
            n_in_frame[active[is_done]] = 0
        return [
            [Hypothesis(tuple(ids), score, {"transducer": score})]
            for ids, score in zip(tokens, scores.tolist(), strict=True)
        ]


def check_limit(max_tokens_per_frame: int) -> int:
    """Return the limit, or raise a `ConfigError` if it is below 1."""
    if not isinstance(max_tokens_per_frame, int) or max_tokens_per_frame < 1:
        raise ConfigError(
            f"decoder.max_tokens_per_frame is {max_tokens_per_frame}, but must be 1 or more: "
            "max_tokens_per_frame: 5"
        )
    return max_tokens_per_frame
