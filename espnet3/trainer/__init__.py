"""Training with PyTorch Lightning; it knows nothing of the `parallel` block.

`train` is the entrance from Python; importing this package loads nothing heavy.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from espnet3.config.load import ConfigSource
    from espnet3.systems.base.python_training import TrainingResult

__all__ = ["train"]


def train(
    config: "ConfigSource | Sequence[ConfigSource]",
    *,
    model: Any = None,
    train: Any = None,
    valid: Any = None,
    exp_dir: "str | os.PathLike[str] | None" = None,
    resume: str | None = None,
    accept_changes: str | Sequence[str] | None = None,
    overrides: str | Sequence[str] = (),
) -> "TrainingResult":
    """Train a model from Python as the `train` stage of a recipe does.

    Called again after a kill, it resumes exactly where it was; called again after the end, it
    returns at once. Other settings, layers, code or data in the same folder are refused, key by
    key. With `trainer: {devices: 2, strategy: ddp}` in a script, the script is started a second
    time for the second process, which ends where this returns.

    Args:
        config: of training: a dict, an OmegaConf config, a YAML file, or a list of these of which
            the later win. It needs an `optimizer`; `exp_dir` is `exp/training` unless it is set.
        model: a `torch.nn.Module`; its class, or a function that returns one, called with the
            `model` block as arguments; a dict with a `_target_`. None: as the config says. Its
            `forward` takes the fields of a batch and returns a loss, or a dict with one.
        train: a dataset with `__len__` and `__getitem__`, such as a list of dicts; a
            `torch.utils.data.DataLoader`; entries of a `dataset` block. None: as the config says.
        valid: likewise, for validation.
        exp_dir: the folder of checkpoints, logs and curves, in place of the config's.
        resume: `auto` continues from what is there; `never` puts it aside and starts from scratch.
        accept_changes: keys, as a refusal names them, with which training continues all the same.
        overrides: as on the command line: `["optimizer.lr=0.01"]`.

    Returns:
        The folder, the paths of the weights (last, best, averaged) and the metrics by epoch.

    Raises:
        ConfigError: a setting, the model or the data is wrong; before anything starts.
        StaleRunError: another training is in the folder.
        RunInterrupted: after a signal, when a checkpoint has been written.

    Example:
        result = train(
            {
                "optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.001},
                "dataloader": {"train": {"batch_size": 16}},
                "trainer": {"max_epochs": 10},
            },
            model=Classifier(),
            train=train_samples,
            valid=valid_samples,
        )
        print(result.history[-1]["valid/loss"], result.weights)
    """
    from espnet3.systems.base.python_training import train_from_python

    return train_from_python(
        config,
        model=model,
        train=train,
        valid=valid,
        overrides=overrides,
        exp_dir=exp_dir,
        resume=resume,
        accept_changes=accept_changes,
    )
