"""Networks, feature extractors and tokenizers of Hugging Face: from a folder, name or config."""

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.components.text.tokens import SPACE_TOKEN
from espnet3.config.resolve import resolved
from espnet3.config.trust import PackedModelError, checked_path, current_trust, leads_out
from espnet3.errors import ConfigError, MissingExtraError
from espnet3.text import first_line

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
    if importlib.util.find_spec("transformers") is None:
        raise MissingExtraError(
            "Models of Hugging Face need the package 'transformers', which is not installed. "
            "In your clone of ESPnet3: pip install -c constraints.txt -e '.[transformers]'"
        )
    import transformers

    return transformers


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
            "A model of Hugging Face needs either pretrained or a config. Write: pretrained: "
            "facebook/wav2vec2-base, or config: {model_type: wav2vec2, hidden_size: 32, ...}"
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
    network = _from_pretrained(auto, pretrained, config=config, ignore_mismatched_sizes=True)
    return network.train()  # as other modules come; transformers gives it in eval mode


def load_feature_extractor(
    pretrained: str | None, config: Any, options: Mapping[str, Any] | None
) -> Any:
    """Return what turns samples into the input of a network.

    Args:
        pretrained: Where it is read from, if there is one.
        config: Of the network, which tells the kind otherwise.
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
    if trust is None or trust.code:
        return
    for key, value in _items_in(resolved(values)):
        is_code = key in _CODE_KEYS and value not in (None, False)
        is_kernel = key in _ATTENTION and not _is_plain_attention(value)
        is_path = isinstance(value, str) and len(value) > 1 and leads_out(value)
        is_path = is_path and key not in _OWN_NAMES
        if is_code or is_kernel or is_path:
            raise PackedModelError(
                f"{key} in {where} is {value!r:.80}, by which transformers may run or fetch what "
                "is no part of it. If you trust those who packed the model: from_packed(path, "
                "trust_remote_code=True)"
            )


def _is_plain_attention(value: Any) -> bool:
    names = value.values() if isinstance(value, Mapping) else [value]
    return all(name in _ATTENTIONS for name in names)


def _items_in(values: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(values, Mapping):
        children = list(values.items())
    else:
        children = [("", one) for one in values] if isinstance(values, list | tuple) else []
    for key, value in children:
        yield str(key), value
        yield from _items_in(value)


def _check_folder(place: str) -> None:
    """Refuse a folder or a name of the Hub, if a packed model must not use it."""
    trust = current_trust()
    if trust is None or trust.code:
        return
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
        raise PackedModelError(
            f"{file} is damaged ({error!s:.80}). Copy the packed model anew."
        ) from error


def _from_pretrained(cls: Any, place: str, **options: Any) -> Any:
    _check_folder(place)
    try:
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
