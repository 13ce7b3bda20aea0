"""Make the files that a dataset reads: stage 1, `create_dataset`."""

import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from espnet3.components.data.data_organizer import SPLITS, DataSource, parse_entries
from espnet3.components.data.errors import DataError
from espnet3.config.advice import did_you_mean
from espnet3.config.resolve import resolved
from espnet3.config.sources import names_places
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

_KEY = "create_dataset"
_STEPS = (("prepare_source", "is_source_prepared"), ("build", "is_built"))
_METHODS = ("is_source_prepared", "prepare_source", "is_built", "build")
# Passed to a method that asks for them, and no mistake if none does.
_CONTEXT = ("recipe_dir", "data_dir", "dataset_dir", "seed")


class DatasetBuilder(ABC):
    """Base of the `DatasetBuilder` that a recipe's `dataset/__init__.py` exports.

    The methods are called in the order below, each with those entries of the config's
    `create_dataset` block that its signature names, and with `recipe_dir`, `data_dir`,
    `dataset_dir` and `seed` where it names these.

    Example:
        >>> class Digits(DatasetBuilder):
        ...     def is_built(self, recipe_dir):
        ...         return (Path(recipe_dir) / "digits.tsv").exists()
        ...
        ...     def build(self, recipe_dir, n_digits=10):
        ...         text = "".join(f"{i}\\n" for i in range(n_digits))
        ...         (Path(recipe_dir) / "digits.tsv").write_text(text)
        >>> import tempfile
        >>> build_dataset(Digits(), recipe_dir=tempfile.mkdtemp(), arguments={"n_digits": 3})
        ['Digits.prepare_source: skipped, is_source_prepared() is true', 'Digits.build: done']
    """

    def is_source_prepared(self, *args: Any, **kwargs: Any) -> bool:
        """Tell whether what is downloaded or unpacked is there; a builder without it says yes."""
        return True

    def prepare_source(self, *args: Any, **kwargs: Any) -> None:
        """Download or unpack the source."""
        raise NotImplementedError(
            f"{type(self).__name__}.is_source_prepared() is false, but it has no prepare_source(). "
            "Write one, or say in is_source_prepared() what to do by hand."
        )

    @abstractmethod
    def is_built(self, *args: Any, **kwargs: Any) -> bool:
        """Tell whether the files that the `Dataset` reads are there, whole."""

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> None:
        """Make the files that the `Dataset` reads."""


def build_dataset(
    builder: Any,
    *,
    recipe_dir: str | Path,
    arguments: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
) -> list[str]:
    """Prepare the source and build the dataset, as far as that is not done.

    Args:
        builder: Anything with the four methods of `DatasetBuilder`.
        recipe_dir: Passed to the methods that name it.
        arguments: Passed to the methods that name them.
        context: Likewise, but ignored if no method names it.

    Returns:
        A line for each step: done, or skipped and why.

    Raises:
        ConfigError: No method takes one of the arguments, or one lacks an argument.
        DataError: A method is missing, or a step ran without the result it is for.
    """
    _check_methods(builder)
    check_argument_names([builder], arguments or {})
    given = {**(context or {}), "recipe_dir": recipe_dir, **(arguments or {})}
    return [_run_step(builder, step, check, given) for step, check in _STEPS]


def create_dataset(config: DictConfig) -> list[str]:
    """Run stage 1: build what the recipe's datasets read.

    That is the recipe's own `dataset/`, if there is one or an entry of `dataset` means it, and
    each other `data_src` in `dataset.{train,valid,test}`; those whose module exports no
    `DatasetBuilder` need nothing.

    Args:
        config: The resolved config, with `recipe_dir`, `create_dataset` (the arguments of the
            builders' methods) and `dataset`.

    Returns:
        A line for each step: done, or skipped and why.

    Raises:
        ConfigError: A source is unknown, or an argument of `create_dataset` is.
    """
    lines = []
    for job in _jobs(config):
        if isinstance(job, str):
            lines.append(_logged(job))
        else:
            lines += [_run_step(job.builder, *names, job.given) for names in _STEPS]
    return lines


def describe_create_dataset(config: DictConfig) -> list[str]:
    """Return what stage 1 would do, line by line; only the builders' `is_...` methods are called.

    Raises:
        ConfigError: as `create_dataset`.
    """
    lines = []
    for job in _jobs(config):
        if isinstance(job, str):
            lines.append(job)
            continue
        for step, check in _STEPS:
            name = f"{type(job.builder).__name__}.{step}"
            is_done = _call(job.builder, check, job.given)
            lines.append(f"{name}: skipped, {check}() is true" if is_done else f"{name}: would run")
    return lines


def is_dataset_made(config: DictConfig) -> bool:
    """Tell whether stage 1 has nothing left to do; only the builders' `is_...` methods are called.

    Raises:
        ConfigError: as `create_dataset`.
    """
    jobs = [job for job in _jobs(config) if isinstance(job, _Job)]
    return all(_call(job.builder, check, job.given) for job in jobs for _, check in _STEPS)


@names_places
def check_create_dataset(loaded: "LoadedConfig") -> None:
    """Check what stage 1 reads, with file and line in the errors; no method of a builder is called.

    Raises:
        ConfigError: as `create_dataset`, or if the module of a source cannot be imported.
    """
    config = loaded.resolved()
    for source in _sources(config, config.get("recipe_dir") or "."):
        source.check_module()
    _jobs(config)


@dataclass(frozen=True)
class _Job:
    builder: Any
    given: dict[str, Any]
    """What its methods may ask for."""


def _jobs(config: DictConfig) -> list[_Job | str]:
    """Return the builders of a config with their arguments; for a source without one, why."""
    recipe_dir = config.get("recipe_dir") or "."
    arguments = _arguments(config)
    context = {name: config.get(name) for name in _CONTEXT if config.get(name) is not None}
    context["recipe_dir"] = recipe_dir
    found: list[Any] = []
    for source in _sources(config, recipe_dir):
        # Of a class with another name, `load` says how to export it.
        if any("Builder" in name for name in vars(source.load_module())):
            kind = source.load("DatasetBuilder")
            found.append(kind(**_accepted(kind, context)))
        else:
            found.append(f"{source.name}: skipped, it has no DatasetBuilder")
    builders = [builder for builder in found if not isinstance(builder, str)]
    for builder in builders:
        _check_methods(builder)
    check_argument_names(builders, arguments)
    return [
        entry if isinstance(entry, str) else _Job(entry, {**context, **_own(entry, arguments)})
        for entry in found
    ]


def _arguments(config: DictConfig) -> dict[str, Any]:
    arguments = resolved(config.get(_KEY), prefix=_KEY) or {}
    if isinstance(arguments, dict):
        return arguments
    raise ConfigError(
        key=_KEY,
        value=arguments,
        problem="but must hold the arguments of the builder's methods",
        fix="Write: create_dataset: {NAME: VALUE}",
    )


def _own(builder: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in arguments.items() if any(_takes(m, k) for m in _methods(builder))}


def check_argument_names(builders: Iterable[Any], arguments: Mapping[str, Any]) -> None:
    """Raise a `ConfigError` for an argument that no method of the builders takes."""
    methods = [method for builder in builders for method in _methods(builder)]
    for name in arguments:
        if any(_takes(method, name) for method in methods):
            continue
        known = sorted({p for method in methods for p in inspect.signature(method).parameters})
        key = f"{_KEY}.{name}"
        raise ConfigError(
            key=key,
            problem=f"is an argument of none of the builder's methods ({', '.join(_METHODS)})",
            fix=partial(_hint, key, arguments[name], known),
        )


def _hint(key: str, value: Any, known: list[str], loaded: "LoadedConfig | None") -> str:
    return did_you_mean(key, value, known, loaded) or f"They take: {', '.join(known) or 'nothing'}."


def _sources(config: DictConfig, recipe_dir: Any) -> list[DataSource]:
    """Return the distinct sources, the recipe's own first."""
    block = config.get("dataset")
    found: dict[str | None, DataSource] = {}
    own = DataSource(None, recipe_dir)
    if own.has_own_module or not isinstance(block, Mapping):
        found[None] = own
    for split in SPLITS if isinstance(block, Mapping) else ():
        key = f"dataset.{split}"
        for i, entry in enumerate(parse_entries(block.get(split), key)):
            source = DataSource(entry.data_src, recipe_dir, f"{key}.{i}.data_src")
            found.setdefault(entry.data_src or None, source)
    return list(found.values())


def _run_step(builder: Any, step: str, check: str, given: Mapping[str, Any]) -> str:
    name = f"{type(builder).__name__}.{step}"
    if _call(builder, check, given):
        return _logged(f"{name}: skipped, {check}() is true")
    logger.info("%s: started", name)
    start = time.monotonic()
    _call(builder, step, given)
    if not _call(builder, check, given):
        raise DataError(
            f"{name}() ran without an error, but {check}() is still false.",
            fix="Make the two agree on which files there must be, and run the stage again.",
        )
    logger.info("%s: done in %.1f s", name, time.monotonic() - start)
    return f"{name}: done"


def _logged(line: str) -> str:
    logger.info("%s", line)
    return line


def _call(builder: Any, name: str, given: Mapping[str, Any]) -> Any:
    method = getattr(builder, name)
    arguments = _accepted(method, given)
    try:
        # Checked apart from the call, in which a TypeError may come from the builder's own code.
        inspect.signature(method).bind(**arguments)
    except TypeError as error:
        # Only the text of the error names the argument.
        missing = str(error).rpartition(" ")[2].strip("'")
        raise ConfigError(
            f"{type(builder).__name__}.{name}() cannot be called: {error}.",
            fix=f"Write: create_dataset: {{{missing}: VALUE}}",
        ) from error
    return method(**arguments)


def _accepted(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if _takes(function, name)}


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    by_name = name in parameters and parameters[name].kind in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    return by_name or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _methods(builder: Any) -> list[Callable[..., Any]]:
    """Return the methods that the builder's author wrote: those of the base take anything."""
    base = vars(DatasetBuilder)
    own = [name for name in _METHODS if getattr(type(builder), name, None) is not base[name]]
    return [getattr(builder, name) for name in own]


def _check_methods(builder: Any) -> None:
    missing = [name for name in _METHODS if not callable(getattr(builder, name, None))]
    if missing:
        raise DataError(
            f"{type(builder).__name__} has no {missing[0]}().",
            fix="Write the methods "
            f"{', '.join(_METHODS)}, or inherit: class {type(builder).__name__}(DatasetBuilder)",
        )
