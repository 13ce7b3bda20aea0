"""`run.py --stages infer measure 'KEY=[VALUE, ...]' --best SET/METRIC`: try values on one set.

The best decode the test sets. Each choice of values is an inference of its own in a folder of its
own; all of them are checked before the first one begins.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from espnet3.cli.console import UsageError
from espnet3.cli.recipe import load_selected
from espnet3.cli.recipe_configs import TypedLine, stages_to_run
from espnet3.cli.recipe_options import Selected, check_detach
from espnet3.cli.stage_loop import StageLoop, print_plan
from espnet3.commands import corrected_command, override_key, same_command
from espnet3.config.load import load_config, parse_override
from espnet3.config.resolve import escaped_values
from espnet3.config.sources import value_at
from espnet3.errors import ConfigError, closest
from espnet3.parallel.open_pool import SharedCluster
from espnet3.systems.base.checks import check_stages
from espnet3.systems.base.context import CONFIG, SWEEP, Configs, check_inference_dir, context_value
from espnet3.systems.base.inference import parallel_of
from espnet3.systems.base.inference_config import (
    chosen_test_sets,
    listed_test_sets,
    load_inference_config,
)
from espnet3.systems.base.metric_config import load_metrics_config, prepare_metrics
from espnet3.systems.base.stages import has_own, stages_of
from espnet3.systems.base.sweep import (
    Point,
    Sweep,
    SweepCriterion,
    Values,
    choose,
    folder_of,
    points_of,
    spell,
)
from espnet3.systems.base.system import BaseSystem
from espnet3.text import listed

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig
    from espnet3.systems.base.stages import Invocation

_HEADS = ("model", "provider", "vars")
"""Blocks whose settings decide what is decoded."""
_NEEDED = ("infer", "measure")
_STAGES = (*_NEEDED, "report")
_VALID = "valid"


def run_sweep(line: TypedLine, selected: Sequence[Selected], invocation: "Invocation") -> int:
    """Decode one set with each choice of values, and the test sets with the best.

    Returns:
        The exit code.

    Raises:
        UsageError: the stages or the values are none that can be compared.
        ConfigError: a config is wrong; nothing has started yet.
    """
    _check_stages(line.system, selected)
    prepared = _Prepared.of(line, selected)
    line.instance = lead = prepared.lead()
    first = [entry for entry in prepared.selected if entry.stage.name in _NEEDED]
    if line.options.dry_run:
        print("\n".join(prepared.sweep.describe(prepared.others)))
        print_plan(lead, first)
        return 0
    parallel = parallel_of(prepared.sweep.points[0].inference, detach=lead.detach)
    with SharedCluster(parallel) as workers:
        lead.workers = workers
        loop = StageLoop(lead, first, line, invocation)
        code = loop.run()
        is_left = any(outcome.run_dirs for outcome in loop.outcomes)
        if code or is_left or prepared.sweep.best is None:
            return code
        last = prepared.selected if prepared.others else prepared.selected[len(first) :]
        if last:
            line.instance = best = prepared.system_for(prepared.sweep.best, last)
            best.workers = workers
            code = StageLoop(best, last, line, invocation).run()
    print(prepared.sweep.told())
    return code


def _check_stages(system: type[BaseSystem], selected: Sequence[Selected]) -> None:
    names = [entry.stage.name for entry in selected if not entry.skipped]
    lacking = [name for name in _NEEDED if name not in names]
    others = [name for name in names if name not in _STAGES]
    if lacking or others:
        first = f"Run first, without --best: --stages {' '.join(others)}; then" if others else ""
        raise UsageError(
            f"--best is for the stages {listed(_NEEDED)}, and --stages has {listed(names)}.",
            fix=f"{first or 'Write'}: --stages infer measure --best SET/METRIC",
        )
    own = [name for name in _NEEDED if not has_own(system, name, f"describe_{name}")]
    if own:
        raise UsageError(
            f"--best needs {own[0]} as it is, and {system.__name__} has a stage {own[0]} of its "
            "own, which may not read the values.",
            fix=f"Call it once for each value, with inference_dir=FOLDER; or delete {own[0]}().",
        )


@dataclass(frozen=True)
class _Prepared:
    """All that was loaded and checked."""

    line: TypedLine
    selected: Sequence[Selected]
    configs: Configs
    """Without the swept values."""
    sweep: Sweep
    valid: Mapping[str, Any] | None
    """The entry of a set that the inference config does not list."""
    others: Sequence[str]
    """The test sets that the best values decode."""

    @classmethod
    def of(cls, line: TypedLine, selected: Sequence[Selected]) -> "_Prepared":
        """Load the configs, and find out what is compared by what."""
        overrides = {override_key(text): text for text in line.options.overrides}
        lists = {key: text for key, text in overrides.items() if _is_list(text)}
        fixed = [text for text in line.options.overrides if text not in lists.values()]
        options = replace(line.options, overrides=tuple(fixed))
        configs, selected = load_selected(line.system, options, selected, line.recipe_dir)
        inference, metrics = configs.inference, configs.metrics
        if inference is None or metrics is None:
            raise UsageError(
                "--best needs a config of infer and one of measure.",
                fix="Write: --inference_config FILE --metrics_config FILE",
            )
        check_inference_dir(configs)
        swept = _swept(lists, inference, line.options.overrides)
        with metrics.naming_places():
            measured = prepare_metrics(load_metrics_config(metrics), metrics.config.metrics)
        criterion = choose(line.options.best[0], _goal(line.options.best), measured)
        settings = load_inference_config(inference)
        names = listed_test_sets(settings.dataset)
        valid = None if criterion.test_set in names else _validation_set(criterion, names, configs)
        others = [n for n in chosen_test_sets(names, settings.test_set) if n != criterion.test_set]
        folder = Path(settings.inference_dir) / SWEEP
        sweep = Sweep([], criterion, folder)
        prepared = cls(line, selected, configs, sweep, valid, others)
        points = [prepared.point(values, [criterion.test_set]) for values in points_of(swept)]
        sweep.points = points
        return prepared

    def point(self, values: Values, test_sets: Sequence[str]) -> Point:
        """Return the configs that decode and score some test sets with some values."""
        inference, metrics = self.configs.inference, self.configs.metrics
        assert inference is not None
        assert metrics is not None
        folder = self.sweep.folder / folder_of(values)
        changed: dict[str, Any] = {"inference_dir": escaped_values(str(folder))}
        changed["test_set"] = list(test_sets)
        added = {**changed, "dataset": {"test": self._tests()}} if self.valid else changed
        typed = [f"{key}={_yaml(value)}" for key, value in values.items()]
        if metrics.has("dataset.test"):
            changed["dataset"] = {"test": [{"name": name} for name in test_sets]}
        return Point(
            values, load_config([inference, added], typed), load_config([metrics, changed]), folder
        )

    def _tests(self) -> list[Any]:
        assert self.configs.inference is not None
        listed_tests = value_at(
            OmegaConf.to_container(self.configs.inference.config), "dataset.test"
        )
        return [self.valid, *(listed_tests or [])]

    def system_for(self, point: Point, selected: Sequence[Selected]) -> BaseSystem:
        """Return the system that decodes the test sets as a point says, checked."""
        names = [self.sweep.criterion.test_set, *self.others]
        return self._system(self.point(point.values, names), selected)

    def lead(self) -> BaseSystem:
        """Return the system whose stages run the sweep, with all its points checked."""
        first, *rest = self.sweep.points
        needed = [entry for entry in self.selected if entry.stage.name in _NEEDED]
        lead = self._system(first, needed)
        with _quiet():  # what the first has said
            for point in rest:
                self._system(point, needed)
        lead.sweep = self.sweep
        return lead

    def _system(self, point: Point, selected: Sequence[Selected]) -> BaseSystem:
        configs = {**vars(self.configs), "inference": point.inference, "metrics": point.metrics}
        system = self.line.system(**configs)
        stages = stages_to_run(selected)
        if self.line.options.detach:
            check_detach(stages, stages_of(self.line.system))
            system.detach = True
        check_stages(system, stages, dry_run=self.line.options.dry_run)
        return system


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _is_list(text: str) -> bool:
    override = parse_override(text)
    return override.path[0] in _HEADS and isinstance(override.value, list)


def _swept(
    lists: Mapping[str, str], inference: "LoadedConfig", overrides: Sequence[str]
) -> dict[str, list[Any]]:
    """Return the values of each swept key.

    Raises:
        UsageError: there is none.
    """
    swept = {key: list(parse_override(text).value) for key, text in lists.items()}
    plain = OmegaConf.to_container(inference.config)
    for key, values in swept.items():
        # Of a key that is a list itself, each value is one.
        if isinstance(value_at(plain, key), list) and not all(isinstance(v, list) for v in values):
            raise UsageError(
                f"{key} is a list, and {lists[key]!r} is one value of it: --best compares several.",
                fix=f"Write: '{key}=[{_yaml(values)}, ...]'",
            )
        if not values:
            raise UsageError(
                f"{key}=[] has no values to try.", fix=f"Write: {_example(key, '0.3,0.6,1.0')}"
            )
    if not swept:
        raise UsageError(_nothing_swept(overrides))
    return {key: _once_each(values) for key, values in swept.items()}


def _once_each(values: Sequence[Any]) -> list[Any]:
    return list({spell(value): value for value in values}.values())


def _nothing_swept(overrides: Sequence[str]) -> str:
    what = "--best compares several values of a setting, and no key below model or provider has any"
    for text in overrides:
        key, _, value = text.partition("=")
        if key.partition(".")[0] in _HEADS and "," in value:
            line = corrected_command([text], [f"{key}=[{value}]"]) or _example(key, value)
            return f"{what}: {text!r} is one text. A list has brackets. Write: {line}"
    key = next((override_key(t) for t in overrides if t.partition(".")[0] in _HEADS), "")
    line = same_command(f"{key or 'model.decoder.lm_weight'}=[0.3,0.6,1.0]")
    return f"{what}. Write, for example: {line}"


def _example(key: str, values: str) -> str:
    return same_command(f"{key}=[{values}]")


def _goal(best: Sequence[str]) -> str | None:
    if len(best) == 1:
        return None
    if len(best) == 2 and best[1] in ("min", "max"):
        return best[1]
    raise UsageError(
        f"--best {' '.join(best)} is not of the form SET/METRIC, or SET/METRIC max.",
        fix=f"Write: --best {best[0]}",
    )


def _yaml(value: Any) -> str:
    return json.dumps(value)


def _validation_set(
    criterion: SweepCriterion, names: Sequence[str], configs: Configs
) -> dict[str, Any]:
    """Return a validation set of the training as an entry of `dataset.test`.

    Raises:
        ConfigError: there is none of this name.
    """
    name = criterion.test_set
    entries = _validation_entries(configs)
    own = [entry for entry in entries if entry.get("name") == name]
    if name == _VALID and len(entries) == 1:
        own = entries
    if own:
        kept = {key: value for key, value in own[0].items() if key != "weight"}
        return {**escaped_values(kept), "name": name}
    known = [*names, *([_VALID] if len(entries) == 1 else []), *_names(entries)]
    close = closest(name, known) or (known[0] if known else "SET")
    right = f"{close}/{criterion.metric.lower()}"
    raise ConfigError(
        f"--best {criterion}: there is no test set {name!r}. The inference config lists "
        f"{listed(names) or 'none'}{_described(entries)}.",
        fix=f"Write, for example: --best {right}; or add it to dataset.test of the inference "
        "config",
    )


def _names(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(entry["name"]) for entry in entries if entry.get("name")]


def _described(entries: Sequence[Mapping[str, Any]]) -> str:
    if not entries:
        return ", and no training config is known whose dataset.valid could be meant"
    names = _names(entries)
    if len(entries) == 1:
        return f", and the training validates on {listed([_VALID, *names])}"
    return (
        f", and the training validates on {len(entries)} sets: {listed(names) or 'without names'}"
    )


def _validation_entries(configs: Configs) -> list[dict[str, Any]]:
    """Return `dataset.valid` of the inference config, the training config, or the experiment."""
    for loaded in (configs.inference, configs.training, _trained(configs)):
        entries = value_at(loaded.plain(), "dataset.valid") if loaded is not None else None
        if isinstance(entries, list) and entries:
            return [entry for entry in entries if isinstance(entry, dict)]
    return []


def _trained(configs: Configs) -> "LoadedConfig | None":
    if configs.training is not None or configs.inference is None:
        return None
    file = Path(context_value(configs.inference, "exp_dir")) / CONFIG
    return load_config(file) if file.is_file() else None
