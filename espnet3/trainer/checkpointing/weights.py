"""Read the weights of a model from a checkpoint or a safetensors file."""

from pathlib import Path
from typing import Any

import torch

from espnet3.config.trust import PackedModelError, checked_path, current_trust
from espnet3.errors import RunFolderError
from espnet3.io.atomic import StrPath

PREFIX = "model."
"""Before the names of the model's parameters in a Lightning checkpoint."""


def load_weights(path: StrPath) -> dict[str, torch.Tensor]:
    """Return the weights under the names of the bare model, on the CPU.

    Args:
        path: `.safetensors`, a checkpoint of a training, or what `torch.save(model.state_dict())`
            wrote. Other values in it, such as the state of the optimizer, are left out.

    Raises:
        RunFolderError: it is missing or damaged, or has no weights.
        PackedModelError: a packed model names them, and they are none of its own.
    """
    if Path(path).suffix == ".safetensors":
        return _load_safetensors(path)
    trust = current_trust()
    if trust is not None and not trust.code:
        raise PackedModelError(
            f"{path} is no .safetensors file, as all weights of a packed model are. Pack the model "
            "again with: python run.py --stages pack_model"
        )
    # It imports Lightning, which takes each worker of an inference a second.
    from espnet3.trainer.checkpointing.checkpoint_io import read_checkpoint

    return weights_in(read_checkpoint(path, mmap=True), path)


def weights_in(checkpoint: dict[str, Any], path: StrPath) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint that was read; see `load_weights`."""
    if Path(path).is_dir():
        raise RunFolderError(
            f"{path} is a sharded checkpoint, a folder. Join its parts first: "
            f"python -m lightning.pytorch.utilities.consolidate_checkpoint {path}"
        )
    state = checkpoint.get("state_dict", checkpoint)
    weights = {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}
    if not weights:
        raise RunFolderError(
            f"{path} holds no weights, but {', '.join(map(str, state)) or 'nothing'}.",
            fix="Give a checkpoint of a training, or a .safetensors file.",
        )
    # Names of another program's model may start like that as well, but not all of them.
    if "state_dict" in checkpoint and all(name.startswith(PREFIX) for name in weights):
        return {name.removeprefix(PREFIX): value for name, value in weights.items()}
    return weights


def _load_safetensors(path: StrPath) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not Path(path).is_file():
        raise RunFolderError(f"The weights {path} do not exist.", fix="Check the path.")
    checked_path(path)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise RunFolderError(
            f"{path} is damaged or no safetensors file ({error}). Average again with stage 5, or "
            "copy it again."
        ) from error
