"""Allowlist of classes that the config of a packed model may name."""

import importlib
from typing import Any

from espnet3.config.trust import PackedModelError

__all__ = ["PackedModelError", "is_allowed"]

_OWN_MODULES = ("espnet3.components.models.", "espnet3.systems.asr.")
"""Where modules of torch that ESPnet3 defines come from."""
_DECODERS = "espnet3.components.decoding."
_TORCH_NAMES = ("torch.nn", "torch.nn.modules")
_TORCH_MODULES = frozenset(
    f"torch.nn.modules.{name}"
    for name in (
        "activation", "adaptive", "batchnorm", "channelshuffle", "container", "conv", "distance",
        "dropout", "flatten", "fold", "instancenorm", "linear", "loss", "normalization", "padding",
        "pixelshuffle", "pooling", "rnn", "sparse", "transformer", "upsampling",
    )
)  # fmt: skip
"""Layers; not those that wrap a model for several processes, nor what is built lazily."""
_FUNCTIONS = (
    "espnet3.systems.asr.language_model.load_language_model",
    "espnet3.components.text.characters.CharacterTokenizer",
    "espnet3.components.text.sentencepiece.SentencePieceTokenizer",
)
"""What our own code looks up by its name."""


def is_allowed(target: str) -> bool:
    """Tell whether a dotted name is that of a part of a recogniser.

    Allowed are modules of torch that ESPnet3 defines, layers of torch.nn, and ESPnet3's decoders. A
    name alone proves nothing, as `espnet3.components.models.x.os.system` would be one: it must be
    that of a module and of a class in it, and what counts is where that class is defined.
    """
    if target in _FUNCTIONS:
        return True
    module_name, _, name = target.rpartition(".")
    if not all(part.isidentifier() and part.isascii() for part in target.split(".")):
        return False
    is_ours = module_name.startswith((*_OWN_MODULES, _DECODERS))
    if not is_ours and module_name not in (*_TORCH_NAMES, *_TORCH_MODULES):
        return False
    try:
        found = vars(importlib.import_module(module_name)).get(name)
    except ImportError:
        return False
    return isinstance(found, type) and _is_part(found)


def _is_part(found: Any) -> bool:
    home = f"{found.__module__}."
    if home.startswith(_DECODERS):
        return "__call__" in vars(found) and not found.__name__.startswith("_")
    from torch import nn

    is_home = home.startswith(_OWN_MODULES) or found.__module__ in _TORCH_MODULES
    is_lazy = found.__name__.startswith("Lazy")
    return issubclass(found, nn.Module) and is_home and not is_lazy
