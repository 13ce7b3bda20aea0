"""Write JSON Schemas of config files, with which editors complete and check keys.

A file names its schema in its first line, as the files of the templates do:
`# yaml-language-server: $schema=.schema/training.json`.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt, create_model
from pydantic.fields import FieldInfo

from espnet3.cli.console import UsageError, make_parser
from espnet3.components.data.data_organizer import DatasetEntry
from espnet3.components.data.loader_config import DataLoaderConfig
from espnet3.config.known_keys import OWN
from espnet3.config.schema import FrozenConfig, field_docs
from espnet3.config.targets import written_signature
from espnet3.errors import suggest
from espnet3.io.atomic import write_text
from espnet3.parallel.config import ParallelConfig
from espnet3.systems.asr.publication import PublicationConfig
from espnet3.systems.asr.tokenizer_training import TokenizerConfig
from espnet3.systems.base.context import DEFAULTS
from espnet3.systems.base.inference_config import InferenceConfig
from espnet3.systems.base.metric_config import MetricsConfig
from espnet3.systems.base.report_clips import ReportConfig
from espnet3.systems.base.statistics import StatisticsConfig
from espnet3.text import on_one_line
from espnet3.trainer.config import TrainingConfig
from espnet3.trainer.launching.job_script import LaunchConfig
from espnet3.trainer.optimization.optimization_config import OptimizationKeys

FOLDER = ".schema"
"""Beside the config files."""
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFERRED = {
    "type": "string",
    "pattern": r"\$\{.+\}|^\?\?\?$",
    "description": "A value that is found elsewhere, such as ${vars.width}.",
}
_ONE_TEXT = {"type": "string"}
# What a validator turns into the field's own type, so that pydantic's schema does not have it.
_ALSO: Mapping[str, Any] = {
    "best_model_criterion": {
        "type": "array",
        "items": {
            "type": "array",
            "prefixItems": [_ONE_TEXT, {"type": "integer", "minimum": 1}, {"enum": ["min", "max"]}],
            "minItems": 3,
            "maxItems": 3,
        },
    },
    "init": {"anyOf": [_ONE_TEXT, {"type": "object"}, {"type": "array"}]},
    "output_artifacts": {
        "type": "object",
        "additionalProperties": {
            "anyOf": [_ONE_TEXT, {"$ref": "#/$defs/ArtifactConfig"}],
        },
    },
    "model_type": {"const": "char"},
}
_IN_PLACE = ("best_model_criterion", "init", "output_artifacts")
"""Those that stand for the field's own schema, instead of beside it."""
_KEEP_REQUIRED = ("MetricEntry",)
"""An item of a list, which is never merged with another file's."""


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("schema", __doc__ or "")
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?",
        help=f"that of the config files; the schemas go to FOLDER/{FOLDER} (default: conf, or .)",
    )  # fmt: skip
    parser.add_argument(
        "--print", metavar="KIND", dest="shown",
        help=f"write one to standard output instead: {', '.join(KINDS)}",
    )  # fmt: skip
    return parser


def schema(argv: Sequence[str]) -> int:
    """Write the schemas, and say which line names them.

    Raises:
        UsageError: there is no such folder, or no such kind of config.
    """
    args = _parser().parse_args(argv)
    if args.shown is not None:
        if args.shown not in KINDS:
            raise UsageError(
                f"there is no kind of config {args.shown!r}.{suggest(args.shown, KINDS)} "
                f"Kinds: {', '.join(KINDS)}."
            )
        print(_text(args.shown), end="")
        return 0
    folder = Path(args.folder or ("conf" if Path("conf").is_dir() else "."))
    if not folder.is_dir():
        raise UsageError(f"{on_one_line(folder)} is no folder.", fix="Write: espnet3 schema conf")
    for path in write_schemas(folder):
        print(on_one_line(path))
    print(f"\nFirst line of a training config: {modeline('training')}")
    return 0


def write_schemas(folder: Path) -> list[Path]:
    """Write the schema of each kind to a folder of config files, and return the paths."""
    places = [folder / FOLDER / f"{kind}.json" for kind in KINDS]
    places[0].parent.mkdir(exist_ok=True)
    for kind, path in zip(KINDS, places, strict=True):
        write_text(path, _text(kind))
    return places


def modeline(kind: str) -> str:
    """Return the line by which a config file names its schema to editors."""
    return f"# yaml-language-server: $schema={FOLDER}/{kind}.json"


def _text(kind: str) -> str:
    return json.dumps(make_schema(kind), indent=1) + "\n"


def make_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of config file."""
    made = file_model(kind).model_json_schema(by_alias=True)
    blocks = made.pop("$defs")
    for name, block in blocks.items():
        _loosen(block, keep_required=name in _KEEP_REQUIRED)
    _loosen(made, keep_required=False)
    properties = made["properties"]
    if "trainer" in properties:
        blocks["Trainer"] = _trainer()
        properties["trainer"] = {
            "description": properties["trainer"].get("description", ""),
            "anyOf": [{"$ref": "#/$defs/Trainer"}, {"type": "null"}, {"$ref": "#/$defs/deferred"}],
        }
    if kind in ("parallel", "launch"):
        made["required"] = [kind]
    return {
        "$schema": _DIALECT,
        "title": f"ESPnet3 {kind} config",
        **{key: part for key, part in made.items() if key != "title"},
        "$defs": {"deferred": _DEFERRED, **blocks},
    }


def _loosen(block: dict[str, Any], *, keep_required: bool) -> None:
    """Accept what a file may say: interpolations, one text for a list, null for a block.

    A block may be spread over several files, so that no key is required in one of them.
    """
    if not keep_required:
        block.pop("required", None)
    block.pop("title", None)
    for name, part in block.get("properties", {}).items():
        block["properties"][name] = _accept(name, part)


def _accept(name: str, part: dict[str, Any]) -> dict[str, Any]:
    about: dict[str, Any] = {
        key: part.pop(key) for key in ("description", "default") if key in part
    }
    part.pop("title", None)
    if "description" in about:
        about["description"] = " ".join(about["description"].split())
    if not part:  # any value
        return about
    choices = part.pop("anyOf", None) or [part]
    if name in _ALSO:
        choices = [*([] if name in _IN_PLACE else choices), deepcopy(_ALSO[name])]
    if any(_is_texts(choice) for choice in choices):
        choices = [*choices, _ONE_TEXT]
    for choice in choices:
        _accept_inside(choice)
    if not any(choice.get("type") == "null" for choice in choices):
        choices = [*choices, {"type": "null"}]
    return {**about, "anyOf": [*choices, {"$ref": "#/$defs/deferred"}]}


def _accept_inside(choice: dict[str, Any]) -> None:
    """Accept interpolations as items of a list, and as values of a mapping."""
    for key in ("items", "additionalProperties"):
        inner = choice.get(key)
        if isinstance(inner, dict) and inner and "prefixItems" not in inner:
            choice[key] = {"anyOf": [inner, {"$ref": "#/$defs/deferred"}]}


def _is_texts(choice: Mapping[str, Any]) -> bool:
    return choice.get("type") == "array" and choice.get("items") == {"type": "string"}


def _trainer() -> dict[str, Any]:
    text = "Argument of Lightning's Trainer."
    properties = {
        argument.name: {"description": text, "default": _json_safe(argument.default)}
        for argument in trainer_arguments()
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _json_safe(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


KINDS = ("training", "inference", "metrics", "publication", "parallel", "launch")
"""Of files. The last two are merged behind a file of another kind."""

Block = dict[str, Any]


class DatasetConfig(FrozenConfig):
    """The `dataset` block: a list of datasets for each split."""

    train: list[DatasetEntry] | None = None
    """Datasets that are combined into the training set."""
    valid: list[DatasetEntry] | None = None
    """Datasets that are combined into the validation set."""
    test: list[DatasetEntry] | None = None
    """Test sets, each with a name of its own."""
    preprocessor: Any = None
    """Applied to each sample after its dataset's own transform: a `_target_`, or a dotted path."""
    recipe_dir: str | None = None
    """Folder of the recipe whose `dataset/` is meant; its own if not set."""
    target: str | None = Field(None, alias="_target_")
    """A class of your own in place of `DataOrganizer`."""


class ContextConfig(FrozenConfig):
    """Keys that every config has: where the experiment is."""

    recipe_dir: str = str(DEFAULTS["recipe_dir"])
    """Folder of the recipe."""
    data_dir: str = str(DEFAULTS["data_dir"])
    """Folder of prepared data."""
    dataset_dir: str | None = None
    """Folder of the corpus as it was downloaded, for recipes that read one."""
    exp_tag: str = str(DEFAULTS["exp_tag"])
    """Name of the experiment; that of the config file if not set."""
    exp_dir: str = str(DEFAULTS["exp_dir"])
    """Folder of the experiment: checkpoints, logs, curves, results."""
    stats_dir: str = str(DEFAULTS["stats_dir"])
    """Folder of what `collect_stats` writes."""
    inference_dir: str = str(DEFAULTS["inference_dir"])
    """Folder of the results of `infer`; each test set has a folder below it. It is `exp_dir` itself
    where no key names the experiment, which is then called like the config."""
    seed: NonNegativeInt = 0
    """Of the weights, the order of the data, and everything random."""
    num_device: PositiveInt = 1
    """For your own use, as `devices: ${num_device}`."""
    num_nodes: PositiveInt = 1
    """For your own use, as `num_nodes: ${num_nodes}`."""
    vars: Block | None = None
    """Values of your own, to which others refer as `${vars.NAME}`."""
    defaults: list[Any] | None = None
    """Files that this one is based on, merged in order; `_self_` stands for this file."""


class _Datasets(FrozenConfig):
    dataset: DatasetConfig | None = None
    """The datasets of each split."""


class _Work(FrozenConfig):
    """Keys of stages that spread their work over workers."""

    create_dataset: Block | None = None
    """Arguments of `build` of the recipe's dataset builder."""
    parallel: ParallelConfig | None = None
    """Where workers run, and how many."""
    device: str | None = None
    """Where the model runs, such as cpu; if not set, a GPU of the worker's own if there is one."""


class _Blocks(FrozenConfig):
    """Blocks of a training config."""

    model: Block | None = None
    """A `_target_` and its arguments."""
    trainer: Block | None = None
    """Arguments of Lightning's `Trainer`."""
    dataloader: DataLoaderConfig | None = None
    """How samples become batches."""
    tokenizer: TokenizerConfig | None = None
    """The tokenizer that `train_tokenizer` trains."""
    collect_stats: StatisticsConfig | None = None
    """How `collect_stats` goes about it."""
    launch: LaunchConfig | None = None
    """Resources of the job that `espnet3 launch` submits."""


class _Report(FrozenConfig):
    report: ReportConfig | None = None
    """Single utterances in the report."""


_PARTS: Mapping[str, tuple[type[FrozenConfig], ...]] = {
    "training": (
        ContextConfig, TrainingConfig, OptimizationKeys, _Datasets, _Work, _Blocks,
    ),
    "inference": (ContextConfig, InferenceConfig, _Datasets, _Work, _Report),
    "metrics": (ContextConfig, MetricsConfig, _Datasets, _Report),
    "publication": (ContextConfig, PublicationConfig),
}  # fmt: skip
_ALL = ("training", "inference")


@cache
def file_model(kind: str) -> type[FrozenConfig]:
    """Return the keys of a kind of config file as one model; a key of a later part counts.

    What a required key is depends on the files that are merged, so that none is here.
    """
    kinds = (kind,) if kind in _PARTS else _ALL
    fields: dict[str, tuple[Any, FieldInfo]] = {}
    for part in (part for each in kinds for part in _PARTS[each]):
        for name, field in part.model_fields.items():
            # The context says where the folder is by default, other parts only that there is one.
            if not (name in ContextConfig.model_fields and name in fields):
                field = FieldInfo.merge_field_infos(field, description=field_docs(part).get(name))
                fields[name] = (field.annotation, field)
    opened: dict[str, Any] = {name: _open(*field) for name, field in fields.items()}
    make: Any = create_model  # by its annotations, it takes no fields from a mapping
    model: type[FrozenConfig] = make(f"{kind.capitalize()}File", __base__=FrozenConfig, **opened)
    return model


def _open(annotation: Any, field: FieldInfo) -> tuple[Any, FieldInfo]:
    """Return a field that need not be set."""
    if not field.is_required():
        return annotation, field
    return annotation | None, FieldInfo.merge_field_infos(field, default=None)


class Argument(NamedTuple):
    """An argument of Lightning's `Trainer`, which the `trainer` block takes."""

    name: str
    default: Any


def trainer_arguments() -> list[Argument]:
    """Return the keys of the `trainer` block, with Lightning's defaults; Lightning is only read."""
    signature = written_signature("lightning.pytorch.Trainer")
    known = signature.parameters if signature is not None else {}
    return [
        Argument(name, known[name].default if name in known else None) for name in OWN["trainer"]
    ]
