"""The keys of an inference config that `infer` reads, checked before anything is built."""

import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from espnet3.commands import same_command
from espnet3.components.data.data_organizer import check_name, check_names
from espnet3.config.advice import raise_together
from espnet3.config.schema import FrozenConfig, Names, validate
from espnet3.config.sources import names_places, place_of
from espnet3.config.targets import (
    argument_names,
    check_arguments,
    find_definition,
    locate,
)
from espnet3.errors import ConfigError, closest, suggest
from espnet3.parallel.base_runner import BaseRunner, one_or_more
from espnet3.parallel.clusters.registry import check_resources
from espnet3.parallel.parallel import as_parallel_config
from espnet3.parallel.tasks import WRITER_HOOKS, overridden
from espnet3.systems.base.inference_output import load_function
from espnet3.systems.base.inference_provider import ORGANIZER, builds_own_dataset, check_provider

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


_LONGEST_NAME = 100
DEFAULT_PROVIDER = "espnet3.systems.base.inference_provider.InferenceProvider"
DEFAULT_RUNNER = "espnet3.systems.base.inference_runner.InferenceRunner"


# In lower case: on some file systems Done and done are one file.
_RESERVED = (
    "done", "position", "failed.jsonl", "results.jsonl", "results.parquet", "manifest.json",
    "_success.json", "leases", "logs", "detached",
)  # fmt: skip
ONLY = "test"
"""The name of the test set where a provider builds its one dataset without a list of names."""


def _check_name(name: str) -> None:
    """Refuse a name of a field that is none: each is also the name of a file, such as hyp.scp."""
    # Control characters and slashes would break the path or the lines of an .scp file.
    is_name = name.strip() and name.isprintable() and not set(name) & set("/\\")
    if not is_name or name.startswith((".", "~")) or len(name) > _LONGEST_NAME:
        raise ValueError(
            f"has {name!r:.80}, which is no name of a field: it is that of a file as well, such as "
            "hyp.scp. Write a word, such as: hyp"
        )


def check_some(test_set: str | list[str] | None) -> str | list[str] | None:
    """Refuse a choice of no test set."""
    if test_set is not None and not test_set:
        raise ValueError("names no test set. Delete it to take all of them")
    return test_set


class ArtifactConfig(FrozenConfig):
    """Settings of a field whose values are files."""

    type: Literal["wav", "npy", "json", "text", "pickle"] | None = None
    """What `espnet3.io.artifacts.write_artifact` knows."""
    sample_rate: PositiveInt | None = None
    """In Hz; needed by `wav`."""
    writer: dict[str, Any] | None = None
    """A `_target_` instead of a type; called with `value=` and `output_path=`."""
    suffix: str = ""
    """What is added to the `output_path` of a writer, such as `.flac`."""

    @field_validator("suffix", mode="after")
    @classmethod
    def _is_an_ending(cls, value: str) -> str:
        if set(value) & set("/\\") or (value and not value.isprintable()):
            raise ValueError("is no ending of a file. Write: suffix: .flac")
        return value

    @model_validator(mode="after")
    def _one_way_to_write(self) -> "ArtifactConfig":
        if (self.type is None) == (self.writer is None):
            raise ValueError("needs either a type or a writer. Write: type: npy")
        if self.type == "wav" and self.sample_rate is None:
            raise ValueError("is of type wav and needs its rate. Write: sample_rate: 16000")
        if self.type != "wav" and self.sample_rate is not None:
            rest = "writer: {_target_: ...}" if self.writer else f"type: {self.type}"
            raise ValueError(f"has a sample_rate, which only type: wav uses. Write: {rest}")
        if self.type is not None and self.suffix:
            raise ValueError(
                f"has a suffix, which only a writer uses; a {self.type} file has its own. Write: "
                f"type: {self.type}"
            )
        return self


class InferenceConfig(FrozenConfig):
    """Settings of stage `infer`: data, model and outputs."""

    dataset: dict[str, Any] | None = None
    """`test` lists the test sets; see `DataOrganizer`. A provider of your own may do without."""
    model: dict[str, Any] | None = None
    """A `_target_`, built with `device=`; a provider of your own may do without."""
    test_set: str | list[str] | None = None
    """Decode this one, or these, instead of all."""
    inference_dir: str
    """Each test set has a folder below it."""
    input_key: str | list[str] = "speech"
    """Fields of a sample that the model is called with, by name."""
    output_fn: str | None = None
    """A dotted path; called with `data=, model_output=, idx=`, it returns the fields to keep."""
    output_keys: Names | None = None
    """Field, or fields, to keep; one that the output lacks is taken from the sample."""
    idx_key: str = "utt_id"
    """The field with the id of an item."""
    hyp_key: str = "hyp"
    """The field for the output of a model that returns text."""
    ref_key: str = "ref"
    """The field for the sample's `text`, if it has one."""
    batch_size: PositiveInt | None = None
    """Items of a batch; with `batch_seconds`, at most."""
    batch_seconds: PositiveFloat | None = None
    """Seconds of a padded batch of items of similar length."""
    output_artifacts: dict[str, ArtifactConfig] = Field(default_factory=dict)
    """Fields whose values are files: `feats: npy`, or `wav: {type: wav, sample_rate: 16000}`."""
    results: Literal["jsonl", "parquet"] | None = None
    """Write all fields of all items to one file as well."""
    provider: dict[str, Any] = Field(default_factory=dict)
    """A `_target_` and `params`, which the model is called with, such as `{beam_size: 8}`."""
    runner: dict[str, Any] = Field(default_factory=dict)
    """A `_target_` and the runner's settings: `resume`, `on_error`, `max_errors`, ...; settings of
    the runner that have a key of their own, such as `batch_size`, may stand here as well."""

    @field_validator("provider", "runner", "output_artifacts", mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("output_artifacts", mode="before")
    @classmethod
    def _type_alone(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {k: {"type": v} if isinstance(v, str) else v for k, v in value.items()}

    @field_validator("test_set", mode="after")
    @classmethod
    def _some_test_set(cls, value: str | list[str] | None) -> str | list[str] | None:
        return check_some(value)

    @field_validator("provider", mode="after")
    @classmethod
    def _params_are_named(cls, value: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(value.get("params") or {}, dict):
            raise ValueError("has params that are not named. Write: params: {beam_size: 8}")
        return value

    @field_validator("idx_key", "hyp_key", "ref_key", mode="after")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        _check_name(value)
        return value

    @field_validator("output_keys", mode="after")
    @classmethod
    def _are_names(cls, value: list[str] | None) -> list[str] | None:
        # YAML reads `hyp, ref` without brackets as one text.
        if value and len(value) == 1 and "," in value[0]:
            words = ", ".join(word.strip() for word in value[0].split(","))
            raise ValueError(f"must be a list of fields. Write: output_keys: [{words}]")
        for name in value or ():
            _check_name(name)
            if (value or []).count(name) > 1:
                raise ValueError(f"has {name!r} twice. Delete one of the two")
        return value

    @field_validator("output_artifacts", mode="after")
    @classmethod
    def _are_names_of_folders(cls, value: dict[str, ArtifactConfig]) -> dict[str, ArtifactConfig]:
        for name in value:
            _check_name(name)
            # Each has a folder of this name beside the files of a shard.
            if name.lower() in _RESERVED or name.lower().startswith("split."):
                raise ValueError(
                    f"has {name!r}, which is the name of a file of the run. Write: {name}_value"
                )
        return value

    @field_validator("input_key", mode="after")
    @classmethod
    def _no_empty_list(cls, value: str | list[str]) -> str | list[str]:
        if not value:
            raise ValueError("is empty. Write: input_key: speech")
        return value

    @model_validator(mode="after")
    def _names_differ(self) -> "InferenceConfig":
        names = {key: getattr(self, key) for key in ("idx_key", "hyp_key", "ref_key")}
        for key, name in names.items():
            other = next(k for k, n in names.items() if n == name)
            if other != key:
                default = type(self).model_fields[key].default
                raise ValueError(
                    f"{key} and {other} are both {name!r}, so that one would replace the other. "
                    f"Write: {key}: {default if default != name else default + '_2'}"
                )
        return self

    @model_validator(mode="after")
    def _something_is_kept(self) -> "InferenceConfig":
        if self.output_keys is not None and not set(self.output_keys) - {self.idx_key}:
            raise ValueError(
                f"output_keys is {self.output_keys}, so that nothing would be kept beside the id. "
                f"Write: output_keys: [{self.hyp_key}], or delete it to keep all"
            )
        return self

    @model_validator(mode="after")
    def _artifacts_are_kept(self) -> "InferenceConfig":
        kept = self.output_keys
        lost = [name for name in self.output_artifacts if kept is not None and name not in kept]
        if lost:
            keys = ", ".join([*(kept or ()), *lost])
            raise ValueError(
                f"output_artifacts has {lost[0]!r}, which output_keys leaves out. Write: "
                f"output_keys: [{keys}]"
            )
        return self

    @property
    def provider_target(self) -> str:
        """The class of the provider."""
        return str(self.provider.get("_target_", DEFAULT_PROVIDER))

    @property
    def runner_target(self) -> str:
        """The class of the runner."""
        return str(self.runner.get("_target_", DEFAULT_RUNNER))


KEYS = tuple(InferenceConfig.model_fields)

BATCHING = ("batch_size", "batch_seconds")
OUTPUTS = (
    "idx_key", "hyp_key", "ref_key", "input_key", "output_fn", "output_keys", "output_artifacts",
    "results",
)  # fmt: skip
"""Arguments of an `InferenceRunner` that have a key of their own at the top."""


@names_places
def load_inference_config(loaded: "LoadedConfig") -> InferenceConfig:
    """Check the keys that the stage reads; a config may hold others, for other readers.

    What the block `runner` has of the arguments that are keys of their own counts as those.

    Raises:
        ConfigError: one that lists every problem, with its place.
    """
    values = loaded.plain()
    present = {key: value for key, value in values.items() if key in KEYS}
    moved = _take_from_runner(present)
    homes = {key: f"runner.{key}" for key in moved}
    return validate(InferenceConfig, present, loaded=loaded, homes=homes)


def _take_from_runner(values: dict[str, Any]) -> list[str]:
    """Move arguments from the block of the runner to the top, and return their names.

    Raises:
        ConfigError: both places have one, with different values.
    """
    block = values.get("runner")
    if not isinstance(block, Mapping):
        return []
    keys = (*BATCHING, *OUTPUTS) if _is_ours(block) else BATCHING
    found = [key for key in keys if key in block]
    # None means "not set", and must not replace a value at the top.
    given = {key: block[key] for key in found if block[key] is not None}
    for key, value in given.items():
        other = values.get(key)
        # A single name and a list of one mean the same.
        if other is not None and _listed(other) != _listed(value):
            raise ConfigError(
                key=f"runner.{key}",
                value=value,
                problem=f"and {key} is {other!r}{place_of(key)}",
                fix=partial(_once, key, value, other),
            )
    values["runner"] = {key: value for key, value in block.items() if key not in found}
    values.update(given)
    return list(given)


def _once(key: str, value: Any, other: Any, loaded: "LoadedConfig | None") -> str:
    """Say how to give a setting one value: what was typed counts, in the spelling of the file."""
    typed = [loaded is not None and loaded.is_typed(name) for name in (f"runner.{key}", key)]
    if typed == [True, False]:
        return f"Write: {key}={_on_line(value)}"
    if typed == [False, True]:
        return f"Write: runner.{key}={_on_line(other)}"
    return f"Delete runner.{key}, and write: {key}: {_on_line(value)}"


def _on_line(value: Any) -> str:
    """Spell a value for YAML."""
    return json.dumps(value) if isinstance(value, dict | list | bool) else str(value)


def _is_ours(block: Mapping[str, Any]) -> bool:
    if block.get("_target_", DEFAULT_RUNNER) == DEFAULT_RUNNER:
        return True
    try:
        return writes_fields(locate(str(block["_target_"])))
    except Exception:  # a check of the targets says what is wrong
        return False


def writes_fields(target: Any) -> bool:
    """Tell whether a runner is an `InferenceRunner`, whose arguments are known."""
    from espnet3.systems.base.inference_runner import InferenceRunner

    return isinstance(target, type) and issubclass(target, InferenceRunner)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def listed_test_sets(dataset: Mapping[str, Any] | None) -> list[str]:
    """Return the names in `dataset.test`; none if it has no such list.

    Raises:
        ConfigError: if the list is empty, or a name is missing, there twice, or no name for a
            folder.
    """
    entries = (dataset or {}).get("test")
    if isinstance(entries, Mapping):
        names = [(f"dataset.test.{name}", name) for name in entries]
    elif isinstance(entries, list):
        names = [
            (f"dataset.test.{i}.name", entry.get("name") if isinstance(entry, Mapping) else None)
            for i, entry in enumerate(entries)
        ]
    else:
        return []
    if not names:
        raise ConfigError(
            "dataset.test is empty",
            key="dataset.test",
            fix="Write: test: [{name: NAME, data_src: SOURCE, data_src_args: {...}}]",
        )
    check_names(names)
    return [name for _, name in names]


def chosen_test_sets(known: list[str], wanted: str | list[str] | None) -> list[str]:
    """Return the test sets to decode: those that `test_set` names, else all.

    Raises:
        ConfigError: if `test_set` names one that is not listed.
    """
    if wanted is None:
        return known or [ONLY]
    names = [wanted] if isinstance(wanted, str) else wanted
    for name in names:
        if known and name not in known:
            raise ConfigError(
                key="test_set",
                value=name,
                problem=f"but dataset.test has {', '.join(map(repr, known))}",
                fix=partial(_line_of_test_set, closest(name, known) or known[0]),
            )
        check_name("test_set", name)
    # A name given twice would be decoded twice into one folder.
    return list(dict.fromkeys(names))


def _line_of_test_set(name: str, loaded: "LoadedConfig | None") -> str:
    if loaded is not None and loaded.is_typed("test_set"):
        return f"Write: {same_command(f'test_set={name}')}"
    return f"Write: test_set: {name}"


def named_test_sets(loaded: "LoadedConfig | None", inference_dir: Path) -> list[str]:
    """Return the test sets that a config names for the results in a folder; none if it does not.

    Raises:
        ConfigError: as `listed_test_sets`.
    """
    if loaded is None:
        return []
    values = loaded.plain()
    own = values.get("inference_dir")
    if own is not None and Path(own).absolute() != inference_dir.absolute():
        return []  # it is about results elsewhere
    dataset = values.get("dataset")
    with loaded.naming_places():
        return listed_test_sets(dataset if isinstance(dataset, Mapping) else None)


logger = logging.getLogger(__name__)

_EXAMPLES = {
    "model": "{_target_: src.model.MyModel}",
    "dataset": "{test: [{name: dev, data_src: kaldi, data_src_args: {path: data/dev}}]}",
}
_SET_BY_STAGE = {
    "output_dir": "Each test set has a folder below inference_dir. Write at the top: "
    "inference_dir: {value}",
    "provider": "Write it as a block of its own: provider: {{_target_: ...}}",
}


@names_places
def check_inference(loaded: "LoadedConfig", *, runs_here: bool = True) -> InferenceConfig:
    """Check all that can be checked without building anything.

    Args:
        loaded: the config.
        runs_here: whether this machine must have what workers need, such as GPUs.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    from espnet3.components.data.data_organizer import check_datasets

    if runs_here:
        check_resources(as_parallel_config(loaded))
    config = load_inference_config(loaded)
    chosen_test_sets(listed_test_sets(config.dataset), config.test_set)
    check_provider(config)
    is_provided = builds_own_dataset(locate(config.provider_target))
    check_datasets(loaded, ("test",), provided=is_provided)
    _check_runner(config)
    for key, why in {**unused_outputs(config, loaded.has), **unused_params(config)}.items():
        # What was typed just now is meant; what stands in a file may serve another runner.
        if loaded.is_typed(key):
            raise ConfigError(key=key, problem=f"has no effect: {why}", fix="Or leave it out.")
        _warn_once(f"{key}{loaded.set_in(key)} has no effect: {why}")
    _check_params(config)
    if config.provider_target == DEFAULT_PROVIDER:
        _check_default_blocks(config, loaded.has)
    if config.output_fn:
        _check_function(config.output_fn)
    if config.results == "parquet":
        from espnet3.io.tables import check_parquet

        check_parquet()
    return config


def _check_function(path: str) -> None:
    definition = find_definition(path)
    if definition is None or not definition.is_intact:
        load_function(path)


def _check_runner(config: InferenceConfig) -> None:
    raise_together(list(_runner_mistakes(config.runner_target, config.runner)))
    target = locate(config.runner_target)
    if not (isinstance(target, type) and issubclass(target, BaseRunner)):
        raise ConfigError(
            key="runner._target_",
            value=config.runner_target,
            problem="which is no BaseRunner",
            fix=f"Write: _target_: {DEFAULT_RUNNER}",
        )


@names_places
def check_runner_block(loaded: "LoadedConfig") -> None:
    """Check what the text of the block tells; a runner of one's own is not imported.

    Raises:
        ConfigError: naming each key, its place, and what to write.
    """
    block = loaded.plain().get("runner")
    if not isinstance(block, Mapping):
        return
    target = str(block.get("_target_", DEFAULT_RUNNER))
    is_there = target == DEFAULT_RUNNER or target.rpartition(".")[0] in sys.modules
    if is_there or find_definition(target) is not None:
        # Others may stand in the block as well, and are checked as keys of their own.
        own = {key: value for key, value in block.items() if key not in (*BATCHING, *OUTPUTS)}
        raise_together(list(_runner_mistakes(target, own)))


def _runner_mistakes(target: str, block: Mapping[str, Any]) -> Iterator[ConfigError]:
    for name, line in _SET_BY_STAGE.items():
        if block.get(name) is not None:
            yield ConfigError(
                key=f"runner.{name}",
                value=block[name],
                problem="but the stage gives it to the runner",
                fix=line.format(value=block[name]),
            )
    yield from _unfit_runner_arguments(target, block)
    on_error = block.get("on_error", "raise")
    if on_error not in ("raise", "skip"):
        fix = "Write: on_error: skip, or on_error: raise"
        yield ConfigError(key="runner.on_error", value=on_error, fix=fix)
    for name in ("resume", "retry_failed"):
        value = block.get(name, True)
        # The text "false" would be true.
        if not isinstance(value, bool):
            fix = f"Write: {name}: true, or {name}: false"
            yield ConfigError(key=f"runner.{name}", value=value, fix=fix)


# Once per process, as the check and the stage both come here.
@cache
def _warn_once(text: str) -> None:
    logger.warning("%s", text)


def _unfit_runner_arguments(target: str, block: Mapping[str, Any]) -> Iterator[ConfigError]:
    of_every = inspect.signature(BaseRunner.__init__).parameters
    for name, value in block.items():
        try:
            check_arguments("runner", target, {name: value}, hidden=_SET_BY_STAGE)
        except ConfigError as error:
            if name not in of_every:
                yield error
                if error.key != f"runner.{name}":
                    return  # there is no such class
                continue
            yield ConfigError(
                key=error.key,
                problem=f"is no argument of {target}",
                fix="It is a setting of every BaseRunner; let the class pass it on: def "
                "__init__(self, provider, **settings): super().__init__(provider, **settings)",
            )


def _check_params(config: InferenceConfig) -> None:
    """Refuse names of `params` that something else has already."""
    keys = [config.input_key] if isinstance(config.input_key, str) else config.input_key
    taken = {
        **dict.fromkeys(keys, "is an input of the model, see input_key"),
        **dict.fromkeys(("idx", "outputs"), "is what the runner itself gives to forward"),
    }
    own = not has_forward_of_ours(locate(config.runner_target))
    for name in config.provider.get("params") or {}:
        if name in taken and not (own and name in keys):
            raise ConfigError(
                key=f"provider.params.{name}",
                problem=taken[name],
                fix=f"Give it another name, or delete it: params: {{my_{name}: ...}}",
            )


def unused_params(config: InferenceConfig) -> dict[str, str]:
    """Return `params` that no hook of a runner of one's own takes, each with the reason."""
    target = locate(config.runner_target)
    provider = locate(config.provider_target)
    if has_forward_of_ours(target) or provider is not locate(DEFAULT_PROVIDER):
        return {}  # the model takes them, or the provider may
    taken: set[str] = set()
    for hook in ("forward", *WRITER_HOOKS):
        parameters = inspect.signature(getattr(target, hook)).parameters.values()
        own = overridden(target, BaseRunner, [hook])
        # With **kwargs of its own, it may take any of them.
        if own and any(p.kind is p.VAR_KEYWORD for p in parameters):
            return {}
        taken |= {p.name for p in parameters}
    names = [name for name in config.provider.get("params") or {} if name not in taken]
    arguments = ", ".join(map(str, inspect.signature(target.forward).parameters.values()))
    return {
        f"provider.params.{name}": f"{target.__name__}.forward does not take it."
        f"{suggest(name, taken)} Write: def forward({arguments}, {name}=None)"
        for name in names
    }


def has_forward_of_ours(target: type) -> bool:
    """Tell whether a runner calls the model as `InferenceRunner` does."""
    from espnet3.systems.base.inference_runner import InferenceRunner

    return writes_fields(target) and not overridden(target, InferenceRunner, ["forward"])


def unused_outputs(config: InferenceConfig, has: Callable[[str], bool]) -> dict[str, str]:
    """Return keys at the top that a runner of one's own does not read, each with the reason."""
    target = locate(config.runner_target)
    given = [key for key in OUTPUTS if has(key) and getattr(config, key) != _default(key)]
    if has_forward_of_ours(target):
        return {}
    if writes_fields(target):
        words = _words_of(target.forward)
        unread = [key for key in ("output_fn", "input_key") if key in given]
        values = {key: {key, *one_or_more(getattr(config, key))} for key in unread}
        why = f"{target.__name__} has a forward of its own, which does not call ours"
        is_read = {"outputs", "forward"} & words
        return {key: why for key in unread if not is_read and not values[key] <= {key, *words}}
    names = argument_names(target)
    why = f"{target.__name__} is no InferenceRunner, and its __init__ does not take it"
    # A provider of one's own may read any key.
    is_ours = config.provider_target == DEFAULT_PROVIDER
    return {key: why for key in given if is_ours and names is not None and key not in names}


def _default(key: str) -> Any:
    return InferenceConfig.model_fields[key].get_default(call_default_factory=True)


def _words_of(function: Any) -> set[str]:
    """Return the names and texts that a function uses."""
    code = getattr(function, "__code__", None)
    found: set[str] = set()
    pending = [code] if code else []
    while pending:
        code = pending.pop()
        # A name proves no use, but its absence proves that there is none.
        found |= {*code.co_names, *code.co_varnames, *(c for c in code.co_consts if type(c) is str)}
        pending += [c for c in code.co_consts if inspect.iscode(c)]
    return found


@dataclass(frozen=True)
class WrittenFields:
    """Fields that `infer` will write, as far as known before it runs."""

    names: tuple[str, ...] | None
    """All of them; None if that shows at the first item."""
    usual: tuple[str, ...] = ()
    """Those of a model that returns a text: hypothesis and reference."""
    why: str = ""
    """What decides on them."""


@names_places
def written_fields(loaded: "LoadedConfig") -> WrittenFields:
    """Tell which fields `infer` will write, each to `<field>.scp`.

    Raises:
        ConfigError: the config is wrong.
    """
    config = load_inference_config(loaded)
    try:
        target = locate(config.runner_target)
    except Exception as error:  # of the user's module; infer itself says more
        return WrittenFields(None, why=f"{config.runner_target} cannot be imported: {error}")
    if not writes_fields(target):
        own = overridden(target, BaseRunner, [*WRITER_HOOKS, "merge"])
        why = f"{target.__name__} writes results.jsonl"
        return (
            WrittenFields(None, why=f"{target.__name__} decides")
            if own
            else WrittenFields((), why=why)
        )
    if _has_own_writers(target):
        return WrittenFields(None, why=f"{target.__name__} decides")
    if config.output_keys is not None:
        names = tuple(key for key in config.output_keys if key != config.idx_key)
        place = loaded.set_in("output_keys") or loaded.set_in("runner.output_keys")
        return WrittenFields(names, why=f"output_keys is [{', '.join(config.output_keys)}]{place}")
    if config.output_fn is not None or not has_forward_of_ours(target):
        what = f"output_fn {config.output_fn}" if config.output_fn else f"{target.__name__}.forward"
        return WrittenFields(None, why=f"{what} decides")
    return WrittenFields(None, (config.hyp_key, config.ref_key), "the model decides")


def _has_own_writers(target: type) -> bool:
    from espnet3.systems.base.inference_runner import InferenceRunner

    return bool(overridden(target, InferenceRunner, [*WRITER_HOOKS, "merge"]))


def _check_default_blocks(config: InferenceConfig, has: Callable[[str], bool]) -> None:
    """Check what `InferenceProvider` builds; providers of users may read these blocks otherwise."""
    for key, example in _EXAMPLES.items():
        if getattr(config, key) is None:
            is_empty = "; is what is below it indented?" if has(key) else ","
            raise ConfigError(
                f"{key} is not set",
                key=key,
                problem=f"{is_empty} InferenceProvider builds it",
                fix=f"Write {key}: {example}, or a provider of your own with build_{key}(config).",
            )
    _check_test_sets(config)
    _check_model(config)


def _check_test_sets(config: InferenceConfig) -> None:
    assert config.dataset is not None
    is_ours = config.dataset.get("_target_", ORGANIZER) == ORGANIZER
    if is_ours and config.test_set is None and not listed_test_sets(config.dataset):
        raise ConfigError(
            key="dataset.test",
            problem="lists no test set",
            fix="Write: test: [{name: dev, data_src: kaldi, data_src_args: {path: data/dev}}]",
        )


def _check_model(config: InferenceConfig) -> None:
    assert config.model is not None
    if "_target_" not in config.model:
        raise ConfigError(
            key="model",
            problem="has no _target_, so what to build is not known",
            fix="Write: _target_: src.model.MyModel",
        )
    # The provider passes `device`, so a model that does not take it is refused here.
    check_arguments("model", config.model["_target_"], {**config.model, "device": "cpu"})
