"""Networks, feature extractors and tokenizers of Hugging Face: from a folder, name or config."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3.components.text.tokens import SPACE_TOKEN
from espnet3.errors import ConfigError, MissingExtraError

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")
_RATE = 16000


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
    values = dict(config or {})
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


def _from_pretrained(cls: Any, place: str, **options: Any) -> Any:
    try:
        return cls.from_pretrained(place, trust_remote_code=False, **options)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
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
