"""Stages that `all` or a range covers, and for which the recipe has nothing to do."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from espnet3.cli.recipe_folder import fitting_configs
from espnet3.cli.stage_selection import Selected
from espnet3.systems.base.context import Configs
from espnet3.systems.base.stages import Stage, find_config


def stages_to_run(selected: Sequence[Selected]) -> list[Stage]:
    """Return the stages that are not skipped."""
    return [entry.stage for entry in selected if not entry.skipped]


def skip_ungiven(
    selected: Sequence[Selected], files: Mapping[str, Sequence[str]], recipe_dir: Path
) -> list[Selected]:
    """Skip stages without a config, unless the recipe has a file that could be meant.

    A recipe that only decodes has no training config, and `--stages all` does not ask for one.
    """

    def reason(stage: Stage) -> str:
        kinds = stage.configs
        is_given = any(kind in files for kind in kinds)
        if is_given or not files or fitting_configs(kinds[0], recipe_dir):
            return ""
        return f"the recipe has no {kinds[0]} config"

    return [_skipped(entry, reason(entry.stage)) for entry in selected]


def skip_unneeded(selected: Sequence[Selected], configs: Configs) -> list[Selected]:
    """Skip stages whose config has nothing for them."""

    def reason(stage: Stage) -> str:
        loaded = find_config(configs, stage)
        keys = stage.needs_any
        if loaded is None or not keys or any(loaded.has(key) for key in keys):
            return ""
        return f"{' + '.join(loaded.files)} has no {keys[0]} block"

    return [_skipped(entry, reason(entry.stage)) for entry in selected]


def _skipped(entry: Selected, reason: str) -> Selected:
    if entry.by_name or entry.skipped:
        return entry
    return replace(entry, skipped=reason)
