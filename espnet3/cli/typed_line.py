"""The line that was typed for a recipe, turned into lines for other stages of it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from espnet3.cli.recipe_configs import assign_configs, find_files
from espnet3.cli.recipe_options import Options, is_override, spell_stages
from espnet3.commands import override_key, replace_overrides, usual_config
from espnet3.systems.base.context import SHARED
from espnet3.systems.base.stages import Stage, stages_of
from espnet3.systems.base.system import BaseSystem


@dataclass(frozen=True)
class RawLine:
    """A command line that is not read yet: it can be corrected, but not turned into another."""

    program: Sequence[str]
    """How the recipe is called, without its arguments."""
    arguments: Sequence[str]

    def words(self) -> list[str]:
        """Return it as it was typed."""
        return [*self.program, *self.arguments]

    def again(self, overrides: Sequence[str], without: Sequence[str] = ()) -> list[str]:
        """Return the same words with further overrides, and without those of some keys."""
        return [*self.program, *replace_overrides(self.arguments, overrides, without)]

    def for_stages(self, stages: Sequence[str], overrides: Sequence[str] = ()) -> list[str]:
        """Return nothing: a usual line is suggested instead."""
        return []


@dataclass
class TypedLine:
    """A command line of a recipe; see `espnet3.commands`."""

    system: type[BaseSystem]
    options: Options
    program: Sequence[str]
    """How the recipe is called, without its arguments."""
    stages: Sequence[Stage]
    """Those that it asks for."""
    recipe_dir: Path
    start_dir: Path
    """Where it was typed."""
    instance: BaseSystem | None = None
    """The system, as soon as its configs are loaded."""

    def words(self) -> list[str]:
        """Return it as it was typed."""
        return [*self.program, *self.options.words]

    def again(self, overrides: Sequence[str], without: Sequence[str] = ()) -> list[str]:
        """Return the same words with further overrides, and without those of some keys."""
        return [*self.program, *replace_overrides(self.options.words, overrides, without)]

    def for_stages(self, stages: Sequence[str], overrides: Sequence[str] = ()) -> list[str]:
        """Return the words that run stages with the configs and overrides that were typed.

        A config that was not typed is one of the recipe's `conf/`; it gets the folders of the
        typed line, and none of the settings, which are meant for others.
        """
        known = stages_of(self.system)
        asked = [stage for stage in known if stage.name in stages]
        typed = assign_configs(self.options, self.stages)
        added = self._added(asked, typed)
        kept = self._kept(asked, bool(added))
        words = [*spell_stages(asked, known), *self._files(asked, typed, added)]
        detach = ["--detach"] if self.options.detach and asked[0].can_detach else []
        return [*self.program, "--stages", *replace_overrides([*words, *kept], overrides), *detach]

    def _added(
        self, asked: Sequence[Stage], typed: Mapping[str, tuple[str, ...]]
    ) -> dict[str, tuple[str, ...]]:
        """Return the configs that these stages need and that were not typed."""
        added: dict[str, tuple[str, ...]] = {}
        for stage in asked:
            kinds = stage.configs[:1] if stage.alternative_key else stage.configs
            found = usual_config(stage.name, str(self.recipe_dir))
            # Data are made by the config that has arguments for that.
            is_better = stage.name == "create_dataset" and found and found[0] not in typed
            if found and (is_better or not any(kind in typed for kind in kinds)):
                added[found[0]] = (self._seen(found[1]),)
        return added

    def _seen(self, file: str) -> str:
        """Return a file of the recipe as it is found from where the line was typed."""
        is_other = (self.start_dir / file).exists() and self.start_dir != self.recipe_dir
        return os.path.join(self.recipe_dir, file) if is_other else file

    def _files(
        self,
        asked: Sequence[Stage],
        typed: Mapping[str, tuple[str, ...]],
        added: Mapping[str, tuple[str, ...]],
    ) -> list[str]:
        is_part = {stage.name for stage in asked} <= {stage.name for stage in self.stages}
        if is_part:
            given = {"config": self.options.config, **_options(self.options.configs)}
        else:  # what --config stands for depends on the stages
            given = _options({**typed, **added})
        return [word for name, files in given.items() if files for word in (f"--{name}", *files)]

    def _kept(self, asked: Sequence[Stage], has_other_config: bool) -> list[str]:
        """Return the overrides that these stages read: others would be refused."""
        from espnet3.systems.base.checks import unread_overrides

        overrides = [word for word in self.options.words if is_override(word)]
        if has_other_config:
            return [text for text in overrides if override_key(text) in SHARED]
        system = self.instance or self._load()
        unread = unread_overrides(system, asked, overrides)
        return [text for text in overrides if text not in unread]

    def _load(self) -> BaseSystem:
        from espnet3.systems.base.context import load_configs

        files = assign_configs(self.options, self.stages)
        found = {k: find_files(v, self.start_dir, self.recipe_dir) for k, v in files.items()}
        configs = load_configs(found, self.options.overrides, recipe_dir=self.recipe_dir)
        return self.system(**vars(configs))


class SweepLine(TypedLine):
    """A line with `--best`: it decodes, scores and compares as a whole, and resumes as a whole."""

    @override
    def for_stages(self, stages: Sequence[str], overrides: Sequence[str] = ()) -> list[str]:
        if {"infer", "measure", "report"} >= {*stages}:
            return self.again(overrides)
        return super().for_stages(stages, overrides)


def _options(files: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {f"{kind}_config": names for kind, names in files.items()}
