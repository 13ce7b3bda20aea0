"""The recogniser that recipes train: an encoder with CTC, and an attention decoder if wanted."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from espnet3.components.data.errors import DataError
from espnet3.components.decoding.ctc_greedy import greedy_tokens
from espnet3.components.metrics.error_rate import CORRECT, count_edits
from espnet3.components.models.losses import ctc_loss, label_smoothing_loss, with_ends
from espnet3.components.text.tokenizer import BLANK, Tokenizer, end_of, load_tokenizer
from espnet3.errors import ConfigError

# The usual weight in ESPnet's hybrid recipes.
_CTC_WEIGHT = 0.3


class ASRModel(nn.Module):
    """Features, encoder and CTC; with a decoder, a hybrid of CTC and attention.

    Both losses are in nats per token: the mean over utterances of the mean over their tokens.
    Their sum, weighted by `ctc_weight`, is `loss`. Beside it are reported, as means over
    utterances: `loss_ctc`; `too_short`, the share of utterances with fewer frames than CTC needs
    for their tokens, which are left out of `loss_ctc`; with a decoder `loss_att` and `acc`, its
    share of right tokens; in `eval()` mode `cer` and `wer` of greedy CTC, in percent.

    Args:
        tokenizer: Its folder, as the stage `train_tokenizer` wrote it, or a tokenizer.
        frontend: From samples to features, such as `LogMel`.
        encoder: From features to fewer frames, such as `TDNN` or `Conformer`.
        normalize: Of the features, such as `UtteranceNormalization`.
        spec_augment: Hides parts of the features while training.
        decoder: Makes the attention decoder when called with `n_tokens` and `encoder_size`: in
            YAML, a `_target_` with `_partial_: true`.
        ctc_weight: Of CTC in the loss, the rest is attention's; left out, 0.3 with a decoder, and
            1 without.
        label_smoothing: Of the attention loss.

    Raises:
        ConfigError: The parts do not fit each other, or there is no tokenizer.
    """

    def __init__(
        self,
        tokenizer: str | os.PathLike[str] | Tokenizer,
        frontend: nn.Module,
        encoder: nn.Module,
        *,
        normalize: nn.Module | None = None,
        spec_augment: nn.Module | None = None,
        decoder: Callable[..., nn.Module] | None = None,
        ctc_weight: float | None = None,
        label_smoothing: float = 0.1,
    ) -> None:
        super().__init__()
        # First, because a mismatch otherwise shows as a shape error at the first batch.
        _check_sizes(frontend, encoder)
        self.ctc_weight = _checked_weight(ctc_weight, has_decoder=decoder is not None)
        self.label_smoothing = _checked_smoothing(label_smoothing)
        self.tokenizer: Tokenizer = (
            load_tokenizer(os.fspath(tokenizer))
            if isinstance(tokenizer, str | os.PathLike)
            else tokenizer
        )
        self.n_tokens = len(self.tokenizer.tokens)
        encoder_size = int(encoder.output_size)  # type: ignore[arg-type]
        self.frontend = frontend
        self.normalize = normalize
        self.spec_augment = spec_augment
        self.encoder = encoder
        self.ctc = nn.Linear(encoder_size, self.n_tokens)
        self.decoder = _make_decoder(decoder, self.n_tokens, encoder_size)

    @property
    def sample_rate(self) -> int:
        """Samples per second of the speech that the model expects."""
        return int(self.frontend.sample_rate)  # type: ignore[arg-type]

    @property
    def frame_seconds(self) -> float:
        """Seconds from one frame of the encoder to the next."""
        shift: Any = self.frontend.shift_seconds
        subsampling: Any = self.encoder.subsampling
        return float(shift * subsampling)

    def forward(
        self, speech: Tensor, speech_lengths: Tensor, tokens: Tensor, tokens_lengths: Tensor
    ) -> tuple[Tensor, dict[str, Tensor | float], int]:
        """Return the loss of a batch, what is to be logged, and the number of utterances.

        Args:
            speech: Samples, [batch, time].
            speech_lengths: Samples of each utterance.
            tokens: [batch, longest], padded with anything.
            tokens_lengths: Tokens of each utterance.

        Raises:
            DataError: A token is none of the tokenizer's.
        """
        self._check_tokens(tokens)
        encoded, lengths = self.encode(speech, speech_lengths)
        log_probs = self.ctc_log_probs(encoded)
        loss, too_short = ctc_loss(log_probs, lengths, tokens, tokens_lengths, blank=BLANK)
        stats: dict[str, Tensor | float] = {
            "loss_ctc": loss.detach(),
            "too_short": too_short.float().mean(),
        }
        if self.decoder is not None:
            given, said = with_ends(tokens, tokens_lengths, end_of(self.n_tokens))
            logits = self.decoder(encoded, lengths, given)
            # One more than there are tokens: the decoder must learn the end of a text as well.
            loss_att, accuracy = label_smoothing_loss(
                logits, said, tokens_lengths + 1, smoothing=self.label_smoothing
            )
            stats.update(loss_att=loss_att.detach(), acc=accuracy.detach())
            loss = self.ctc_weight * loss + (1 - self.ctc_weight) * loss_att
        # Not while training: to spell out texts, each step would have to wait for the device.
        if not self.training:
            found = greedy_tokens(log_probs.detach(), lengths)
            stats.update(self._error_rates(found, tokens, tokens_lengths))
        return loss, {"loss": loss.detach(), **stats}, len(speech)

    def encode(self, speech: Tensor, speech_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoder's output [batch, frames, size], and the frames of each utterance."""
        feats, lengths = self.frontend(speech, speech_lengths)
        if self.normalize is not None:
            feats, _ = self.normalize(feats, lengths)
        if self.spec_augment is not None:
            feats = self.spec_augment(feats, lengths)
        encoded, lengths = self.encoder(feats, lengths)
        return encoded, lengths

    def ctc_log_probs(self, encoded: Tensor) -> Tensor:
        """Return log-probabilities [batch, frames, n_tokens] of tokens and blank, in 32 bits."""
        logits: Tensor = self.ctc(encoded)
        # Under mixed precision the softmax of 16 bits is too coarse for the CTC loss.
        return logits.float().log_softmax(-1)

    def collect_feats(
        self, speech: Tensor, speech_lengths: Tensor, **others: Any
    ) -> dict[str, Tensor]:
        """Return the features before they are normalised, for the stage `collect_stats`."""
        feats, lengths = self.frontend(speech, speech_lengths)
        return {"feats": feats, "feats_lengths": lengths}

    def _check_tokens(self, tokens: Tensor) -> None:
        if tokens.device.type != "cpu" and self.training:
            return  # we would have to wait for the device
        # The CTC loss would read memory that is not its own.
        if tokens.numel() and int(tokens.max()) >= self.n_tokens:
            raise DataError(
                f"A batch has the token {int(tokens.max())}, but the model's tokenizer has "
                f"{self.n_tokens}: the texts were turned into tokens by another one.",
                fix="Write the "
                "same folder in both places: model.tokenizer and dataset.preprocessor.tokenizer: "
                '"${tokenizer.save_path}"',
            )

    def _error_rates(
        self, found: Iterable[Sequence[int]], tokens: Tensor, tokens_lengths: Tensor
    ) -> dict[str, float]:
        decode = self.tokenizer.decode
        targets = zip(tokens.tolist(), tokens_lengths.tolist(), strict=True)
        references = [decode(row[:n]) for row, n in targets]
        return text_rates(references, [decode(ids) for ids in found])


def text_rates(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, float]:
    """Return `cer` and `wer` of a batch while a model is validated, in percent."""
    pairs = list(zip(references, hypotheses, strict=True))
    words = [(reference.split(), hypothesis.split()) for reference, hypothesis in pairs]
    return {"cer": _mean_rate(pairs), "wer": _mean_rate(words)}


def _mean_rate(pairs: Any) -> float:
    """Return the mean error rate of utterances, in percent; it does not depend on the batches."""
    counts = count_edits(pairs)
    errors = counts[:, CORRECT + 1 :].sum(1)
    # An empty reference counts as one unit, so insertions still count and nothing divides by zero.
    n_units = [max(1, len(reference)) for reference, _ in pairs]
    return 100 * float((errors / n_units).mean())


def _make_decoder(
    decoder: Callable[..., nn.Module] | None, n_tokens: int, encoder_size: int
) -> nn.Module | None:
    # `nn.Module` is callable too, and would fail with an obscure error when called with sizes.
    if isinstance(decoder, nn.Module):
        raise ConfigError(
            "model.decoder is a finished module, but is to be made for the model's tokens and "
            "encoder.",
            fix="Add to its block: _partial_: true",
        )
    return None if decoder is None else decoder(n_tokens=n_tokens, encoder_size=encoder_size)


def _check_sizes(frontend: nn.Module, encoder: nn.Module) -> None:
    # Modules of users need not declare their sizes.
    given = getattr(frontend, "output_size", None)
    wanted = getattr(encoder, "input_size", None)
    if given is not None and wanted is not None and given != wanted:
        raise ConfigError(
            f"model.encoder.input_size is {wanted}, but model.frontend gives features of size "
            f"{given}.",
            fix=f"Write below model.encoder: input_size: {given}",
        )


def _checked_weight(weight: float | None, *, has_decoder: bool) -> float:
    if weight is None:
        return _CTC_WEIGHT if has_decoder else 1.0
    if not 0 <= weight <= 1:
        raise ConfigError(
            f"model.ctc_weight is {weight}, but must be between 0 and 1.",
            fix=f"Write: ctc_weight: {_CTC_WEIGHT if has_decoder else 1.0}",
        )
    if weight < 1 and not has_decoder:
        raise ConfigError(
            f"model.ctc_weight is {weight}, but there is no model.decoder for the rest.",
            fix="Write "
            "ctc_weight: 1.0, or add a decoder: {_target_: "
            "espnet3.components.models.attention_decoder.TransformerDecoder, _partial_: true}",
        )
    if weight == 1 and has_decoder:
        raise ConfigError(
            f"model.ctc_weight is {weight}, so that model.decoder would not be trained.",
            fix=f"Write ctc_weight: {_CTC_WEIGHT}, or take the decoder out.",
        )
    return float(weight)


def _checked_smoothing(smoothing: float) -> float:
    if not 0 <= smoothing < 1:
        raise ConfigError(
            f"model.label_smoothing is {smoothing}, but must be from 0 to less than 1.",
            fix="Write: label_smoothing: 0.1",
        )
    return float(smoothing)
