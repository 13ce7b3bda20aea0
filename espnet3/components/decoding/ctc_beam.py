"""CTC prefix beam search, batched over utterances, with an optional n-gram over tokens."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from espnet3.components.decoding.hypothesis import Hypothesis
from espnet3.components.decoding.ngram import NGram
from espnet3.components.decoding.ngram_table import NGramTable
from espnet3.components.decoding.prefix_search import Frames, Ints, search, trace
from espnet3.components.text.tokens import BLANK
from espnet3.errors import ConfigError


class PrefixBeamCTC:
    """Finds the token sequences with the largest sum of probabilities over their CTC paths.

    The beam counts endings: a prefix whose last frame was a blank, and the same prefix whose last
    frame was its last token, are two. So a beam of 1 without an n-gram follows one path, the most
    likely symbol of each frame: it returns what `GreedyCTC` returns, with the score of that path
    (where two symbols of a frame tie, either may be taken).

    The score is `ctc + ngram_weight * ngram + token_bonus * n_tokens`. Utterances do not influence
    each other: a batch gives, to the last bit, what its utterances give alone.

    Args:
        beam_size: Endings kept after each frame.
        n_best: Hypotheses returned, at most.
        token_limit: In each frame only so many tokens count, the most likely ones, beside blank.
        ngram: An ARPA file, plain or .gz, whose words are the tokenizer's tokens (see
            `ngram_estimate.train_ngram`), or an `NGram`.
        ngram_weight: Of the n-gram's log-probability.
        token_bonus: Added for each token with an n-gram, which likes short texts.
        tokenizer: Folder of the tokenizer; needed with an n-gram.

    Raises:
        ConfigError: a number is out of range, or an n-gram comes without a tokenizer.
    """

    def __init__(
        self,
        beam_size: int = 10,
        n_best: int = 1,
        *,
        token_limit: int = 30,
        ngram: str | Path | NGram | None = None,
        ngram_weight: float = 0.3,
        token_bonus: float = 0.0,
        tokenizer: str | Path | None = None,
    ) -> None:
        counts = {"beam_size": beam_size, "n_best": n_best, "token_limit": token_limit}
        for name, value in counts.items():
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"decoder.{name} is {value}, but must be 1 or more: {name}: 10")
        if token_bonus and ngram is None:
            raise ConfigError(
                f"decoder.token_bonus is {token_bonus}, but without an n-gram there is nothing to "
                "make up for. Remove it, or add: ngram: data/ngram.arpa"
            )
        self.beam_size = beam_size
        self.n_best = n_best
        self.token_limit = token_limit
        self.ngram_weight = ngram_weight
        self.token_bonus = token_bonus
        self._table = _make_table(ngram, tokenizer, ngram_weight, token_bonus)

    def __call__(self, model: Any, encoded: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Return the n-best of each utterance, best first; see `GreedyCTC`."""
        with torch.inference_mode():
            return self.decode(model.ctc_log_probs(encoded), lengths)

    def decode(self, log_probs: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Decode posteriors [B, T, V] of `lengths` frames each."""
        if log_probs.shape[0] == 0:
            return []
        longest_first = torch.argsort(lengths.cpu(), descending=True, stable=True)
        frames = _frames_of(log_probs, lengths, longest_first, self.token_limit)
        with nullcontext() if self._table is None else self._table.lock:
            found = self._hypotheses(frames)
        places = torch.argsort(longest_first).tolist()
        return [found[place] for place in places]

    def _hypotheses(self, frames: Frames) -> list[list[Hypothesis]]:
        if self._table is not None:
            self._table.trim()
        beam, slots, tokens = search(frames, self.beam_size, self._table)
        ctc = beam.total()
        scores = ctc + beam.extra
        if self._table is not None:
            scores = scores + self._table.finish(beam.state)
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self.n_best]
        texts = trace(slots, tokens, order)
        found = []
        for i, (places, candidates) in enumerate(zip(order, texts, strict=True)):
            is_used = [rank == 0 or np.isfinite(scores[i, k]) for rank, k in enumerate(places)]
            found.append([
                self._hypothesis(tokens, float(scores[i, k]), float(ctc[i, k]))
                for tokens, k, used in zip(candidates, places, is_used, strict=True)
                if used
            ])  # fmt: skip
        return found

    def _hypothesis(self, tokens: tuple[int, ...], score: float, ctc: float) -> Hypothesis:
        if self._table is None:
            return Hypothesis(tokens, score, {"ctc": ctc})
        return Hypothesis(tokens, score, {"ctc": ctc, "ngram": self._table.log_prob(tokens)})


def _make_table(
    ngram: str | Path | NGram | None,
    tokenizer: str | Path | None,
    weight: float,
    bonus: float,
) -> NGramTable | None:
    if ngram is None:
        return None
    if tokenizer is None:
        raise ConfigError(
            "decoder.ngram is set, but not the tokenizer whose tokens are its words. "
            'Add to the decoder: tokenizer: "${tokenizer.save_path}"'
        )
    from espnet3.components.text.tokenizer import load_tokenizer

    model = ngram if isinstance(ngram, NGram) else NGram.read(ngram)
    return NGramTable(model, load_tokenizer(tokenizer).tokens, weight, bonus)


def _frames_of(log_probs: Tensor, lengths: Tensor, order: Tensor, limit: int) -> Frames:
    """Keep blank and the most likely tokens of each frame."""
    log_probs = log_probs[order.to(log_probs.device)]
    n_tokens = log_probs.shape[-1]
    others = log_probs[..., BLANK + 1 :]
    if limit < n_tokens - 1:
        values, tokens = others.topk(limit, dim=-1)
        ids: Ints = tokens.cpu().numpy() + BLANK + 1
    else:
        values = others
        ids = np.broadcast_to(np.arange(BLANK + 1, n_tokens), others.shape)
    return Frames(
        blank=log_probs[..., BLANK].double().cpu().numpy(),
        tokens=ids,
        values=values.double().cpu().numpy(),
        lengths=lengths.cpu()[order].numpy(),
        n_tokens=n_tokens,
    )
