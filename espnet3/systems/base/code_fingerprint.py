"""Fingerprint of a recipe's code: the user's modules that a config and its dataset lead to."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from espnet3.parallel.code_digests import code_in, describe_modules, modules_above

# The provider and the runner themselves are described by every run.
_BLOCKS = ("model", "dataset", "output_artifacts")


def describe_targets(
    config: Mapping[str, Any],
    dataset: Any,
    others: Iterable[Any] = (),
    *,
    blocks: Sequence[str] = _BLOCKS,
) -> dict[str, Any]:
    """Return what each definition says of the user's own modules that a config names.

    Args:
        config: in plain containers.
        dataset: what is read; what it wraps as `dataset` or `datasets` is looked into, and the
            steps that its samples pass through.
        others: classes and functions that count as well, although neither of the two names them.
        blocks: dotted keys of the config whose `_target_`s count; a text there is one itself.
    """
    from espnet3.config.targets import locate

    paths = {path for block in blocks for path in _targets_in(_at(config, block))}
    # Older configs have it in the runner block.
    paths.update(filter(None, [config.get("output_fn"), _at(config, "runner.output_fn")]))
    things = [locate(path) for path in sorted(paths)]
    for layer in _layers(dataset):
        things += [type(layer), *_steps(layer)]
    return describe_modules([*things, *others], modules_above(paths))


def _at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, str) and "." in value:
        return {"_target_": value}
    is_one_test_set = key == "dataset" and "test_set" in config and isinstance(value, Mapping)
    # Configs of inference may have the training sets as well.
    return {k: v for k, v in value.items() if k not in _TRAINING} if is_one_test_set else value


_TRAINING = ("train", "valid")


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
    kept = getattr(layer, "__dict__", {})
    for name in {"transform", "preprocessor", *kept}:
        if name not in ("dataset", "datasets"):
            yield from code_in(getattr(layer, name, None), depth=1)
