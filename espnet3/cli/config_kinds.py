"""Tell a training config from one of inference or metrics, and refuse files in the wrong place.

Files that are given together are merged into one config. A training config merged with that of
inference has the model of neither, and an error about its keys would not say why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3.cli.console import UsageError
from espnet3.cli.recipe_folder import fitting_configs
from espnet3.cli.recipe_options import Options, is_override
from espnet3.systems.base.stages import Stage, stages_of

_MARKS = {
    "training": (
        "optimizer", "optimizers", "best_model_criterion", "scheduler", "schedulers",
        "dataset.train",
    ),
    "inference": (
        "output_fn", "output_keys", "output_artifacts", "input_key", "provider", "runner",
        "test_set", "idx_key", "hyp_key", "ref_key", "results",
    ),
    "metrics": ("metrics",),
    "publication": ("pack", "upload"),
}  # fmt: skip
"""Keys that only configs of one kind have."""
_CHECKED = ("training", "inference", "metrics")


@dataclass(frozen=True)
class _File:
    typed: str
    marks: Mapping[str, Sequence[str]]
    """The keys that tell a kind, by kind."""
    can_decode: bool
    """It has a model and test sets, which is all that inference needs."""

    def is_of(self, kind: str) -> bool:
        return kind in self.marks or (kind == "inference" and self.can_decode)

    @property
    def kind(self) -> str | None:
        """The kind that it is before all."""
        return next((kind for kind in _MARKS if self.is_of(kind)), None)


def check_kinds(
    system: type,
    stages: Sequence[Stage],
    options: Options,
    typed: Mapping[str, Sequence[str]],
    found: Mapping[str, Sequence[str]],
) -> None:
    """Refuse a file that is of another kind than its option, and files that do not go together.

    Args:
        system: of the recipe; a stage that it defines itself may read any keys.
        stages: those to run.
        options: what was typed.
        typed: the files of each kind of config, as they were typed.
        found: the same, as seen from the recipe.

    Raises:
        UsageError: with the line to type.
    """
    read = {
        kind: [_read(name, path) for name, path in zip(typed[kind], paths, strict=True)]
        for kind, paths in found.items()
    }
    for stage in stages:
        slot = next((kind for kind in stage.configs if kind in read), None)
        if not _is_ours(system, stage) or slot not in _CHECKED:
            continue
        place = _Place(slot, read[slot], stages, options)
        _refuse_mixture(place)
        serving = stage.configs[:1] if stage.alternative_key else stage.configs
        if slot == serving[0] or slot in options.configs:
            _refuse_other_kind(place, f"Stage {stage} reads", serving)
    # What no stage reads is still where folders are taken from.
    for slot in [kind for kind in _CHECKED if kind in options.configs]:
        if all(_is_ours(system, stage) for stage in stages_of(system) if slot in stage.configs):
            place = _Place(slot, read[slot], stages, options)
            readers = [stage.configs for stage in stages if slot in stage.configs]
            allowed = {slot, *(kind for kinds in readers for kind in kinds)}
            _refuse_other_kind(place, f"--{slot}_config is for", sorted(allowed))


@dataclass(frozen=True)
class _Place:
    """Files that are given as one config."""

    slot: str
    """The kind that they are given as."""
    files: Sequence[_File]
    stages: Sequence[Stage]
    options: Options

    @property
    def option(self) -> str:
        return f"--{self.slot}_config" if self.slot in self.options.configs else "--config"


def _refuse_mixture(place: _Place) -> None:
    training = [f for f in place.files if f.is_of("training") and "inference" not in f.marks]
    inference = [f for f in place.files if f.is_of("inference") and not f.is_of("training")]
    if training and inference:
        raise UsageError(
            f"{place.option} {' '.join(f.typed for f in place.files)} would be merged into one "
            f"config, but {_described(training[0], 'training')}, and "
            f"{_described(inference[0], 'inference')}. Write: {_corrected(place)}"
        )


def _is_ours(system: type, stage: Stage) -> bool:
    method = getattr(system, stage.name, None)
    return method is None or getattr(method, "__module__", "").startswith("espnet3.")


def _refuse_other_kind(place: _Place, reader: str, serving: Sequence[str]) -> None:
    if any(file.is_of(kind) for file in place.files for kind in serving):
        return
    other = next((file for file in place.files if file.kind is not None), None)
    if other is not None and other.kind is not None:
        wanted = place.slot if place.slot in serving else serving[0]
        raise UsageError(
            f"{reader} {_article(wanted)} config, but "
            f"{_described(other, other.kind)}. Write: {_corrected(place)}"
        )


def _described(file: _File, kind: str) -> str:
    marks = ", ".join(list(file.marks.get(kind, ()))[:3]) or "dataset.test and model"
    return f"{file.typed} is {_article(kind)} config (it has {marks})"


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "inference" else f"a {kind}"


def _corrected(place: _Place) -> str:
    """Return what was typed, with each file behind the option of its kind."""
    by_kind: dict[str, list[str]] = {}
    kind = place.slot
    for file in place.files:
        kind = file.kind or kind  # a file for anything, such as parallel_*.yaml, stays where it is
        by_kind.setdefault(kind, []).append(file.typed)
    given = {kind for kind in place.options.configs if f"--{kind}_config" != place.option}
    for kind in [place.slot, *(stage.configs[0] for stage in place.stages)]:
        fitting = fitting_configs(kind, Path.cwd())  # which is the recipe's
        best = f"conf/{kind}.yaml"
        if kind not in by_kind and (fitting or kind == place.slot):
            by_kind[kind] = [best if best in fitting or not fitting else fitting[0]]
    added = [
        word
        for kind in _MARKS
        if kind in by_kind and kind not in given
        for word in (f"--{kind}_config", *by_kind[kind])
    ]
    return place.options.command_of([*_without(place.option, place.options.words), *added])


def _without(option: str, words: Sequence[str]) -> list[str]:
    """Return the words without an option and its files; overrides may stand among these."""
    names = {option, option.replace("_", "-")}
    kept, drops = list[str](), False
    for word in words:
        name = word.partition("=")[0]
        if name in names:
            drops = True
        elif word.startswith("--") or not drops or is_override(word):
            drops = drops and not word.startswith("--")
            kept.append(word)
    return kept


def _read(typed: str, path: str) -> _File:
    from omegaconf import OmegaConf

    from espnet3.config.load import load_config

    values: Any = OmegaConf.to_container(load_config(path).config)
    dataset = values.get("dataset")
    inner = [f"dataset.{key}" for key in dataset] if isinstance(dataset, dict) else []
    known = {*map(str, values), *inner}
    marks = {kind: [key for key in keys if key in known] for kind, keys in _MARKS.items()}
    can_decode = {"model", "dataset.test"} <= known
    return _File(typed, {kind: keys for kind, keys in marks.items() if keys}, can_decode)
