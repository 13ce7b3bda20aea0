"""Datasets of a stage: build those of a training, and compare what they hold, also with the model.

The fields of datasets that are combined must be the same, and the sampling rates of data and model.
Rates are known from the config, where both stand there, or else from the samples and the model as
they were built. Of each dataset one sample is read, the first. A model or a dataset of the user's
own that has no rate is let pass.
"""

import logging
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from espnet3.components.data.dataset import TransformedDataset
from espnet3.components.data.errors import DataError
from espnet3.config.instantiate import instantiate
from espnet3.config.resolve import resolved
from espnet3.config.sources import names_places, place_of
from espnet3.config.targets import BadTarget, signature_at
from espnet3.errors import ConfigError, EspnetError
from espnet3.systems.base.given_parts import NOTHING_GIVEN, SPLITS, GivenParts
from espnet3.systems.base.inference_provider import ORGANIZER
from espnet3.text import first_few
from espnet3.trainer.launching.process_rank import process_rank

if TYPE_CHECKING:
    from espnet3.components.data.loader_config import DataLoaderConfig
    from espnet3.config.load import LoadedConfig


logger = logging.getLogger(__name__)

_EXAMPLE = "train: [{data_src: kaldi, data_src_args: {path: data/train}}]"
_COLLATE = "espnet3.components.data.collate.PadCollate"
_SHOWN = 3


@names_places
def check_data(loaded: "LoadedConfig", given: GivenParts = NOTHING_GIVEN) -> None:
    """Check the `dataset` block, as far as it is used; nothing of it is built.

    Raises:
        ConfigError: it says nothing of training, or an entry is wrong.
    """
    from espnet3.components.data.data_organizer import check_datasets

    block = loaded.plain().get("dataset")
    is_empty = not isinstance(block, Mapping) or has_split(block, "train") is False
    if given.train is None and is_empty:
        _refuse_empty(block)
    check_datasets(loaded, tuple(name for name in SPLITS if given.split(name) is None))


def has_split(block: Any, split: str, given: GivenParts = NOTHING_GIVEN) -> bool | None:
    """Tell whether there is data of a split; None where an organizer of one's own must know.

    Args:
        block: `dataset` of the config.
        split: `train` or `valid`.
        given: data that comes as objects.
    """
    if given.split(split) is not None:
        return True
    if block is None and given.train is not None:
        return False
    if not isinstance(block, Mapping) or block.get("_target_", ORGANIZER) != ORGANIZER:
        return None
    return bool(block.get(split))


def build_sets(values: Mapping[str, Any], given: GivenParts = NOTHING_GIVEN) -> dict[str, Any]:
    """Build `train` and `valid` of a config, or take what was given; None where there is none.

    A loader that was given may know its samples alone: its dataset is None as well.

    Raises:
        ConfigError: there is no training set, or it has no items.
        EspnetError: what an entry of `dataset` raises.
    """
    block = values.get("dataset")
    # Built at most once, and not at all where both splits were given.
    organizer = cache(lambda: _build_organizer(block, values.get("recipe_dir")))

    def build(name: str) -> Any:
        if (split := given.split(name)) is not None:
            return split.dataset
        if has_split(block, name, given) is False and given.train is not None:
            return None
        return getattr(organizer(), name)

    sets = {name: build(name) for name in SPLITS}
    if given.train is None and (sets["train"] is None or len(sets["train"]) == 0):
        _refuse_empty(block)
    return sets


def _build_organizer(block: Any, recipe_dir: Any) -> Any:
    """Build the `dataset` block, which is a `DataOrganizer` unless it has another `_target_`."""
    if not isinstance(block, Mapping):
        _refuse_empty(block)
    if block.get("_target_", ORGANIZER) == ORGANIZER:
        block = {"_target_": ORGANIZER, "recipe_dir": recipe_dir, **block}
    return instantiate(block, key="dataset")


def _refuse_empty(block: Any) -> NoReturn:
    fix = f"Write: dataset: {{{_EXAMPLE}}}"
    if not isinstance(block, Mapping):
        problem = "so there is nothing to train on"
        raise ConfigError(key="dataset", value=block, problem=problem, fix=fix)
    raise ConfigError(key="dataset.train", problem="has nothing to train on", fix=fix)


def check_fields(sets: Mapping[str, Any], loader: "DataLoaderConfig", *, is_new: bool) -> None:
    """Refuse, or warn of, datasets whose samples do not have the same fields.

    Args:
        sets: `train` and `valid`, as they were built; None for one that is not.
        loader: how batches are made.
        is_new: nothing is trained yet. A training that has got this far may continue.

    Raises:
        ConfigError: our own function cannot make a batch of them.
    """
    block = loader.collate_fn
    target = block.get("_target_") if isinstance(block, Mapping) else block
    is_ours = target in (None, _COLLATE)
    given = dict(block) if isinstance(block, Mapping) else {}
    dropped = set(given.get("drop") or ()) if is_ours else set[str]()
    for split, dataset in sets.items():
        found = _first_samples(dataset)  # nothing of a set that is None
        odd = _odd_fields(found, dropped)
        if not odd:
            continue
        text = _described(split, odd)
        if is_ours and is_new and not found.problem and loader.for_split(split).batch_size != 1:
            leaving = {"_target_": _COLLATE, **given, "drop": sorted({*dropped, *odd})}
            raise ConfigError(f"{text} A batch of both cannot be made. {_advice(leaving)}")
        _warn(f"{text}{found.problem}")


def warn_of_fields(split: str, dataset: Any) -> None:
    """Warn of fields that only some of the datasets of a split have."""
    found = _first_samples(dataset)
    if odd := _odd_fields(found, set()):
        _warn(f"{_described(split, odd)}{found.problem}")


@dataclass(frozen=True)
class _Found:
    """The fields of the first sample of each dataset, by name."""

    fields: Mapping[str, Sequence[str]]
    problem: str = ""
    """Why these are the fields before the transforms."""


def _first_samples(dataset: Any) -> _Found:
    parts, names = getattr(dataset, "datasets", None), getattr(dataset, "names", None)
    if not parts or not names or len(parts) < 2:
        return _Found({})
    named = dict(zip(names, parts, strict=True))
    # With transforms first, as they may add or drop fields.
    try:
        return _Found({name: _fields_of_first(part) for name, part in named.items()})
    except Exception as error:  # such as a transform that misses a field
        problem = f" A sample cannot be made: {str(error) or type(error).__name__}"
    found = {}
    for name, part in named.items():
        try:
            found[name] = _fields_of_first(_without_transforms(part))
        except Exception:
            continue  # reported, or skipped, when it is read
    return _Found(found, problem)


def _without_transforms(dataset: Any) -> Any:
    while isinstance(dataset, TransformedDataset):
        dataset = dataset.dataset
    return dataset


def _fields_of_first(dataset: Any) -> list[str]:
    sample = dataset[0]
    return [str(key) for key in sample] if isinstance(sample, Mapping) else []


def _odd_fields(found: _Found, dropped: set[str]) -> dict[str, tuple[list[str], list[str]]]:
    """Return the datasets that have a field, and those that have not, by field."""
    known = {name: fields for name, fields in found.fields.items() if fields}
    every = dict.fromkeys(field for fields in known.values() for field in fields)
    odd = {}
    for field in every:
        has = [name for name, fields in known.items() if field in fields]
        if len(has) < len(known) and field not in dropped:
            odd[field] = (has, [name for name in known if name not in has])
    return odd


def _described(split: str, odd: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> str:
    groups: dict[tuple[str, str], list[str]] = {}
    for field, (has, lacks) in odd.items():
        groups.setdefault((_listed(has), _listed(lacks)), []).append(field)
    parts = [f"{has} has {', '.join(f)}, and {no} has not" for (has, no), f in groups.items()]
    return f"The datasets of dataset.{split} have different fields: {'; '.join(parts)}."


def _listed(names: Sequence[str]) -> str:
    return first_few((f"{name}{place_of(name)}" for name in names), _SHOWN)


def _advice(collate: Mapping[str, Any]) -> str:
    import yaml

    # On one line, since it is to be pasted into a shell.
    flow = yaml.safe_dump(dict(collate), default_flow_style=True, width=10_000, sort_keys=False)
    return (
        "Give all samples the same fields, in the datasets or with a transform, or leave these "
        f"out: 'dataloader.collate_fn={flow.strip()}'"
    )


@cache
def _warn(text: str) -> None:
    """Say it once: the check, the stage and its statistics look at the same data."""
    if process_rank().is_first:
        logger.warning("%s", text)


SPEECH = "speech"
RATE = "sample_rate"


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
            f"one of {hertz}. {_how_to_agree(hertz, can_change_model=False)}"
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
    if not isinstance(block, Mapping) or block.get("_target_", ORGANIZER) != ORGANIZER:
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
                fix = _how_to_agree(expected.hertz, found.hertz, can_change_model=can_change_model)
                raise ConfigError(
                    f"{found.what} is {found.hertz}, but {expected.what} is {expected.hertz}: the "
                    f"model would get another speed and pitch. {fix}"
                )


def _how_to_agree(hertz: int, found: int | None = None, *, can_change_model: bool) -> str:
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
