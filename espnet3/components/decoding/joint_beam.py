"""Joint CTC/attention beam search, with a neural language model if wanted."""

import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from espnet3.components.data.errors import DataError
from espnet3.components.decoding.hypothesis import Hypothesis
from espnet3.components.decoding.joint_search import (
    CTCPart,
    JointSearch,
    NetworkPart,
    Part,
    SearchSettings,
)
from espnet3.config.trust import current_trust, under
from espnet3.errors import ConfigError


class JointBeam:
    """Finds the tokens with the best joint score, for a batch of utterances at once.

    The score is `ctc_weight` x CTC prefix score + (1 - `ctc_weight`) x attention + `lm_weight` x
    language model + `length_bonus` x number of tokens. The scores add up in float64 and ties go to
    the smaller id, so the size of the batch shows only where the networks' own rounding decides
    between two hypotheses.

    Args:
        beam_size: hypotheses of an utterance that are followed.
        ctc_weight: 0 to 1. With 1 the attention decoder is not used, and need not exist; with 0
            the CTC output is not used.
        lm: a language model: the weights file (best: its identity is then part of what makes
            results stale) or folder of its training, loaded on first use; or a module.
        lm_weight: of the language model.
        length_bonus: for each token, against a preference for short results.
        max_length_ratio: the most tokens of an utterance, as a share of its encoder frames.
        n_best: how many hypotheses to return.
        n_candidates: tokens of each hypothesis that CTC scores: those that attention and language
            model together like most. None: all of up to 2,000 tokens, else 40, or twice the beam.

    Raises:
        ConfigError: a setting is out of range.
    """

    lm_loader = "espnet3.systems.asr.language_model.load_language_model"
    """Called with the path and `device=`, by its name: language models belong to a layer above."""

    def __init__(
        self,
        *,
        beam_size: int = 10,
        ctc_weight: float = 0.3,
        lm: str | os.PathLike[str] | nn.Module | None = None,
        lm_weight: float = 0.3,
        length_bonus: float = 0.0,
        max_length_ratio: float = 1.0,
        n_best: int = 1,
        n_candidates: int | None = None,
    ) -> None:
        _check_least("beam_size", beam_size, 1)
        _check_least("n_best", n_best, 1)
        _check_least("n_candidates", 1 if n_candidates is None else n_candidates, 1)
        _check_least("lm_weight", lm_weight, 0.0)
        _check_least("max_length_ratio", max_length_ratio, 0.0)
        _check_least("ctc_weight", ctc_weight, 0.0)
        if ctc_weight > 1:
            raise ConfigError(
                f"decoder.ctc_weight is {ctc_weight}, but is a share.", fix="Write: ctc_weight: 0.3"
            )
        self.ctc_weight = ctc_weight
        self.lm_weight = lm_weight
        self.max_length_ratio = max_length_ratio
        self.settings = SearchSettings(beam_size, n_best, n_candidates, length_bonus)
        self._lm = lm
        # It is loaded later, and by the rules of the config that names it.
        self._trust = current_trust()

    def load_language_model(self, path: "str | os.PathLike[str]") -> None:
        """Score by the language model of these weights from now on."""
        if not os.path.exists(path):
            raise ConfigError(
                f"The language model {os.fspath(path)} does not exist.",
                fix="Name the weights of its "
                "training, such as exp/training_lm/valid.loss.ave_1best.safetensors",
            )
        self._lm = path
        self._trust = current_trust()

    @torch.inference_mode()
    def __call__(self, model: Any, encoded: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Return the n-best of each utterance, best first.

        Args:
            model: with `n_tokens`, `ctc_log_probs(encoded)` and `decoder`, as `ASRModel`.
            encoded: `[utterances, frames, size]`.
            lengths: frames of each utterance.

        Raises:
            ConfigError: the model lacks a part, or the language model has other tokens.
            DataError: the scores of an utterance are not numbers.
        """
        lengths = lengths.to(encoded.device)
        encoded = _without_padding(encoded, lengths)
        parts = self._parts(model, encoded, lengths)
        # One rounding for all sizes of batches, so in Python.
        limits = [math.floor(self.max_length_ratio * n) for n in lengths.tolist()]
        search = JointSearch(
            parts, torch.tensor(limits, device=encoded.device), model.n_tokens, self.settings
        )
        results = search.run()
        _check_results(results)
        return results

    def _parts(self, model: Any, encoded: Tensor, lengths: Tensor) -> list[Part]:
        parts: list[Part] = []
        if self.ctc_weight < 1:
            decoder = _decoder_of(model)
            state = decoder.start(encoded, lengths)
            parts.append(NetworkPart("attention", 1 - self.ctc_weight, decoder, state))
        if self._lm is not None and self.lm_weight > 0:
            lm = self._language_model(model, encoded.device)
            state = lm.start(len(encoded), encoded.device)
            parts.append(NetworkPart("lm", self.lm_weight, lm, state))
        if self.ctc_weight > 0:
            parts.append(CTCPart(self.ctc_weight, model.ctc_log_probs(encoded), lengths))
        return parts

    def _language_model(self, model: Any, device: torch.device) -> Any:
        if not isinstance(self._lm, nn.Module):
            from espnet3.config.targets import locate

            with under(self._trust):
                self._lm = locate(self.lm_loader)(self._lm, device=str(device))
        assert isinstance(self._lm, nn.Module)
        check_same_tokens(self._lm, model)
        return self._lm.to(device).eval()


def check_same_tokens(lm: Any, model: Any) -> None:
    """Raise if a language model and a recogniser mean different tokens by the same ids.

    Raises:
        ConfigError: with the first difference.
    """
    ours = getattr(getattr(model, "tokenizer", None), "tokens", None)
    theirs = getattr(lm, "tokens", None)
    n_ours, n_theirs = model.n_tokens, lm.n_tokens
    difference = ""
    if n_ours != n_theirs:
        difference = f"{n_theirs} tokens, and the recogniser {n_ours}"
    elif ours is not None and theirs is not None and tuple(ours) != tuple(theirs):
        id = next(i for i in range(n_ours) if ours[i] != theirs[i])
        difference = f"{theirs[id]!r} as token {id}, and the recogniser {ours[id]!r}"
    if difference:
        raise ConfigError(
            f"The language model has {difference}, so their tokenizers differ. Train it with the "
            "tokenizer of the recogniser: python run.py --stages train --training_config "
            "conf/training_lm.yaml model.tokenizer=FOLDER; or decode without it: lm: null"
        )


def _check_least(name: str, value: float, least: float) -> None:
    if not least <= value < math.inf:
        raise ConfigError(
            f"decoder.{name} is {value}, but {least} is the least.", fix=f"Write: {name}: 1"
        )


def _decoder_of(model: Any) -> Any:
    decoder = getattr(model, "decoder", None)
    if decoder is None:
        raise ConfigError(
            f"The model ({type(model).__name__}) has no attention decoder, which JointBeam needs. "
            "Train one with a decoder: in the model of conf/training.yaml; or decode by CTC alone: "
            "decoder: {_target_: espnet3.components.decoding.joint_beam.JointBeam, ctc_weight: 1.0}"
        )
    return decoder


def _without_padding(encoded: Tensor, lengths: Tensor) -> Tensor:
    """Cut off frames that are padding in all utterances, but for one."""
    n_frames = max(1, int(lengths.max())) if len(lengths) else 1
    encoded = encoded[:, :n_frames]
    return nn.functional.pad(encoded, (0, 0, 0, n_frames - encoded.shape[1]))


def _check_results(results: Sequence[Sequence[Hypothesis]]) -> None:
    bad = [str(place) for place, one in enumerate(results) if not one]
    if bad:
        raise DataError(
            f"The scores of {len(bad)} of {len(results)} utterances (in this batch number "
            f"{', '.join(bad[:5])}) are not numbers.",
            fix="Check their audio for NaN, and the weights.",
        )
