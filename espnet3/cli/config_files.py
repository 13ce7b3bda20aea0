"""The keys of each kind of config file, put together from the models of the modules that read them.

What editors check (`espnet3 schema`) and what the reference of the documentation says is made of
these, so that a key is described in one place: below its field, beside its owner.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt, create_model
from pydantic.fields import FieldInfo

from espnet3.components.data.data_organizer import DatasetEntry
from espnet3.components.data.loader_config import DataLoaderConfig
from espnet3.config.known_keys import OWN
from espnet3.config.schema import FrozenConfig, field_docs
from espnet3.config.targets import written_signature
from espnet3.parallel.config import ParallelConfig
from espnet3.systems.asr.publication import PublicationConfig
from espnet3.systems.asr.tokenizer_training import TokenizerConfig
from espnet3.systems.base.context import DEFAULTS
from espnet3.systems.base.inference_config import InferenceConfig
from espnet3.systems.base.metric_config import MetricsConfig
from espnet3.systems.base.report_clips import ReportConfig
from espnet3.systems.base.statistics import StatisticsConfig
from espnet3.trainer.config import TrainingConfig
from espnet3.trainer.launching.job_script import LaunchConfig
from espnet3.trainer.optimization.optimization_config import OptimizationKeys

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
    """What `train_tokenizer` trains."""
    collect_stats: StatisticsConfig | None = None
    """How `collect_stats` goes about it."""
    launch: LaunchConfig | None = None
    """Resources of the job that `espnet3 launch` submits."""


class _Report(FrozenConfig):
    report: ReportConfig | None = None
    """What the report shows of single utterances."""


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
