"""Copy the files that a config names into a packed model, and let the config name the copies."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from espnet3.systems.asr.packed_archive import FILES, TOKENIZER, WEIGHTS
from espnet3.systems.asr.trained_model import CONFIG, find_weights, read_training_config

_HUGGINGFACE = "espnet3.systems.asr.huggingface."
_HUB_KEYS = ("pretrained", "tokenizer")
_TOKENIZER_FILE = "tokenizer.json"
# Of a folder of Hugging Face, all but the weights, which ours replace, and code.
_NO_WEIGHTS = shutil.ignore_patterns(
    "*.safetensors*", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", ".*",
    "*.py", "*.so", "*.pkl", "*.pickle",
)  # fmt: skip


class FileCollector:
    """Copies what configs name into a folder, each thing once.

    Args:
        folder: Of the packed model.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies: dict[str, str] = {}

    def collect(self, values: Any, key: str) -> Any:
        """Return a copy of a block, with paths as they are in the packed folder.

        A path that does not exist loses its folders: what was there is in the weights, such as
        the statistics of the features.

        Args:
            values: Plain containers, paths absolute or relative to the current folder.
            key: Of the block, from which the names of copies are made.
        """
        if isinstance(values, Mapping):
            return {
                name: value if name == "_target_" else self.collect(value, f"{key}.{name}")
                for name, value in _with_hub_folders(values).items()
            }
        if isinstance(values, list):
            return [self.collect(value, f"{key}.{i}") for i, value in enumerate(values)]
        if not isinstance(values, str) or "/" not in values:
            return values
        if not os.path.exists(values):
            return os.path.basename(values) if os.path.isabs(values) else values
        known = os.path.realpath(values)
        if known not in self._copies:
            self._copies[known] = self._copy(Path(values), key)
        return self._copies[known]

    def _copy(self, source: Path, key: str) -> str:
        if _is_tokenizer(source):
            name = TOKENIZER if not (self._folder / TOKENIZER).exists() else f"{FILES}/{key}"
            _copy_folder(source, self._folder / name)
            return name
        name = f"{FILES}/{key}"
        if _is_trained(source):
            return self._copy_trained(source, name)
        if source.is_dir():
            _copy_folder(source, self._folder / name)
            return name
        (self._folder / name).mkdir(parents=True)
        shutil.copyfile(source, self._folder / name / source.name)
        return f"{name}/{source.name}"

    def _copy_trained(self, source: Path, name: str) -> str:
        """Copy another trained model, such as a language model: its weights and `model` block."""
        from omegaconf import OmegaConf

        from espnet3.config.redact import redact

        weights = find_weights(source) if source.is_dir() else source
        folder = self._folder / name
        folder.mkdir(parents=True)
        block = read_training_config(weights)["model"]
        own = FileCollector(folder).collect(block, "model")
        # They count from the folder itself; the slash tells that it is a path.
        config = {"model": _with_slash(own, folder)}
        (folder / CONFIG).write_text(OmegaConf.to_yaml(OmegaConf.create(redact(config))))
        write_weights(weights, folder / WEIGHTS)
        return f"{name}/{WEIGHTS}"


def _with_hub_folders(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let a model of Hugging Face name the folder in the cache, instead of a name on the Hub.

    A packed model may only use what is in it.
    """
    if not str(block.get("_target_", "")).startswith(_HUGGINGFACE):
        return block
    named = {key: block[key] for key in _HUB_KEYS if isinstance(block.get(key), str)}
    found = {key: _hub_folder(name) for key, name in named.items() if not os.path.exists(name)}
    return {**block, **{key: folder for key, folder in found.items() if folder is not None}}


def _hub_folder(name: str) -> str | None:
    """Return where the Hub's cache has a model, as the training left it; None if it has not."""
    try:
        from huggingface_hub import snapshot_download

        return str(snapshot_download(name, local_files_only=True))
    except (ImportError, OSError, ValueError):
        return None


def write_weights(source: Path, target: Path) -> None:
    """Write weights as safetensors; a checkpoint is converted."""
    if source.suffix == ".safetensors":
        shutil.copyfile(source, target)
        return
    from safetensors.torch import save_file

    from espnet3.trainer.checkpointing.weights import load_weights

    # Tied weights share their memory, which the format cannot say.
    weights = {name: value.clone().contiguous() for name, value in load_weights(source).items()}
    save_file(weights, target, metadata={"format": "pt"})


def _with_slash(values: Any, folder: Path) -> Any:
    if isinstance(values, Mapping):
        return {key: _with_slash(value, folder) for key, value in values.items()}
    if isinstance(values, list):
        return [_with_slash(value, folder) for value in values]
    is_plain_path = isinstance(values, str) and "/" not in values and values != ""
    return f"./{values}" if is_plain_path and (folder / values).exists() else values


def _copy_folder(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=_NO_WEIGHTS, copy_function=shutil.copyfile)


def _is_tokenizer(source: Path) -> bool:
    return (source / _TOKENIZER_FILE).is_file() and not (source / "config.json").is_file()


def _is_trained(source: Path) -> bool:
    """Tell whether a path is an experiment's folder, or weights with their config beside them."""
    if source.is_dir():
        return (source / CONFIG).is_file()
    return source.suffix in (".safetensors", ".ckpt") and source.with_name(CONFIG).is_file()
