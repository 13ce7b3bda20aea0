"""The keys of an inference config that the `infer` stage itself reads."""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from espnet3.commands import same_command
from espnet3.components.data.data_organizer import check_name, check_names
from espnet3.config.schema import FrozenConfig, Names, validate
from espnet3.config.sources import names_places, place_of
from espnet3.config.targets import locate
from espnet3.errors import ConfigError, closest
from espnet3.io.atomic import is_temp_name
from espnet3.shards.layout import manifest_path, shard_of

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
SWEEP = "sweep"
"""The folder below `inference_dir` with a folder for each choice of values of a sweep."""
SCORES = "metrics.json"
"""The file in `inference_dir` with what `measure` computed."""
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


def found_test_sets(inference_dir: Path) -> list[str]:
    """Return the folders of results, sorted: also one that has begun but has no results yet."""
    if not inference_dir.is_dir():
        return []

    folders = (path for path in inference_dir.iterdir() if path.is_dir())
    return sorted(f.name for f in folders if shard_of(f.name) is None and _is_test_set(f))


def _is_test_set(folder: Path) -> bool:
    files = folder.glob("*.scp")
    is_there = any(file.is_file() and not is_temp_name(file.name) for file in files)
    return is_there or manifest_path(folder).exists()


def has_results(inference_dir: Path) -> bool:
    """Tell whether a folder holds results of test sets, also begun ones, of a sweep, or scores."""
    if not inference_dir.is_dir() or _is_test_set(inference_dir):
        return False
    others = ((inference_dir / name).exists() for name in (SWEEP, SCORES))
    return any(others) or bool(found_test_sets(inference_dir))


def also_found(names: Iterable[str]) -> str:
    """Return the line about results that no config names."""
    return f"also found, not in the config: {', '.join(names)}"


def whole_folder(inference_dir: Path) -> Path:
    """Return `inference_dir` as it was set: for one choice of values, that of the sweep."""
    is_choice = inference_dir.parent.name == SWEEP
    return inference_dir.parent.parent if is_choice else inference_dir


def results_folder(inference_dir: str, test_set: str) -> Path:
    """Return the folder of a test set's results."""
    return Path(inference_dir) / test_set
