"""ESPnet2's models on our joint search, by ESPnet2's definitions of its settings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from espnet3.components.decoding.hypothesis import Hypothesis
from espnet3.components.decoding.joint_beam import JointBeam
from espnet3.components.text.tokenizer import BLANK
from espnet3.systems.espnet2.imported_networks import (
    CannotImport,
    import_decoder,
    import_language_model,
)

_PROPOSED = 1.5
"""Tokens that ESPnet2's networks propose to CTC, as a multiple of the beam."""
_LESS = 0.1
_FRAMES = 256
"""Whose CTC outputs are made at once."""
# Keys of options that our search has, or that say nothing about the search.
_SAME = ("dtype", "device", "token_type", "bpemodel")


@dataclass(frozen=True)
class Decoding:
    """The settings of a search in ESPnet2's words, with its defaults."""

    beam_size: int = 20
    ctc_weight: float = 0.5
    lm_weight: float = 1.0
    penalty: float = 0.0
    maxlenratio: float = 0.0
    minlenratio: float = 0.0
    nbest: int = 1


class ESPnet2Search(JointBeam):
    """Our search, with lengths, ends and candidates as ESPnet2 defines them.

    `maxlenratio` is a share of the frames, 0 means as many tokens as frames, and a negative one a
    fixed number of tokens. A hypothesis that reaches that ends there, without a score for its end.
    `minlenratio` likewise is the least number of tokens; where no hypothesis has so many, the
    search is repeated with a ratio that is 0.1 lower. `penalty` counts the end token as well.
    """

    def __init__(self, decoding: Decoding, lm: nn.Module | None = None) -> None:
        super().__init__(
            beam_size=decoding.beam_size,
            ctc_weight=decoding.ctc_weight,
            lm=lm,
            lm_weight=decoding.lm_weight,
            length_bonus=decoding.penalty,
            n_best=decoding.nbest,
        )
        self.decoding = decoding
        self._minlenratio = decoding.minlenratio
        # Without one of the two, ESPnet2 scores every token.
        both = 0 < decoding.ctc_weight < 1
        self.settings = replace(
            self.settings,
            n_proposed=int(_PROPOSED * decoding.beam_size) if both else 1 << 30,
            rewards_end=True,
            is_end_sure_at_limit=True,
        )

    def search(self, model: Any, encoded: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Return the n-best of each utterance; none of one whose scores are not numbers."""
        results = super().search(model, encoded, lengths)
        ratio = self._minlenratio
        bad = [place for place, one in enumerate(results) if not one]
        if not bad or ratio == 0:
            return results
        self._minlenratio = max(0.0, ratio - _LESS)
        try:
            again = self.search(model, encoded[bad], lengths[bad])
        finally:
            self._minlenratio = ratio
        for place, found in zip(bad, again, strict=True):
            results[place] = found
        return results

    def limits(self, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the most and the least tokens of so many frames."""
        frames = lengths.tolist()
        most = [_most(self.decoding.maxlenratio, n) for n in frames]
        least = [_least(self._minlenratio, n) for n in frames]
        return (
            torch.tensor(most, device=lengths.device),
            torch.tensor(least, device=lengths.device),
        )


def _most(ratio: float, n_frames: int) -> int:
    if ratio == 0:
        return max(1, n_frames)
    return -int(ratio) if ratio < 0 else max(1, int(ratio * n_frames))


def _least(ratio: float, n_frames: int) -> int:
    return -int(ratio) if ratio < 0 else int(ratio * n_frames)


class JointModel:
    """A recogniser of ESPnet2 as our search needs it.

    Args:
        model: Of ESPnet2, in eval mode.
        tokens: By id.
        ctc_weight: With 1, the attention decoder is not used; with 0, CTC is not.

    Raises:
        CannotImport: Our search does not fit this model.
    """

    def __init__(self, model: Any, tokens: Sequence[str], ctc_weight: float) -> None:
        self.model = model
        self.tokens = tuple(tokens)
        self.n_tokens = len(tokens)
        _check_ids(model, self.n_tokens)
        self.decoder = import_decoder(model.decoder, self.n_tokens) if ctc_weight < 1 else None
        if ctc_weight > 0 and not hasattr(getattr(model, "ctc", None), "ctc_lo"):
            raise CannotImport("the model has no CTC output")

    def to(self, device: str) -> "JointModel":
        """Move what was imported to where the model is."""
        if self.decoder is not None:
            self.decoder.to(device)
        return self

    def ctc_log_probs(self, encoded: Tensor) -> Tensor:
        """Return the log-probabilities of CTC."""
        if encoded.device.type != "cpu":
            log_probs: Tensor = self.model.ctc.log_softmax(encoded)
            return log_probs.float()
        # Some frames after the other, as the outputs of all would drop out of the caches.
        frames = encoded.flatten(0, 1)
        found = encoded.new_empty(len(frames), self.n_tokens)
        parts = zip(torch.split(frames, _FRAMES), torch.split(found, _FRAMES), strict=True)
        for some, into in parts:
            torch.log_softmax(self.model.ctc.ctc_lo(some), -1, out=into)
        return found.view(*encoded.shape[:2], -1).float()


def _check_ids(model: Any, n_tokens: int) -> None:
    """See to it that special tokens are where our search has them."""
    wanted = {"blank_id": BLANK, "sos": n_tokens - 1, "eos": n_tokens - 1}
    for name, id in wanted.items():
        found = getattr(model, name, id)
        if found != id:
            raise CannotImport(f"its {name} is token {found}, not {id}")


def fitting_search(
    model: Any, lm: Any, tokens: Sequence[str], decoding: Decoding, options: Sequence[str]
) -> tuple[JointModel, ESPnet2Search]:
    """Return ESPnet2's model as our search takes it, and the search.

    Args:
        model: Of ESPnet2.
        lm: Its language model, `lm.lm`; or None.
        tokens: By id.
        decoding: Settings.
        options: Names of further options that are set for ESPnet2's own search.

    Raises:
        CannotImport: Saying why ESPnet2's own search must do it.
    """
    others = [name for name in options if name not in _SAME]
    if others:
        raise CannotImport(f"{others[0]} is set, which only ESPnet2's own search has")
    kind = type(model).__name__
    if kind not in ("ESPnetASRModel", "ESPnetSTModel"):
        raise CannotImport(f"the model is a {kind}")
    # CTC of a translator is of another decoder or language.
    if kind == "ESPnetSTModel" and (decoding.ctc_weight or model.use_multidecoder):
        raise CannotImport("the translator has CTC or a second decoder")
    if getattr(model, "use_transducer_decoder", False):
        raise CannotImport("the model is a transducer")
    if math.isnan(decoding.ctc_weight) or not 0 <= decoding.ctc_weight <= 1:
        raise CannotImport(f"ctc_weight is {decoding.ctc_weight}, which is no share")
    joint = JointModel(model, tokens, decoding.ctc_weight)
    scored = lm is not None and decoding.lm_weight != 0
    if decoding.lm_weight < 0 and scored:
        raise CannotImport("lm_weight is negative")
    return joint, ESPnet2Search(
        decoding, import_language_model(lm, joint.tokens) if scored else None
    )
