"""Models of Hugging Face for recipes: fine-tuned by `train`, called by `infer`."""

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from espnet3.components.data.errors import AudioError
from espnet3.components.decoding.ctc_greedy import greedy_tokens
from espnet3.components.models.losses import ctc_loss
from espnet3.components.text.tokenizer import BLANK, SPACE_TOKEN, load_tokenizer
from espnet3.config.resolve import resolved
from espnet3.config.trust import PackedModelError, checked_path, current_trust, leads_out
from espnet3.errors import ConfigError, MissingExtraError
from espnet3.systems.asr.model import text_rates
from espnet3.text import first_line

Output = tuple[Tensor, dict[str, Any], int]
_IGNORED = -100  # what the losses of transformers leave out


class HuggingFaceCTC(nn.Module):
    """Any CTC model of Hugging Face (Wav2Vec2, HuBERT, WavLM, ...), as `ASRModel` is used.

    All of ESPnet3's CTC decoders, word times and windows work with it.

    Models with `feat_extract_norm: group` (the "base" ones of Wav2Vec2) normalise over time, and
    were trained without a mask: padding changes their input, so a batch differs slightly from
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
            # CTC models of transformers use the padding token as blank.
            values.update(vocab_size=len(ours.tokens), pad_token_id=BLANK)
        elif pretrained is None:
            raise ConfigError(
                "HuggingFaceCTC needs a tokenizer beside its config.",
                fix="Write: tokenizer: ${tokenizer.save_path}",
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
        # ESPnet3's tokenizers have blank at 0 already; only those of the Hub need to be reordered.
        order = getattr(self.tokenizer, "order", tuple(range(self.n_tokens)))
        # Not persistent: it follows from the tokenizer, so weights need not carry it.
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
        stats: dict[str, Any] = {"loss": loss.detach(), "too_short": too_short.float().mean()}
        # Not while training: to spell out texts, each step would have to wait for the device.
        if not self.training:
            decode = self.tokenizer.decode
            rows = zip(tokens.tolist(), tokens_lengths.tolist(), strict=True)
            found = greedy_tokens(log_probs.detach(), lengths)
            stats |= text_rates([decode(row[:n]) for row, n in rows], [decode(i) for i in found])
        return loss, stats, len(speech)

    def encode(self, speech: Tensor, speech_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [batch, frames, tokens], and the frames of each utterance."""
        inputs = extract(self.feature_extractor, speech, speech_lengths, self.sample_rate)
        logits: Tensor = self.network(**inputs).logits
        # A private method, but transformers has no public one that counts frames.
        count = getattr(self.network, "_get_feat_extract_output_lengths", None)
        if "input_values" in inputs and count is not None:
            lengths = count(speech_lengths).long()
        else:  # a share of the frames that the longest has
            lengths = torch.ceil(logits.shape[1] * speech_lengths / speech_lengths.max()).long()
        # At least one frame, and no more than there are, however rough the estimate above is.
        return logits, lengths.clamp(1, logits.shape[1])

    def ctc_log_probs(self, encoded: Tensor) -> Tensor:
        """Return the log-probabilities of logits, blank first."""
        # The 16 bits of mixed precision are too coarse for the CTC loss and for searches.
        return encoded.index_select(-1, self.order).float().log_softmax(-1)  # type: ignore[arg-type]

    def _tokens(self, text: list[str] | None, device: torch.device) -> tuple[Tensor, Tensor]:
        if text is None:
            raise ConfigError(
                "A batch has neither tokens nor text.",
                fix="Add tokens with dataset.preprocessor: "
                "{_target_: espnet3.systems.asr.preprocessor.Tokenize, tokenizer: FOLDER}",
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
        # Checked here because the options reach `generate` long after the model was built.
        refuse_foreign_code(generate or {}, "generate")
        place = tokenizer or pretrained
        if place is None:
            raise ConfigError(
                "HuggingFaceSeq2Seq needs a tokenizer beside its config.",
                fix="Write: tokenizer: FOLDER, which its save_pretrained() wrote",
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
        stats: dict[str, Any] = {"loss": loss.detach()}
        if not self.training:  # as `infer` would decode it, with the same settings of `generate`
            stats |= text_rates([one.strip() for one in text], self._generate(inputs))
        return loss, stats, len(text)

    def transcribe(self, speech: Tensor, speech_lengths: Tensor) -> list[str]:
        """Return the text of each utterance of a batch."""
        return self._generate(self._extract(speech, speech_lengths))

    def _generate(self, inputs: Mapping[str, Tensor]) -> list[str]:
        ids = self.network.generate(**inputs, **self.generate_options)
        texts: Sequence[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [text.strip() for text in texts]

    def _extract(self, speech: Tensor, speech_lengths: Tensor) -> dict[str, Tensor]:
        most = getattr(self.feature_extractor, "n_samples", None)
        # Whisper's extractor would cut off the end without a word.
        if most is not None and int(speech_lengths.max()) > most:
            seconds = float(speech_lengths.max()) / self.sample_rate
            raise AudioError(
                f"An utterance is {seconds:.1f} s long, but this model accepts "
                f"{most / self.sample_rate:g} s, and would leave out the rest. Cut it into parts."
            )
        return extract(self.feature_extractor, speech, speech_lengths, self.sample_rate)

    def _labels(self, text: list[str]) -> Tensor:
        start = self.network.config.decoder_start_token_id
        rows = [self.tokenizer(one).input_ids for one in text]
        # The network puts the start before them itself.
        bare = [row[1:] if row[:1] == [start] else row for row in rows]
        tensors = [torch.tensor(row, dtype=torch.long) for row in bare]
        # A padding of 0 would be learned as a token.
        return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=_IGNORED)


def extract(
    feature_extractor: Any, speech: Tensor, speech_lengths: Tensor, sample_rate: int
) -> dict[str, Tensor]:
    """Return the inputs of a network for [batch, time] samples, on the same device."""
    # The extractors of transformers compute in numpy, and have no gradient.
    samples = speech.detach().float().cpu().numpy()
    # Padding must go first: normalisation would otherwise take its zeros for speech.
    rows = [row[:n] for row, n in zip(samples, speech_lengths.tolist(), strict=True)]
    # Whisper always takes 30 seconds, and fills up by itself.
    fills_up = hasattr(feature_extractor, "n_samples")
    options = {"return_attention_mask": True} if fills_up else {"padding": True}
    found = feature_extractor(rows, sampling_rate=sample_rate, return_tensors="pt", **options)
    return {name: value.to(speech.device) for name, value in found.items()}


_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")
_RATE = 16000
_CODE_KEYS = frozenset({
    "auto_map", "custom_generate", "custom_pipelines", "trust_remote_code", "quantization_config",
    "use_kernels", "kernel_config", "gguf_file", "subfolder", "cache_dir", "proxies", "backbone",
    "base_model_name_or_path", "assistant_model",
})  # fmt: skip
"""What lets transformers run, or fetch, what is no part of it."""
_ATTENTION = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
_ATTENTIONS = (None, "eager", "sdpa")
"""Others are kernels of the Hub, which are code."""
_OWN_NAMES = ("_name_or_path", "name_or_path")
"""Where a model once came from; transformers only shows it."""
_CONFIG_FILES = (
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
_CODE_FILES = (
    "*.py", "*.pkl", "*.pickle", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.so",
    "adapter_config.json", "*.safetensors*", "*.index.json", "*.gguf",
)  # fmt: skip


def transformers() -> Any:
    """Import the package, which is an extra.

    Raises:
        MissingExtraError: It is not installed.
    """
    # Asked before the import, so that a broken installation still shows its own traceback.
    if importlib.util.find_spec("transformers") is None:
        raise MissingExtraError(
            "Models of Hugging Face need the package 'transformers', which is not installed.",
            fix="In your clone of ESPnet3: pip install -c constraints.txt -e '.[transformers]'",
        )
    import transformers

    package: Any = transformers
    # Bars for files that take no time to read would fill the logs of all workers.
    package.utils.logging.disable_progress_bar()
    return package


def load_network_config(pretrained: str | None, config: Mapping[str, Any] | None) -> Any:
    """Return the config of a network.

    Args:
        pretrained: Folder, or name on the Hub.
        config: Its keys, `model_type` among them; above those of `pretrained`.

    Raises:
        ConfigError: Neither is given, or they name no model.
    """
    auto = transformers().AutoConfig
    if pretrained is None and not (config and "model_type" in config):
        raise ConfigError(
            "A model of Hugging Face needs either pretrained or a config.",
            fix="Write: pretrained: "
            "facebook/wav2vec2-base, or config: {model_type: wav2vec2, hidden_size: 32, ...}",
        )
    values = dict(resolved(config or {}))  # transformers wants plain lists
    refuse_foreign_code(values, "config")
    if pretrained is None:
        return auto.for_model(values.pop("model_type"), **values)
    values.pop("model_type", None)
    return _from_pretrained(auto, pretrained, **values)


def build_network(auto: Any, pretrained: str | None, config: Any) -> Any:
    """Build a network, with its weights if the folder has them, else at random.

    A packed model has a folder without weights: its own come later.
    """
    is_folder = pretrained is not None and Path(pretrained).is_dir()
    has_weights = is_folder and any(any(Path(pretrained or "").glob(p)) for p in _WEIGHTS)
    if pretrained is None or (is_folder and not has_weights):
        return auto.from_config(config)
    # A new vocabulary means a new output layer, which must not be loaded from the old weights.
    network = _from_pretrained(auto, pretrained, config=config, ignore_mismatched_sizes=True)
    return network.train()  # as other modules come; transformers gives it in eval mode


def load_feature_extractor(
    pretrained: str | None, config: Any, options: Mapping[str, Any] | None
) -> Any:
    """Return what turns samples into the input of a network.

    Args:
        pretrained: Where it is read from, if there is one.
        config: Of the network, which determines the kind otherwise.
        options: Arguments of the feature extractor.
    """
    package = transformers()
    refuse_foreign_code(options or {}, "feature_extractor")
    if pretrained is not None:
        return _from_pretrained(package.AutoFeatureExtractor, pretrained, **dict(options or {}))
    if config.model_type == "whisper":
        values = {"feature_size": config.num_mel_bins, **dict(options or {})}
        return package.WhisperFeatureExtractor(**values)
    # Group normalisation was trained without a mask; see the documentation of these models.
    has_mask = getattr(config, "feat_extract_norm", "layer") == "layer"
    defaults = {"sampling_rate": _RATE, "do_normalize": True, "return_attention_mask": has_mask}
    return package.Wav2Vec2FeatureExtractor(**{**defaults, **dict(options or {})})


def load_hub_tokenizer(place: str) -> Any:
    """Return the tokenizer of a folder, or of a name on the Hub."""
    return _from_pretrained(transformers().AutoTokenizer, place)


def refuse_foreign_code(values: Any, where: str) -> None:
    """Refuse what makes transformers run code of others, if a packed model asks for it.

    Args:
        values: Keys for transformers, with mappings and lists in them.
        where: The key of the config, or the file, that they come from.

    Raises:
        PackedModelError: Naming the key.
    """
    trust = current_trust()
    # A recipe of the user's own may use all that transformers can do.
    if trust is None or trust.code:
        return
    for key, value in _items_in(resolved(values)):
        is_code = key in _CODE_KEYS and value not in (None, False)
        is_kernel = key in _ATTENTION and not _is_plain_attention(value)
        # A single character, such as "/", may be a token of the vocabulary.
        is_path = isinstance(value, str) and len(value) > 1 and leads_out(value)
        is_path = is_path and key not in _OWN_NAMES
        if is_code or is_kernel or is_path:
            raise PackedModelError(
                f"{key} in {where} is {value!r:.80}, by which transformers may run or fetch what "
                "is no part of it. If you trust those who packed the model: from_packed(path, "
                "trust_remote_code=True)"
            )


def _is_plain_attention(value: Any) -> bool:
    # A mapping gives one for each part of a model.
    names = value.values() if isinstance(value, Mapping) else [value]
    return all(name in _ATTENTIONS for name in names)


def _items_in(values: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(values, Mapping):
        children = list(values.items())
    else:
        children = [("", one) for one in values] if isinstance(values, list | tuple) else []
    for key, value in children:
        yield str(key), value
        # Nested as well: the configs of encoder and decoder lie below that of the model.
        yield from _items_in(value)


def _check_folder(place: str) -> None:
    """Refuse a folder or a name of the Hub, if a packed model must not use it."""
    trust = current_trust()
    if trust is None or trust.code:
        return
    # transformers takes what is no folder for a name on the Hub, and would download it.
    if not os.path.isdir(place):
        raise PackedModelError(
            f"The packed model needs {place!r:.80} of the Hub, but may only use what is in it. If "
            "you trust those who packed it: from_packed(path, trust_remote_code=True)"
        )
    folder = checked_path(place)
    if odd := sorted(file.name for pattern in _CODE_FILES for file in folder.rglob(pattern)):
        raise PackedModelError(
            f"{folder} holds {odd[0]!r:.80}, which is code, or weights beside those of the packed "
            "model. Pack it again with: "
            "python run.py --stages pack_model"
        )
    for name in _CONFIG_FILES:
        if (file := folder / name).is_file():
            refuse_foreign_code(_read_json(file), str(file))


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        # Deeply nested JSON ends in a RecursionError, which is no ValueError.
        raise PackedModelError(
            f"{file} is damaged ({error!s:.80}).", fix="Copy the packed model again."
        ) from error


def _from_pretrained(cls: Any, place: str, **options: Any) -> Any:
    _check_folder(place)
    try:
        # Left out, transformers would ask on the terminal whether to run code that comes along.
        return cls.from_pretrained(place, trust_remote_code=False, **options)
    except (OSError, ValueError) as error:
        first = first_line(error)
        state = "" if os.path.isdir(place) else " It is no folder here either."
        raise ConfigError(
            f"{place!r} cannot be loaded by transformers' {cls.__name__}: {first}{state} Give a "
            "folder that save_pretrained() wrote, or the name of a model on the Hub."
        ) from error


class CTCTokenizer:
    """A tokenizer of Hugging Face in the order that decoders of ESPnet3 expect: blank first.

    Args:
        hub: That of Hugging Face.
        blank: The id that the network uses for blank.
        size: How many outputs the network has.
    """

    def __init__(self, hub: Any, blank: int, size: int) -> None:
        self._hub = hub
        self.order = (blank, *(id for id in range(size) if id != blank))
        """Ids of the network, by our ids."""
        self._ours = {theirs: ours for ours, theirs in enumerate(self.order)}
        words = getattr(hub, "word_delimiter_token", None)
        names = hub.convert_ids_to_tokens(list(self.order))
        self.tokens: tuple[str, ...] = tuple(
            SPACE_TOKEN if name == words else str(name) for name in names
        )

    def encode(self, text: str) -> list[int]:
        """Return our ids of a text."""
        return [self._ours[id] for id in self._hub(text).input_ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of our ids; special ones are dropped."""
        theirs = [self.order[id] for id in ids]
        if not theirs:
            return ""
        # Repetitions are gone already, and what is left of them was said twice.
        text: str = self._hub.decode(theirs, skip_special_tokens=True, group_tokens=False)
        return text.strip()
