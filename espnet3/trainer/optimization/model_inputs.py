"""What of a batch goes into a model, checked against the signature of its `forward`."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from espnet3.errors import ConfigError

_WHOLE = "batch"
_LENGTHS = "_lengths"
_ID_KEYS = ("utt_id", "utt_ids", "uttid", "id", "ids")


def fields_of(batch: Any) -> Mapping[str, Any]:
    """Return the dict of a batch, which may come as `(utt_ids, dict)`, ESPnet2's habit.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Mapping):
        batch = batch[1]
    if isinstance(batch, Mapping):
        return batch
    raise ConfigError(
        f"A batch is a {type(batch).__name__}, but must be a dict of the arguments of the model's "
        "forward. Let dataloader.collate_fn return one, such as "
        '{"speech": speech, "speech_lengths": lengths}, or (utt_ids, that dict).'
    )


def ids_of(batch: Any) -> list[str]:
    """Return the ids of the utterances in a batch, as far as it has them."""
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Mapping):
        return _texts(batch[0])
    if isinstance(batch, Mapping):
        return next((_texts(batch[key]) for key in _ID_KEYS if key in batch), [])
    return []


def _texts(ids: Any) -> list[str]:
    if isinstance(ids, str):
        return [ids]
    return [str(i) for i in (ids.tolist() if isinstance(ids, Tensor) else ids)]


def refuse_lightning(model: Any) -> None:
    """Refuse a LightningModule, or its class: nobody would call its `training_step`.

    Raises:
        ConfigError: with what to write instead.
    """
    kind = model if isinstance(model, type) else type(model)
    if not any(c.__name__ == "LightningModule" for c in kind.__mro__):
        return
    raise ConfigError(
        f"{kind.__name__} is a LightningModule: its training_step and configure_optimizers would "
        "not be called here. Make it an nn.Module whose forward returns the loss:\n"
        "    def forward(self, x, y):\n"
        '        return {"loss": loss, "accuracy": accuracy}\n'
        "with optimizer: {_target_: torch.optim.AdamW, lr: 0.001} in the config; or train it with "
        "Lightning: espnet3.trainer.trainer.build_trainer(config).fit(module, loader)"
    )


class ModelInputs:
    """Picks the arguments of a model's `forward` from batches.

    A batch is a dict, of which each field is an argument; a tuple or list, as torch's own datasets
    give, in the order of the arguments; or anything, for a `forward(batch)` with this one argument.
    """

    def __init__(self, model: nn.Module) -> None:
        refuse_lightning(model)
        # A compiled model hides the signature of its own.
        model = getattr(model, "_orig_mod", model)
        self._model = type(model).__name__
        parameters = inspect.signature(model.forward).parameters.values()
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self._known = [p.name for p in named]
        self._required = [p.name for p in named if p.default is p.empty]
        self._takes_batch = self._known == [_WHOLE] and not self._takes_all

    def fields(self, batch: Any) -> Mapping[str, Any]:
        """Return a batch by the names of the model's arguments, or of its own fields.

        Raises:
            ConfigError: it is neither a dict nor a list of arguments.
        """
        if self._takes_batch:
            return {_WHOLE: batch}
        is_pair = isinstance(batch, tuple | list) and len(batch) == 2  # (utt_ids, dict)
        if isinstance(batch, Tensor):
            batch = [batch]
        elif not isinstance(batch, tuple | list) or (is_pair and isinstance(batch[1], Mapping)):
            return fields_of(batch)
        if len(batch) > len(self._known):
            raise ConfigError(
                f"A batch has {len(batch)} parts, but {self._model}.forward takes "
                f"{len(self._known)}: {', '.join(self._known) or 'none'}. Give it an argument for "
                "each, or let the dataset return dicts of its arguments."
            )
        return dict(zip(self._known, batch, strict=False))

    def pick(self, batch: Any) -> dict[str, Any]:
        """Return the arguments for a batch.

        Ids and other texts that `forward` has no place for are left out.

        Raises:
            ConfigError: a tensor has no place, or an argument without default is not there.
        """
        fields = dict(self.fields(batch))
        missing = [name for name in self._required if name not in fields]
        unknown = [] if self._takes_all else [name for name in fields if name not in self._known]
        homeless = [
            name
            for name in unknown
            if _has_tensor(fields[name]) and not _says_no_more(name, fields)
        ]
        if missing or homeless:
            raise ConfigError(self._misfit(fields, missing, homeless))
        return {name: value for name, value in fields.items() if name not in unknown}

    def _misfit(self, fields: Mapping[str, Any], missing: list[str], homeless: list[str]) -> str:
        reasons = []
        if homeless:
            reasons.append(f"the model takes no {_quoted(homeless)}")
        if missing:
            reasons.append(f"the batch has no {_quoted(missing)}")
        return (
            f"The batches do not fit {self._model}.forward: {' and '.join(reasons)}.\n"
            f"  A batch has: {', '.join(map(str, fields))}\n"
            f"  forward takes: {', '.join(self._known)}\n"
            "Rename the keys in dataloader.collate_fn or in the dataset, or the arguments of "
            f"{self._model}.forward; to ignore further keys, add **kwargs to it."
        )


def _has_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(isinstance(item, Tensor) for item in value)
    return isinstance(value, Tensor)


def _says_no_more(name: str, fields: Mapping[str, Any]) -> bool:
    """Tell whether a field is that of lengths, beside a field in which nothing is padded."""
    padded, lengths = fields.get(name.removesuffix(_LENGTHS)), fields[name]
    if not name.endswith(_LENGTHS) or not isinstance(padded, Tensor) or padded.ndim < 2:
        return False
    return isinstance(lengths, Tensor) and bool((lengths == padded.shape[1]).all())


def _quoted(names: list[str]) -> str:
    return ", ".join(map(repr, names))
