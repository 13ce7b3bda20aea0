"""Models of Hugging Face for recipes: fine-tuned by `train`, called by `infer`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from espnet3.components.data.errors import AudioError
from espnet3.components.models.losses import ctc_loss
from espnet3.components.text.tokenizer import load_tokenizer
from espnet3.components.text.tokens import BLANK
from espnet3.errors import ConfigError
from espnet3.systems.asr.huggingface_parts import (
    CTCTokenizer,
    build_network,
    load_feature_extractor,
    load_hub_tokenizer,
    load_network_config,
    refuse_foreign_code,
    transformers,
)

Output = tuple[Tensor, dict[str, Tensor], int]
_IGNORED = -100  # what the losses of transformers leave out


class HuggingFaceCTC(nn.Module):
    """Any CTC model of Hugging Face (Wav2Vec2, HuBERT, WavLM, ...), as `ASRModel` is used.

    All of ESPnet3's CTC decoders, word times and windows work with it.

    Models with `feat_extract_norm: group` (the "base" ones of Wav2Vec2) normalise over time, and
    were trained without a mask: padding changes what they hear, so a batch differs slightly from
    single utterances. Those with `layer` (the "large" ones) agree to rounding.

    Args:
        pretrained: A folder that `save_pretrained` wrote, or a name on the Hub.
        config: Keys of the network's config, with `model_type`; without `pretrained`, the weights
            start at random.
        tokenizer: Folder of ESPnet3's tokenizer, for a new output layer; None for that of
            `pretrained`. Then batches need `text`, else `tokens`.
        feature_extractor: Arguments of the feature extractor.
        freeze_feature_encoder: Leave the convolutions as they are.

    Raises:
        ConfigError: No such model, or no tokenizer.
        MissingExtraError: transformers is not installed.
    """

    decoder = None

    def __init__(
        self,
        pretrained: str | None = None,
        config: Mapping[str, Any] | None = None,
        tokenizer: str | None = None,
        *,
        feature_extractor: Mapping[str, Any] | None = None,
        freeze_feature_encoder: bool = False,
    ) -> None:
        super().__init__()
        values: dict[str, Any] = {**(config or {})}
        ours = load_tokenizer(tokenizer) if tokenizer is not None else None
        if ours is not None:
            values.update(vocab_size=len(ours.tokens), pad_token_id=BLANK)
        elif pretrained is None:
            raise ConfigError(
                "HuggingFaceCTC needs a tokenizer beside its config. Write: tokenizer: "
                "${tokenizer.save_path}"
            )
        network_config = load_network_config(pretrained, values)
        self.network = build_network(transformers().AutoModelForCTC, pretrained, network_config)
        self.feature_extractor = load_feature_extractor(
            pretrained, network_config, feature_extractor
        )
        self.tokenizer: Any = ours or CTCTokenizer(
            load_hub_tokenizer(pretrained or ""), network_config.pad_token_id,
            network_config.vocab_size,
        )  # fmt: skip
        self.n_tokens = len(self.tokenizer.tokens)
        self.sample_rate = int(self.feature_extractor.sampling_rate)
        ratio = getattr(network_config, "inputs_to_logits_ratio", None)
        self.frame_seconds = float(ratio or 0.02 * self.sample_rate) / self.sample_rate
        order = getattr(self.tokenizer, "order", tuple(range(self.n_tokens)))
        self.register_buffer("order", torch.tensor(order), persistent=False)
        if freeze_feature_encoder:
            self.network.freeze_feature_encoder()

    def forward(
        self,
        speech: Tensor,
        speech_lengths: Tensor,
        tokens: Tensor | None = None,
        tokens_lengths: Tensor | None = None,
        text: list[str] | None = None,
    ) -> Output:
        """Return the loss of a batch in nats per token, statistics, and the number of utterances.

        Args:
            speech: Samples, [batch, time].
            speech_lengths: Samples of each utterance.
            tokens: Ids of ESPnet3's tokenizer, [batch, longest].
            tokens_lengths: Tokens of each utterance.
            text: Used where there are no tokens.
        """
        if tokens is None or tokens_lengths is None:
            tokens, tokens_lengths = self._tokens(text, speech.device)
        logits, lengths = self.encode(speech, speech_lengths)
        log_probs = self.ctc_log_probs(logits)
        loss, too_short = ctc_loss(log_probs, lengths, tokens, tokens_lengths, blank=BLANK)
        stats = {"loss": loss.detach(), "too_short": too_short.float().mean()}
        return loss, stats, len(speech)

    def encode(self, speech: Tensor, speech_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [batch, frames, tokens], and the frames of each utterance."""
        inputs = extract(self.feature_extractor, speech, speech_lengths, self.sample_rate)
        logits: Tensor = self.network(**inputs).logits
        count = getattr(self.network, "_get_feat_extract_output_lengths", None)
        if "input_values" in inputs and count is not None:
            lengths = count(speech_lengths).long()
        else:  # a share of the frames that the longest has
            lengths = torch.ceil(logits.shape[1] * speech_lengths / speech_lengths.max()).long()
        return logits, lengths.clamp(1, logits.shape[1])

    def ctc_log_probs(self, encoded: Tensor) -> Tensor:
        """Return the log-probabilities of logits, blank first."""
        return encoded.index_select(-1, self.order).float().log_softmax(-1)  # type: ignore[arg-type]

    def _tokens(self, text: list[str] | None, device: torch.device) -> tuple[Tensor, Tensor]:
        if text is None:
            raise ConfigError(
                "A batch has neither tokens nor text. Add tokens with dataset.preprocessor: "
                "{_target_: espnet3.systems.asr.preprocessor.Tokenize, tokenizer: FOLDER}"
            )
        ids = [torch.tensor(self.tokenizer.encode(one), dtype=torch.long) for one in text]
        padded = nn.utils.rnn.pad_sequence(ids, batch_first=True).to(device)
        return padded, torch.tensor([len(one) for one in ids], device=device)


class HuggingFaceSeq2Seq(nn.Module):
    """Any model of Hugging Face that writes a text about speech (Whisper, ...).

    Args:
        pretrained: A folder that `save_pretrained` wrote, or a name on the Hub.
        config: Keys of the network's config, with `model_type`; without `pretrained`, the weights
            start at random.
        tokenizer: Folder or name of a tokenizer of Hugging Face, if it is not in `pretrained`.
        feature_extractor: Arguments of the feature extractor.
        generate: Arguments of `generate`, such as `{language: en, num_beams: 5}`.

    Raises:
        ConfigError: No such model, or no tokenizer.
        MissingExtraError: transformers is not installed.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        config: Mapping[str, Any] | None = None,
        tokenizer: str | None = None,
        *,
        feature_extractor: Mapping[str, Any] | None = None,
        generate: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        refuse_foreign_code(generate or {}, "generate")
        place = tokenizer or pretrained
        if place is None:
            raise ConfigError(
                "HuggingFaceSeq2Seq needs a tokenizer beside its config. Write: tokenizer: FOLDER, "
                "which its save_pretrained() wrote"
            )
        network_config = load_network_config(pretrained, config)
        auto = transformers().AutoModelForSpeechSeq2Seq
        self.network = build_network(auto, pretrained, network_config)
        self.feature_extractor = load_feature_extractor(
            pretrained, network_config, feature_extractor
        )
        self.tokenizer: Any = load_hub_tokenizer(place)
        self.sample_rate = int(self.feature_extractor.sampling_rate)
        self.generate_options = dict(generate or {})

    def forward(self, speech: Tensor, speech_lengths: Tensor, text: list[str]) -> Output:
        """Return the loss of a batch in nats per token, statistics, and the number of utterances.

        Args:
            speech: Samples, [batch, time].
            speech_lengths: Samples of each utterance.
            text: What was said in each.
        """
        inputs = self._extract(speech, speech_lengths)
        labels = self._labels(text).to(speech.device)
        loss = self.network(**inputs, labels=labels).loss
        return loss, {"loss": loss.detach()}, len(text)

    def transcribe(self, speech: Tensor, speech_lengths: Tensor) -> list[str]:
        """Return the text of each utterance of a batch."""
        inputs = self._extract(speech, speech_lengths)
        ids = self.network.generate(**inputs, **self.generate_options)
        texts: Sequence[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [text.strip() for text in texts]

    def _extract(self, speech: Tensor, speech_lengths: Tensor) -> dict[str, Tensor]:
        most = getattr(self.feature_extractor, "n_samples", None)
        if most is not None and int(speech_lengths.max()) > most:
            seconds = float(speech_lengths.max()) / self.sample_rate
            raise AudioError(
                f"An utterance is {seconds:.1f} s long, but this model hears "
                f"{most / self.sample_rate:g} s, and would leave out the rest. Cut it into parts."
            )
        return extract(self.feature_extractor, speech, speech_lengths, self.sample_rate)

    def _labels(self, text: list[str]) -> Tensor:
        start = self.network.config.decoder_start_token_id
        rows = [self.tokenizer(one).input_ids for one in text]
        # The network puts the start before them itself.
        bare = [row[1:] if row[:1] == [start] else row for row in rows]
        tensors = [torch.tensor(row, dtype=torch.long) for row in bare]
        return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=_IGNORED)


def extract(
    feature_extractor: Any, speech: Tensor, speech_lengths: Tensor, sample_rate: int
) -> dict[str, Tensor]:
    """Return the inputs of a network for [batch, time] samples, on the same device."""
    samples = speech.detach().float().cpu().numpy()
    rows = [row[:n] for row, n in zip(samples, speech_lengths.tolist(), strict=True)]
    # Whisper always hears 30 seconds, and fills up by itself.
    fills_up = hasattr(feature_extractor, "n_samples")
    options = {"return_attention_mask": True} if fills_up else {"padding": True}
    found = feature_extractor(rows, sampling_rate=sample_rate, return_tensors="pt", **options)
    return {name: value.to(speech.device) for name, value in found.items()}
