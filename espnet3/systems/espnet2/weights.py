"""Weights of ESPnet2, `.pth` files: read without running code, and put into a model."""

import logging
import os
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from espnet3.config.trust import checked_path
from espnet3.errors import ConfigError, RunFolderError
from espnet3.text import listed

if TYPE_CHECKING:
    from torch import Tensor, nn

logger = logging.getLogger(__name__)


def read_weights(
    path: str | os.PathLike[str], *, key: str = "weights", trust_remote_code: bool = False
) -> dict[str, "Tensor"]:
    """Return the tensors of a `.pth` by their names, on the CPU.

    Args:
        path: What ESPnet2 wrote: an average such as `valid.acc.ave.pth`, one epoch, or
            `checkpoint.pth`, of which the model is taken.
        key: That names it, for the errors.
        trust_remote_code: Unpickle whatever is in the file, which runs code of its author.

    Raises:
        ConfigError: It is not there, or holds objects that are not tensors.
        RunFolderError: It is damaged, or has no weights.
    """
    import torch

    file = checked_path(path)
    if not file.is_file():
        raise ConfigError(
            key=key,
            value=os.fspath(path),
            problem="which does not exist",
            fix=f"Give a .pth of the training, such as {key}: exp/asr_train/valid.acc.ave.pth",
        )
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=not trust_remote_code)
    except pickle.UnpicklingError as error:
        if trust_remote_code or not _names_a_global(error):
            raise _damaged(file, error) from error
        raise ConfigError(
            key=key,
            value=str(file),
            problem="which holds objects beside tensors: reading them could run code of whoever "
            f"wrote the file ({_first_line(error)})",
            fix="If you trust them, write: trust_remote_code: true",
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise _damaged(file, error) from error
    return _tensors(loaded, file)


def network_weights(path: str | os.PathLike[str]) -> dict[str, "Tensor"]:
    """Return the weights of ESPnet2's network in those of an `ESPnet2Model` trained here."""
    from espnet3.trainer.checkpointing.checkpoint_io import load_weights

    prefix = "network."
    found = load_weights(path)
    return {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}


def _names_a_global(error: Exception) -> bool:
    """Tell a file with other objects from one that is no file of torch at all."""
    return "GLOBAL" in str(error) or "global" in str(error)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "GLOBAL" in line]
    return (lines or str(error).splitlines() or [type(error).__name__])[0][:160]


def _damaged(file: Any, error: Exception) -> RunFolderError:
    return RunFolderError(
        f"{file} cannot be read as weights of torch ({_first_line(error)}).", fix="Copy it again."
    )


def _tensors(loaded: Any, file: Any) -> dict[str, "Tensor"]:
    import torch

    # checkpoint.pth also holds optimizers and the reporter.
    values = loaded.get("model", loaded) if isinstance(loaded, Mapping) else {}
    found = {k: v for k, v in values.items() if isinstance(v, torch.Tensor)}
    if not found:
        raise RunFolderError(
            f"{file} holds no weights, but a {type(loaded).__name__}.",
            fix="Give a .pth that a training of ESPnet2 wrote.",
        )
    return found


def put_weights(model: "nn.Module", weights: Mapping[str, "Tensor"], source: str) -> None:
    """Load weights into a model that has exactly these names and shapes.

    Raises:
        RunFolderError: They do not fit; the message has the first differences.
    """
    own = model.state_dict()
    lacking = [name for name in own if name not in weights]
    foreign = [name for name in weights if name not in own]
    other = [n for n, v in weights.items() if n in own and own[n].shape != v.shape]
    if not (lacking or foreign or other):
        model.load_state_dict(dict(weights))
        return
    parts = [
        f"{len(names)} {what}, such as {names[0]}"
        for names, what in (
            (lacking, "of the model are not in the file"),
            (foreign, "of the file are not in the model"),
            (other, "have another shape"),
        )
        if names
    ]
    raise RunFolderError(
        f"The weights {source} do not fit the model of the config: {listed(parts)}.",
        fix="Give the weights that were trained with this config, and the version of espnet that "
        "its line `version:` names.",
    )
