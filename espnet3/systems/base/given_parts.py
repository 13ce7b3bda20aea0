"""Model and data that are given to a training as objects, in place of blocks of its config."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import CodeType
from typing import TYPE_CHECKING, Any

from espnet3.components.data.dataset import has_content
from espnet3.components.data.random_numbers import global_rngs_kept
from espnet3.config.fingerprint import digest, flatten
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.components.data.foreign_loader import TakenOver
    from espnet3.components.data.loader import BatchLoader
    from espnet3.components.data.loader_config import DataLoaderConfig

logger = logging.getLogger(__name__)

SPLITS = ("train", "valid")
_COUNTING = ("batch_size", "drop_last", "shuffle", "sampler", "batch_sampler")
"""Settings of a DataLoader that results depend on."""


@dataclass(frozen=True)
class GivenSplit:
    """The data of `train` or `valid`: a dataset, a DataLoader, or what else yields batches."""

    split: str
    data: Any

    @cached_property
    def parts(self) -> "TakenOver | None":
        """The parts of a DataLoader, for a loader of ours; None for anything else."""
        from espnet3.components.data.foreign_loader import take_over

        return take_over(self.data) if self.is_loader else None

    @cached_property
    def is_loader(self) -> bool:
        """Tell whether it makes the batches itself."""
        from espnet3.components.data.foreign_loader import is_loader

        return is_loader(self.data)

    @property
    def is_foreign(self) -> bool:
        """Tell whether it is a loader that must be used as it is."""
        return self.is_loader and self.parts is None

    @property
    def dataset(self) -> Any:
        """The samples by position; None where they are known to a loader alone."""
        if not self.is_loader:
            return self.data
        return self.parts.dataset if self.parts else None

    def check(self) -> None:
        """Refuse what has no samples.

        Raises:
            ConfigError: naming its type, and what to give.
        """
        if (problem := _misunderstood(self.data, self.split)) is not None:
            raise ConfigError(problem)
        if self.is_foreign:
            return
        missing = [name for name in ("__len__", "__getitem__") if not hasattr(self.dataset, name)]
        if missing:
            raise ConfigError(
                f"{self.split} is a {type(self.dataset).__name__}, which has no {missing[0]}.",
                fix="Give "
                f"a list of samples, a dataset or a DataLoader: train(config, {self.split}=...)",
            )
        # Otherwise it would only fail at the first batch, after the model was built.
        if not len(self.dataset):
            raise ConfigError(
                f"{self.split} is a {type(self.dataset).__name__} without samples.",
                fix="Give one that has some.",
            )
        # Reading a sample may draw random numbers, which would change the training.
        with global_rngs_kept():
            self._read_first()

    def _read_first(self) -> None:
        try:
            self.dataset[0]
        except Exception as error:
            raise ConfigError(
                f"The first sample of {self.split}, {type(self.dataset).__name__}[0], cannot be "
                f"read: {type(error).__name__}: {error}. A dataset gives samples by position, from "
                "0 on."
            ) from error

    def build_loader(self, config: "DataLoaderConfig", collate_fn: Any, seed: int) -> Any:
        """Return what gives the batches: ours, or the user's own as it is.

        Args:
            config: of what does not say itself how its batches are made.
            collate_fn: likewise; None for one that fits the samples.
            seed: of the experiment.
        """
        if not self.is_foreign:
            return self._own_loader(config, collate_fn, seed)
        if all(callable(getattr(self.data, n, None)) for n in ("state_dict", "load_state_dict")):
            return self.data  # it keeps its position itself
        from espnet3.components.data.foreign_loader import ForeignLoader

        return ForeignLoader(self.data, seed, self.split)

    def _own_loader(self, config: "DataLoaderConfig", collate_fn: Any, seed: int) -> "BatchLoader":
        from espnet3.components.data.loader import build_loader

        return build_loader(
            self.dataset,
            self.parts.config if self.parts else config.for_split(self.split),
            collate_fn=self.parts.collate_fn if self.parts else collate_fn or self._collate(),
            seed=seed,
            split=self.split,
        )

    def _collate(self) -> Any:
        if isinstance(self.dataset[0], Mapping):
            from espnet3.components.data.collate import PadCollate

            return PadCollate()
        from torch.utils.data import default_collate

        logger.info("%s: its samples are no dicts, so torch's default_collate makes the batches",
                    self.split)  # fmt: skip
        return default_collate

    def describe(self) -> dict[str, Any]:
        """Return what the batches depend on, beside the content of the dataset."""
        from espnet3.components.data.loader_config import LoaderConfig

        if self.is_foreign:
            # A foreign loader cannot be looked into, so only its type is compared.
            return {f"dataset.{self.split}": _name(type(self.data))}
        if self.parts is None:
            return {}
        config = self.parts.config
        told = {name: getattr(config, name) for name in _COUNTING}
        # Spelling out the default must not make a training stale.
        told["shuffle"] = None if config.shuffle == (self.split == "train") else config.shuffle
        described = {
            f"dataloader.{self.split}.{name}": value if isinstance(value, int) else _digest(value)
            for name, value in told.items()
            if value is not None and value is not LoaderConfig.model_fields[name].default
        }
        # A lambda has no name by which its code could be found.
        if _name(self.parts.collate_fn) == "<lambda>":
            described[f"dataloader.{self.split}.collate_fn"] = _digest(self.parts.collate_fn)
        return described

    def code(self) -> Iterator[Any]:
        """Yield functions and objects of the user's own beside the dataset."""
        if self.parts is not None:
            config = self.parts.config
            yield from (self.parts.collate_fn, config.sampler, config.batch_sampler)
            yield config.worker_init_fn
        elif self.is_foreign:
            yield self.data
            yield getattr(self.data, "dataset", None)

    def log_limits(self) -> None:
        """Log what of it has no effect, cannot be compared, or does not hold."""
        if self.parts is not None and self.parts.ignored:
            logger.warning("%s: not used of the DataLoader: %s", self.split,
                           "; ".join(self.parts.ignored))  # fmt: skip
        if self.is_foreign:
            if self.split == "train":
                logger.info(
                    "train is a %s, which is used as it is: one process; a resume in mid-epoch "
                    "reads the batches that were done again, and is exact if it gives the same "
                    "batches in each epoch every time. Its data is not compared with that of an "
                    "earlier call.", type(self.data).__name__,
                )  # fmt: skip
        elif not has_content(self.dataset):
            logger.info(
                "%s is a %s without a fingerprint(): an earlier training is compared with it by "
                "its number of items and its code, not by its content",
                self.split, type(self.dataset).__name__,
            )  # fmt: skip


@dataclass(frozen=True)
class GivenParts:
    """Objects given instead of blocks; None for what the config describes.

    Args:
        model: a `torch.nn.Module`; or a class or function that returns one, which is called with
            the `model` block as arguments.
        train: the training data.
        valid: the validation data.
    """

    model: Any = None
    train: GivenSplit | None = None
    valid: GivenSplit | None = None

    def split(self, name: str) -> GivenSplit | None:
        """Return what is given for `train` or `valid`."""
        found: GivenSplit | None = getattr(self, name)
        return found

    @property
    def makes_batches(self) -> bool:
        """Tell whether the training data comes in batches, so that no block says how large."""
        return self.train is not None and self.train.is_loader

    def with_sizes(self, config: "DataLoaderConfig") -> "DataLoaderConfig":
        """Return the `dataloader` block with what the training DataLoader says, where it is unset.

        Raises:
            ConfigError: nothing says how large the batches of the validation data are.
        """
        parts = self.train.parts if self.train is not None else None
        if parts is not None and config.train is None:
            return config.model_copy(update={"train": parts.config})
        needs_size = self.valid is not None and not self.valid.is_loader
        if needs_size and config.train is None and config.valid is None:
            raise ConfigError(
                "dataloader.valid is not set, so it is not known how large a batch of valid is.",
                fix="Write: dataloader: {valid: {batch_size: 16}}",
            )
        return config

    def build_loader(self, split: str, config: "DataLoaderConfig", seed: int) -> Any:
        """Return what gives the batches of a split that was given."""
        from espnet3.components.data.loader_config import build_collate

        own = self.split(split)
        assert own is not None
        collate_fn: Any = self.train.parts.collate_fn if self.train and self.train.parts else None
        if config.collate_fn is not None:
            collate_fn = build_collate(config.collate_fn)
        return own.build_loader(config, collate_fn, seed)

    @property
    def has_model(self) -> bool:
        """Tell whether the model is an object that is built."""
        torch: Any = sys.modules.get("torch")  # loaded, if there is a model of it
        return torch is not None and isinstance(self.model, torch.nn.Module)

    def check(self, model_block: Any) -> None:
        """Refuse a model or data of a wrong kind before anything starts.

        Args:
            model_block: `model` of the config, the arguments of a class that was given.

        Raises:
            ConfigError: with what to give.
        """
        for name in SPLITS:
            if (split := self.split(name)) is not None:
                split.check()
        if self.model is None:
            return
        from espnet3.trainer.optimization.model_calls import refuse_lightning

        refuse_lightning(self.model)
        if self.has_model:
            return
        if not callable(self.model):
            raise ConfigError(
                f"model is {self.model!r:.80}, of type {type(self.model).__name__}.",
                fix="Give a "
                "torch.nn.Module, its class, or {'_target_': 'package.module.Class'}: "
                "train(config, model=...)",
            )
        _check_arguments(self.model, _arguments(model_block))

    def build_model(self, model_block: Any) -> Any:
        """Return the model, built if it is a class or a function."""
        return self.model if self.has_model else self.model(**_arguments(model_block))

    def describe(self) -> dict[str, Any]:
        """Return what the weights depend on of all this, beside code and datasets."""
        described = dict(_describe_model(self.model)) if self.model is not None else {}
        for name in SPLITS:
            if (split := self.split(name)) is not None:
                described |= split.describe()
        return described

    def code(self) -> list[Any]:
        """Return the classes and functions whose code counts."""
        found: list[Any] = []
        if self.has_model:
            # A dict and not a set, whose order differs between processes.
            found += {type(module): None for module in self.model.modules()}
        elif self.model is not None:
            found.append(self.model)
        for name in SPLITS:
            if (split := self.split(name)) is not None:
                found += [one for one in split.code() if one is not None]
        return found

    def log_limits(self) -> None:
        """Log what does not hold, or cannot be compared, once, at the start."""
        if self.has_model:
            logger.info(
                "model is an object: what is compared with an earlier training are its layers, "
                "their settings and its code, not the values that its weights begin with"
            )
        for name in SPLITS:
            if (split := self.split(name)) is not None:
                split.log_limits()


NOTHING_GIVEN = GivenParts()


def _misunderstood(data: Any, split: str) -> str | None:
    """Return what is wrong with data that could be taken for a dataset or for batches."""
    import torch

    kind = type(data).__name__
    if isinstance(data, str | Mapping):
        return (
            f"{split} is {data!r:.80}, a {kind}, which gives no samples by position. Give a list "
            "of dicts, a dataset or a DataLoader; or, by its source: "
            f'{split}={{"data_src": "kaldi", "data_src_args": {{"path": "data/{split}"}}}}'
        )
    # A tuple of tensors has a length and items, so it would pass for a dataset.
    if isinstance(data, tuple) and len(data) > 1 and all(isinstance(x, torch.Tensor) for x in data):
        return (
            f"{split} is a tuple of {len(data)} tensors. Give a dataset of them: "
            f"{split}=torch.utils.data.TensorDataset(*{split})"
        )
    # By name, because an IterableDataset may come from another library than torch.
    if any(cls.__name__ == "IterableDataset" for cls in type(data).__mro__):
        return (
            f"{split} is {kind}, a stream of samples, of which nothing makes batches. Write: "
            f"{split}=torch.utils.data.DataLoader({split}, batch_size=16)"
        )
    if hasattr(data, "__next__"):
        return (
            f"{split} is a {kind}, which gives its batches once. Give what it was made from, such "
            "as a list of samples or a DataLoader."
        )
    return None


def _arguments(block: Any) -> dict[str, Any]:
    block = block or {}
    if not isinstance(block, Mapping):
        raise ConfigError(
            f"model is {block!r:.80}",
            key="model",
            problem="but must be a mapping of the arguments of the class that was given.",
        )
    return {str(key): value for key, value in block.items()}


def _check_arguments(target: Callable[..., Any], block: Mapping[str, Any]) -> None:
    from espnet3.config.targets import find_bad_argument, signature_of

    signature = signature_of(target)
    bad = find_bad_argument(signature, block) if signature else None
    if bad is not None:
        raise ConfigError(
            f"The model block does not fit {_name(target)}: {bad.reason}",
            key=f"model.{bad.name}" if bad.name else "model",
            fix=f"{bad.hint}\nSignature: {_name(target)}{signature}",
        )


def _name(thing: Any) -> str:
    # A class that was defined in a function has a name full of `<locals>`.
    return str(getattr(thing, "__qualname__", type(thing).__qualname__)).rpartition("<locals>.")[2]


def _describe_model(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the layers of a model with their settings, as their `repr` shows them."""
    if not _is_module(model):
        yield from _describe_factory(model)
        return
    yield "model.class", _name(type(model))
    for name, module in model.named_modules():
        key = f"model.{name}" if name else "model"
        for attribute, value in sorted(vars(module).items()):
            is_setting = type(value) in (int, float, bool, str) and not attribute.startswith("_")
            # `training` is no setting: train() and eval() switch it.
            if is_setting and attribute != "training" and is_own(type(module)):
                yield f"{key}.{attribute}", value
        for parameter, value in module.named_parameters(recurse=False):
            if next(module.children(), None) is not None:  # of a leaf, its repr says it
                yield f"{key}.{parameter}", f"{list(getattr(value, 'shape', []))}"
        if name and next(module.children(), None) is None:
            yield key, f"{type(module).__name__}({module.extra_repr()})"


def _describe_factory(build: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a class or function is, and what its code by name does not tell."""
    while isinstance(build, partial):
        given = {**{f"argument_{i}": v for i, v in enumerate(build.args)}, **build.keywords}
        yield from flatten(given, "model", with_state=True).items() if given else ()
        build = build.func
    yield "model.class", _name(build)
    if _name(build) == "<lambda>":  # no name leads to it
        yield "model.function", _digest(build)


def _digest(thing: Any) -> str:
    """Return the name of a sampler or function, with a digest of what it holds, or does."""
    if _name(thing) == "<lambda>":
        # Not its source, which cannot always be found, as in a prompt.
        return f"<lambda> {digest({'code': _compiled(thing.__code__)})[:16]}"
    held = {
        name: value
        for name, value in getattr(thing, "__dict__", {}).items()
        if name != "epoch"  # which a training sets
        and (isinstance(value, bool | int | float | str | list | tuple) or hasattr(value, "ndim"))
    }
    return f"{_name(type(thing))} {digest(held)[:16]}"


def _compiled(code: CodeType) -> list[Any]:
    # Nested functions are constants whose repr has an address, other in each process.
    constants = [_compiled(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code, list(code.co_names), list(code.co_freevars), constants]


def _is_module(model: Any) -> bool:
    import torch

    return isinstance(model, torch.nn.Module)


def is_own(thing: Any) -> bool:
    """Tell whether a class or function is the user's own, and not of an installed package."""
    from espnet3.parallel.own_modules import file_of, is_own_file

    name = str(getattr(thing, "__module__", None) or "")
    # In a notebook, `__main__` has no file.
    return name == "__main__" or is_own_file(file_of(sys.modules.get(name)))
