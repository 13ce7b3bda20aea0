"""The code of a recipe that its results depend on, so that a change of it is not overlooked."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType
from typing import Any

from espnet3.parallel.source import describe_code
from espnet3.systems.base.recipe_modules import describe_imports

# The provider and the runner themselves are described by every run.
_BLOCKS = ("model", "dataset", "output_artifacts")


def describe_targets(
    config: Mapping[str, Any], dataset: Any, others: Iterable[Any] = ()
) -> dict[str, Any]:
    """Return digests of the code that a config names, and of what that imports from the recipe.

    Args:
        config: of inference, in plain containers.
        dataset: the test set; what it wraps as `dataset` or `datasets` is looked into, and the
            steps that its samples pass through.
        others: classes that are described elsewhere, whose imports count as well.
    """
    from espnet3.config.targets import locate

    paths = {path for block in _BLOCKS for path in _targets_in(config.get(block))}
    # Older configs have it in the runner block.
    paths.update(filter(None, [config.get("output_fn"), _in_runner(config, "output_fn")]))
    things = {path: locate(path) for path in paths}
    for layer in _layers(dataset):
        things[_unused(type(layer).__qualname__, type(layer), things)] = type(layer)
        things.update({_step_name(step): _code_of(step) for step in _steps(layer)})
    imported = describe_imports([*things.values(), *others], config.get("recipe_dir") or ".")
    described = {
        name + part: value
        for name, thing in sorted(things.items())
        for part, value in describe_code(thing).items()
        if _is_foreign(thing)
    }
    return {**imported, **described}


def _unused(name: str, thing: Any, things: Mapping[str, Any]) -> str:
    """Return the name, or one that no other class of that name has."""
    while things.get(name, thing) is not thing:
        name += "_"
    return name


def _in_runner(config: Mapping[str, Any], key: str) -> Any:
    return (config.get("runner") or {}).get(key)


def _is_foreign(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] not in ("espnet3", "builtins")


def _targets_in(values: Any) -> Iterator[str]:
    if isinstance(values, Mapping):
        if isinstance(values.get("_target_"), str):
            yield values["_target_"]
        values = list(values.values())
    if isinstance(values, list):
        for value in values:
            yield from _targets_in(value)


def _layers(dataset: Any) -> Iterator[Any]:
    yield dataset
    inner = getattr(dataset, "dataset", None)
    if inner is not None and hasattr(inner, "__getitem__"):
        yield from _layers(inner)
    for part in getattr(dataset, "datasets", ()):
        yield from _layers(part)


def _steps(layer: Any) -> Iterator[Any]:
    """Yield the functions of a sample; a config names most of them without a `_target_`."""
    for name in ("transform", "preprocessor"):
        step = getattr(layer, name, None)
        while isinstance(step, partial):
            step = step.func
        if callable(step):
            yield step


def _code_of(step: Any) -> Any:
    return step if isinstance(step, FunctionType | type) else type(step)


def _step_name(step: Any) -> str:
    code = _code_of(step)
    return f"{code.__module__}.{code.__qualname__}"
