"""Which classes the config of a packed model may name, so that loading it runs no foreign code."""

from collections.abc import Iterator, Mapping
from typing import Any

from espnet3.config.targets import BadTarget, locate
from espnet3.errors import EspnetError

_MODULES = ("espnet3.components.models.", "espnet3.systems.asr.", "torch.nn.")
"""Where modules of torch may come from."""
_DECODERS = "espnet3.components.decoding."
_CODE_KEYS = ("_target_", "lm_loader")
_LOADERS = ("espnet3.systems.asr.language_model.load_language_model",)


class PackedModelError(EspnetError):
    """A packed model is damaged, incomplete, or would run foreign code."""


def check_trusted(values: Any, key: str, file: str) -> None:
    """Refuse a block of a packed config that builds anything but parts of a recogniser.

    Allowed are modules of torch that ESPnet3 or torch.nn define, and ESPnet3's decoders. A name
    alone proves nothing, as `espnet3.components.models.x.os.system` would be one: what counts is
    the class that it leads to, and the module that defines it.

    Args:
        values: Plain containers.
        key: Of the block.
        file: That it comes from.

    Raises:
        PackedModelError: Naming the key.
    """
    for place, text in _strings(values, key):
        if "${" in text:  # could turn into a target when it is resolved
            raise PackedModelError(
                f"{place} in {file} is {text!r:.80}, an interpolation, which a packed config does "
                "not have. Pack the model again with: python run.py --stages pack_model"
            )
    for place, target in _code_names(values, key):
        if not _is_trusted(target):
            raise PackedModelError(
                f"{place} in {file} is {target!r:.80}, which is no part of ESPnet3: building it "
                "would run foreign code. If you trust those who packed the model, and their code "
                "is installed: from_packed(path, trust_remote_code=True)"
            )


def _is_trusted(target: Any) -> bool:
    if target in _LOADERS:
        return True
    if not isinstance(target, str) or not target.startswith((*_MODULES, _DECODERS)):
        return False
    try:
        found = locate(target)
    except BadTarget:
        return False
    if not isinstance(found, type):
        return False
    home = f"{found.__module__}."
    if home.startswith(_DECODERS):
        return True
    from torch import nn

    return issubclass(found, nn.Module) and home.startswith(_MODULES)


def _strings(values: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(values, str):
        yield key, values
    for name, child in _children(values):
        yield from _strings(child, f"{key}.{name}")


def _code_names(values: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield what is imported: targets, and the functions that some classes take by their name."""
    for name, child in _children(values):
        if name in _CODE_KEYS:
            yield f"{key}.{name}".lstrip("."), child
        yield from _code_names(child, f"{key}.{name}")


def _children(values: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(values, Mapping):
        yield from values.items()
    elif isinstance(values, list):
        yield from enumerate(values)
