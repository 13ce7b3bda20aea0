"""A transducer (RNN-T): an encoder, a prediction network and a joint network."""

import os
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from espnet3.components.decoding.transducer_greedy import TransducerGreedy
from espnet3.components.models.frames import zero_padding
from espnet3.components.models.losses import ctc_loss, rnnt_loss
from espnet3.components.models.transducer import Joint
from espnet3.components.text.tokenizer import BLANK, Tokenizer
from espnet3.errors import ConfigError
from espnet3.systems.asr.model import ASRModel


class Transducer(ASRModel):
    """Features, encoder, prediction and joint network; CTC helps in training.

    The loss is `(1 - ctc_weight) * loss_transducer + ctc_weight * loss_ctc`, both in nats per
    token. CTC also gives the word times. In `eval()` mode `cer` and `wer` are those of
    `TransducerGreedy`, in percent. The transducer loss is our own, for want of a maintained one on
    CPUs; `rnnt_loss` says what it costs in memory: batches should be smaller than for CTC.

    Decode it with `TransducerGreedy` or `TransducerBeam` of `espnet3.components.decoding`.

    Args:
        tokenizer: Its folder, as the stage `train_tokenizer` wrote it, or a tokenizer.
        frontend: From samples to features, such as `LogMel`.
        encoder: From features to fewer frames, such as `Conformer`.
        prediction: Makes the prediction network when called with `n_tokens`: in YAML, a `_target_`
            with `_partial_: true`, such as `LSTMPrediction` or `StatelessPrediction`.
        joint_size: Of the space where frames and tokens meet.
        normalize: Of the features, such as `UtteranceNormalization`.
        spec_augment: Hides parts of the features while training.
        ctc_weight: Of CTC in the loss.

    Raises:
        ConfigError: The parts do not fit each other, or there is no tokenizer.
    """

    def __init__(
        self,
        tokenizer: str | os.PathLike[str] | Tokenizer,
        frontend: nn.Module,
        encoder: nn.Module,
        prediction: Callable[..., nn.Module],
        *,
        joint_size: int = 128,
        ctc_weight: float = 0.3,
        **features: Any,
    ) -> None:
        if not 0 < ctc_weight < 1:
            raise ConfigError(
                f"model.ctc_weight is {ctc_weight}, but must be between 0 and 1, without these "
                "two: CTC and the transducer are trained together.",
                fix="Write: ctc_weight: 0.3",
            )
        if isinstance(prediction, nn.Module):
            raise ConfigError(
                "model.prediction is a finished module, but is to be made for the model's tokens.",
                fix="Add to its block: _partial_: true",
            )
        # Without ctc_weight: for the base class, less than 1 would require an attention decoder.
        super().__init__(tokenizer, frontend, encoder, **features)
        self.ctc_weight = float(ctc_weight)
        self.prediction = prediction(n_tokens=self.n_tokens)
        prediction_size: Any = self.prediction.output_size
        encoder_size: Any = encoder.output_size
        self.joint = Joint(encoder_size, prediction_size, self.n_tokens, joint_size)

    def forward(
        self, speech: Tensor, speech_lengths: Tensor, tokens: Tensor, tokens_lengths: Tensor
    ) -> tuple[Tensor, dict[str, Tensor | float], int]:
        """Return the loss of a batch, what is to be logged, and the number of utterances."""
        self._check_tokens(tokens)
        encoded, lengths = self.encode(speech, speech_lengths)
        log_probs = self.ctc_log_probs(encoded)
        loss_ctc, too_short = ctc_loss(log_probs, lengths, tokens, tokens_lengths, blank=BLANK)
        # Padding may be -1, which is no index; the losses ignore it anyway.
        tokens = zero_padding(tokens, tokens_lengths)
        # Blank stands for the start of a text, as it is never among the tokens.
        predicted = self.prediction(nn.functional.pad(tokens, (1, 0), value=BLANK))
        logits = self.joint(encoded, predicted)
        losses = rnnt_loss(logits, lengths, tokens, tokens_lengths, blank=BLANK)
        loss_transducer = (losses / tokens_lengths.clamp_min(1).to(losses.device)).mean()
        loss = (1 - self.ctc_weight) * loss_transducer + self.ctc_weight * loss_ctc
        stats: dict[str, Tensor | float] = {
            "loss": loss.detach(),
            "loss_transducer": loss_transducer.detach(),
            "loss_ctc": loss_ctc.detach(),
            "too_short": too_short.float().mean(),
        }
        if not self.training:
            found = TransducerGreedy()(self, encoded.detach(), lengths)
            best = [n_best[0].tokens for n_best in found]
            stats.update(self._error_rates(best, tokens, tokens_lengths))
        return loss, stats, len(speech)
