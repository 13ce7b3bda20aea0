"""Beam search for transducers, batched over utterances."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from espnet3.components.decoding.hypothesis import Hypothesis
from espnet3.components.decoding.transducer_greedy import check_limit
from espnet3.components.text.tokenizer import BLANK
from espnet3.errors import ConfigError


@dataclass
class _Path:
    """Tokens so far, and whether the path is through with the frame."""

    tokens: tuple[int, ...]
    score: float
    predicted: Tensor
    state: Tensor
    is_done: bool = False


class TransducerBeam:
    """Keeps the best paths, frame by frame.

    Within a frame, paths that took a blank wait for the others; after each token the best
    `beam_size` of both kinds are kept. Paths with the same tokens are one when the frame is done,
    with the sum of their probabilities. A beam of 1 is what `TransducerGreedy` does.
    The networks are run for all paths of all utterances at once.

    Args:
        beam_size: Paths kept.
        n_best: Hypotheses returned, at most.
        max_tokens_per_frame: After so many tokens the next frame comes without a blank.
    """

    def __init__(
        self, beam_size: int = 5, n_best: int = 1, *, max_tokens_per_frame: int = 5
    ) -> None:
        for name, value in {"beam_size": beam_size, "n_best": n_best}.items():
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"decoder.{name} is {value}, but must be 1 or more: {name}: 5")
        self.beam_size = beam_size
        self.n_best = n_best
        self.max_tokens_per_frame = check_limit(max_tokens_per_frame)

    def __call__(self, model: Any, encoded: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Return the n-best of each utterance, best first; see `TransducerGreedy`."""
        with torch.inference_mode():
            start = torch.full((1,), BLANK, device=encoded.device)
            state = model.prediction.start(1, encoded.device)
            predicted, state = model.prediction.step(start, state)
            beams = [[_Path((), 0.0, predicted[0], state[0])] for _ in encoded]
            for t in range(encoded.shape[1]):
                active = [i for i, n in enumerate(lengths.tolist()) if n > t]
                found = self._pass_frame(model, encoded[active, t], [beams[i] for i in active])
                for i, beam in zip(active, found, strict=True):
                    beams[i] = beam
        return [self._hypotheses(beam) for beam in beams]

    def _pass_frame(
        self, model: Any, frames: Tensor, beams: list[list[_Path]]
    ) -> list[list[_Path]]:
        """Take the paths of some utterances through a frame of each."""
        for beam in beams:
            for path in beam:
                path.is_done = False
        for _ in range(self.max_tokens_per_frame):
            open_paths = [(i, p) for i, beam in enumerate(beams) for p in beam if not p.is_done]
            if not open_paths:
                break
            rows = [i for i, _ in open_paths]
            predicted = torch.stack([path.predicted for _, path in open_paths])
            log_probs = model.joint.pair(frames[rows], predicted).double().log_softmax(-1)
            beams = [[path for path in beam if path.is_done] for beam in beams]
            for (i, path), symbols in zip(open_paths, self._best(log_probs), strict=True):
                beams[i] += _extended(path, symbols)
            beams = [sorted(beam, key=_rank)[: self.beam_size] for beam in beams]
            self._predict(model, [path for beam in beams for path in beam])
        return [_merged(beam) for beam in beams]

    def _best(self, log_probs: Tensor) -> list[list[tuple[int, float]]]:
        """Return the symbols of each row that can be among the best, with their values."""
        values, symbols = log_probs.topk(min(self.beam_size, log_probs.shape[1]), dim=-1)
        return [
            list(zip(ids, scores, strict=True))
            for ids, scores in zip(symbols.tolist(), values.tolist(), strict=True)
        ]

    @staticmethod
    def _predict(model: Any, paths: Sequence[_Path]) -> None:
        """Run the prediction network for the paths that have a new token."""
        grown = [path for path in paths if not path.is_done]
        if not grown:
            return
        states = torch.stack([path.state for path in grown])
        tokens = torch.tensor([path.tokens[-1] for path in grown], device=states.device)
        predicted, states = model.prediction.step(tokens, states)
        for path, output, state in zip(grown, predicted, states, strict=True):
            path.predicted, path.state = output, state

    def _hypotheses(self, beam: list[_Path]) -> list[Hypothesis]:
        best = sorted(beam, key=_rank)[: self.n_best]
        return [Hypothesis(path.tokens, path.score, {"transducer": path.score}) for path in best]


def _extended(path: _Path, symbols: list[tuple[int, float]]) -> list[_Path]:
    found = []
    for symbol, value in symbols:
        tokens = path.tokens if symbol == BLANK else (*path.tokens, symbol)
        score = path.score + value
        # Outputs are still the parent's: `_predict` runs the network only for paths that survive.
        found.append(_Path(tokens, score, path.predicted, path.state, symbol == BLANK))
    return found


def _rank(path: _Path) -> tuple[float, tuple[int, ...]]:
    # Tokens break ties, so that the order does not depend on how the beam was built.
    return -path.score, path.tokens


def _merged(beam: list[_Path]) -> list[_Path]:
    """Make paths with the same tokens one."""
    found: dict[tuple[int, ...], _Path] = {}
    for path in beam:
        first = found.setdefault(path.tokens, path)
        if first is not path:
            high, low = max(first.score, path.score), min(first.score, path.score)
            # The exponent is never positive, so exp() cannot overflow.
            first.score = high + math.log1p(math.exp(low - high))
    return list(found.values())
