"""Compare the sampling rates of data and model.

Rates are known from the config, where both stand there, or else from the samples and the model as
they were built. A model or a dataset of the user's own that has no rate is let pass.
"""

import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.components.data.errors import DataError
from espnet3.config.resolve import resolved
from espnet3.config.sources import place_of
from espnet3.config.targets import BadTarget, signature_at
from espnet3.errors import ConfigError, EspnetError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

SPEECH = "speech"
RATE = "sample_rate"

_ORGANIZER = "espnet3.components.data.data_organizer.DataOrganizer"
_CONFIG = "config.yaml"
_OURS = "espnet3."

Where = Callable[[str], str]
"""Returns `' (set in FILE:LINE)'` for a key: a refusal names the places of two keys."""


@dataclass(frozen=True)
class StatedRate:
    """A sampling rate, and its source."""

    hertz: int
    what: str
    """The key with its place, or what else the rate was found in."""


def check_training_rates(values: Mapping[str, Any]) -> None:
    """Compare what a training config says of its data and of its model.

    Raises:
        ConfigError: They differ; the message has both values with their places.
    """
    model = _in_model(values.get("model"), imports=True)
    for split in ("train", "valid"):
        data = _in_datasets(values.get("dataset"), split)
        _compare_all(data, model, can_change_model=True)


def check_training_samples(datasets: Mapping[str, Any], model: Any, block: Any) -> None:
    """Compare the first sample of each dataset with the model that was built from a block.

    Raises:
        ConfigError: They differ.
    """
    hertz = rate_of_model(model)
    if hertz is None:
        return
    stated = [rate for rate in _in_model(block, imports=True) if rate.hertz == hertz]
    expected = stated or [StatedRate(hertz, f"sample_rate of the model, a {type(model).__name__},")]
    for split, dataset in datasets.items():
        if dataset is not None:
            _compare_all(_in_samples(dataset, f"dataset.{split}"), expected, can_change_model=True)


def check_test_rates(loaded: "LoadedConfig", training: "LoadedConfig | None" = None) -> None:
    """Compare what an inference config says of its test sets with the model that it names.

    Args:
        loaded: The inference config.
        training: The config of the training that is to come first; otherwise the one that lies
            beside the weights counts.

    Raises:
        ConfigError: They differ.
    """
    values = loaded.plain()
    if not _hears_speech_alone(values):
        return
    model = values.get("model")
    if training is not None and _training_file(model) is not None:
        rates = _in_model(training.plain().get("model"), training.set_in)
    else:
        rates = rates_of_trained(model)
    data = _in_datasets(values.get("dataset"), "test", loaded.set_in)
    _compare_all(data, rates, can_change_model=False)


def check_test_samples(dataset: Any, name: str, config: Any) -> None:
    """Compare the first sample of a test set with the model that the config names.

    Raises:
        ConfigError: They differ.
    """
    values = resolved(config)
    rates = rates_of_trained(values.get("model")) if _hears_speech_alone(values) else []
    if rates:
        _compare_all(_in_samples(dataset, f"test set {name}"), rates, can_change_model=False)


def check_call(data: Any, model: Any, input_keys: Sequence[str]) -> None:
    """Refuse to call a model with speech of another rate than it has.

    Raises:
        DataError: They differ.
    """
    # A model that also gets the rate can resample by itself.
    if SPEECH not in input_keys or RATE in input_keys:
        return
    found = _as_rate(data.get(RATE))
    if found is None:
        return
    hertz = rate_of_model(model)
    if hertz is not None and hertz != found:
        raise DataError(
            f"The sample has a sample_rate of {found}, but the model, a {type(model).__name__}, "
            f"one of {hertz}. {_advice(hertz, can_change_model=False)}"
        )


def rate_of_model(model: Any) -> int | None:
    """Return the `sample_rate` of a model or of its front end, or None if it has none."""
    for owner in (model, getattr(model, "frontend", None)):
        try:
            rate = _as_rate(getattr(owner, RATE, None))
        except (TypeError, ValueError):  # a property of ours, with a front end that has no rate
            rate = None
        if rate is not None:
            return rate
    return None


def rates_of_trained(block: Any) -> list[StatedRate]:
    """Return what the training config says that lies beside the weights of a model block."""
    file = _training_file(block)
    if file is None or not file.is_file():
        return []
    from espnet3.config.load import read_values

    try:
        values = read_values(file)
    except EspnetError:
        return []  # reported where the model is built
    return list(_in_model(values.get("model"), lambda _: f" (set in {file})"))


def _training_file(block: Any) -> Path | None:
    if not isinstance(block, Mapping):
        return None
    if isinstance(weights := block.get("weights"), str):
        return Path(weights).with_name(_CONFIG)
    folder = block.get("exp_dir")
    return Path(folder, _CONFIG) if isinstance(folder, str) else None


def _in_model(block: Any, where: Where = place_of, *, imports: bool = False) -> list[StatedRate]:
    """Return the rates of a model block and of its front end, also where they are defaults."""
    if not isinstance(block, Mapping):
        return []
    parts = {"model": block, "model.frontend": block.get("frontend")}
    found = []
    for key, part in parts.items():
        if not isinstance(part, Mapping):
            continue
        rate = _as_rate(part.get(RATE))
        if rate is not None:
            found.append(StatedRate(rate, f"{key}.{RATE}{where(f'{key}.{RATE}')}"))
        elif imports and (rate := _default_rate(part.get("_target_"))) is not None:
            found.append(StatedRate(rate, f"{key}.{RATE}, a default{where(key)},"))
    return found


def _default_rate(target: Any) -> int | None:
    if not isinstance(target, str):
        return None
    try:
        signature = signature_at(target, with_defaults=True)
    except BadTarget:
        return None  # the check of targets reports it
    parameter = signature.parameters.get(RATE) if signature else None
    return None if parameter is None else _as_rate(parameter.default)


def _in_datasets(block: Any, split: str, where: Where = place_of) -> Iterator[StatedRate]:
    """Yield the rates that audio is checked for or brought to, by the `dataset` block alone."""
    if not isinstance(block, Mapping) or block.get("_target_", _ORGANIZER) != _ORGANIZER:
        return
    entries = block.get(split)
    if not isinstance(entries, list) or _may_resample(block.get("preprocessor")):
        return
    for i, entry in enumerate(entries):
        arguments = entry.get("data_src_args") if isinstance(entry, Mapping) else None
        rate = _as_rate(arguments.get(RATE)) if isinstance(arguments, Mapping) else None
        if rate is not None and not _may_resample(entry.get("transform")):
            key = f"dataset.{split}.{i}.data_src_args.{RATE}"
            yield StatedRate(rate, f"{key}{where(key)}")


def _may_resample(step: Any) -> bool:
    """Tell whether a step is the user's own: then only its output shows the rate."""
    if step is None:
        return False
    target = step.get("_target_") if isinstance(step, Mapping) else step
    return not (isinstance(target, str) and target.startswith(_OURS))


def _in_samples(dataset: Any, name: str) -> Iterator[StatedRate]:
    """Yield the rate of the first sample of each dataset that a split is made of."""
    ranges = getattr(dataset, "ranges", None)
    starts = [r.start for r in ranges()] if callable(ranges) else [0]
    names = getattr(dataset, "names", None) or [name]
    # One of each: what one source resamples, another may not.
    for start, called in zip(starts, names, strict=False):
        try:
            sample = dataset[start]
        except Exception:
            continue  # reported, or skipped, when it is read
        is_speech = isinstance(sample, Mapping) and SPEECH in sample
        rate = _as_rate(sample.get(RATE)) if is_speech else None
        if rate is not None:
            utt_id = sample.get("utt_id", "the first one")
            yield StatedRate(rate, f"sample_rate of {utt_id} in {called}{place_of(called)}")


def _compare_all(
    data: Iterator[StatedRate], model: Sequence[StatedRate], *, can_change_model: bool
) -> None:
    if not model:
        return
    for found in data:
        for expected in model:
            if found.hertz != expected.hertz:
                raise ConfigError(
                    f"{found.what} is {found.hertz}, but {expected.what} is {expected.hertz}: the "
                    "model would get another speed and pitch. "
                    f"{_advice(expected.hertz, found.hertz, can_change_model=can_change_model)}"
                )


def _advice(hertz: int, found: int | None = None, *, can_change_model: bool) -> str:
    ways = f"Bring the audio to its rate: data_src_args: {{sample_rate: {hertz}, resample: true}}"
    if can_change_model:
        return f"{ways}, or build the model for that of the data: sample_rate: {found}"
    return (
        f"{ways}, or let a model that can resample know the rate: input_key: [{SPEECH}, {RATE}]. "
        "A transform that resamples has to set sample_rate in the sample as well."
    )


def _hears_speech_alone(values: Mapping[str, Any]) -> bool:
    """Tell whether the model is called with speech, but without its rate."""
    runner = values.get("runner")
    of_runner = runner.get("input_key") if isinstance(runner, Mapping) else None
    keys = values.get("input_key") or of_runner or SPEECH
    keys = [keys] if isinstance(keys, str) else list(keys)
    return SPEECH in keys and RATE not in keys


def _as_rate(value: Any) -> int | None:
    # NumPy's integers are numbers.Real as well, but not int.
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return int(value) if is_number and value > 0 else None
