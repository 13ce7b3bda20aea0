"""The folder of a recipe, its config files, and the lines that name them for its stages."""

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from typing_extensions import override

from espnet3.cli.console import UsageError
from espnet3.cli.recipe_options import Options, Selected, is_override, spell_stages
from espnet3.commands import corrected_command, override_key, replace_overrides, usual_config
from espnet3.systems.base.context import SHARED, Configs
from espnet3.systems.base.stages import Stage, find_config, stages_of
from espnet3.systems.base.system import BaseSystem
from espnet3.text import on_one_line

SCRIPT = "run.py"
_STEM_LETTERS = 5  # `conf/infer_beam10.yaml` is meant for --inference_config
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


def find_recipe_dir() -> Path:
    """Return the folder of the script that runs, or the current one where there is no script."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(os.path.abspath(script)).parent if script else Path.cwd()


def recipe_of(config: str) -> Path:
    """Return the folder of the recipe that a config belongs to: the current one, or its own.

    Raises:
        UsageError: there is no script in any of them.
    """
    folder = Path(os.path.abspath(os.path.expanduser(config))).parent
    for place in (Path.cwd(), folder, folder.parent):
        if (place / SCRIPT).is_file():
            return place
    raise UsageError(
        f"there is no {SCRIPT} here, nor beside {on_one_line(config)}.",
        fix="Change into the folder of the recipe first: cd egs3/CORPUS/TASK",
    )


def enter_recipe(recipe_dir: Path) -> None:
    """Change into the folder, and import from it first, then from the one that holds `egs3`.

    Worker processes get the same `sys.path`.
    """
    os.chdir(recipe_dir)
    roots = [parent.parent for parent in recipe_dir.parents if parent.name == "egs3"]
    first = [str(recipe_dir), *map(str, roots[:1])]
    sys.path[:] = [*first, *(entry for entry in sys.path if entry not in first)]


def enter_recipe_of(configs: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
    """Enter the recipe that the first config belongs to, and return it with the files seen from it.

    Raises:
        UsageError: they belong to no recipe.
    """
    start_dir, recipe_dir = Path.cwd(), recipe_of(configs[0])
    enter_recipe(recipe_dir)
    return recipe_dir, find_files(configs, start_dir, recipe_dir)


def find_files(files: Iterable[str], start_dir: Path, recipe_dir: Path) -> tuple[str, ...]:
    """Return config files as seen from the recipe: those of `start_dir` come before its own."""
    return tuple(_find_file(file, start_dir, recipe_dir) for file in files)


def _find_file(file: str, start_dir: Path, recipe_dir: Path) -> str:
    path = os.path.abspath(os.path.join(start_dir, os.path.expanduser(file)))
    if not os.path.exists(path):
        return file  # the recipe's, or the error that it does not exist
    inside = os.path.relpath(path, recipe_dir)
    return path if inside.startswith(os.pardir) else inside


def assign_configs(options: Options, stages: Sequence[Stage]) -> dict[str, tuple[str, ...]]:
    """Return the files of each kind of config; `--config` fills in where a stage has none."""
    files = dict(options.configs)
    for stage in stages if options.config else ():
        own, *others = stage.configs
        # Whether a config of another kind has the key that is needed shows when it is loaded.
        serving = [own] if stage.alternative_key else [own, *others]
        if not any(kind in files for kind in serving):
            files[own] = options.config
    return files


def check_given(
    stages: Sequence[Stage], has_config: Callable[[Stage], bool], recipe_dir: Path
) -> None:
    """Refuse to start if a stage has no config.

    Raises:
        UsageError: with the option that supplies it, and a file of the recipe that looks right.
    """
    missing: dict[str, Stage] = {}
    for stage in stages:
        if not has_config(stage):
            missing.setdefault(stage.configs[0], stage)
    if missing:
        raise UsageError("\n".join(_missing(stage, recipe_dir) for stage in missing.values()))


def fitting_configs(kind: str, recipe_dir: Path) -> list[str]:
    """Return the files in the recipe's `conf/` whose names look like this kind."""
    return [n for n in _configs(recipe_dir) if Path(n).stem.startswith(kind[:_STEM_LETTERS])]


def _configs(recipe_dir: Path) -> list[str]:
    return sorted(
        path.relative_to(recipe_dir).as_posix()
        for path in (recipe_dir / "conf").glob("*")
        if path.suffix in {".yaml", ".yml"}
    )


def _missing(stage: Stage, recipe_dir: Path) -> str:
    kind = stage.configs[0]
    found, fitting = _configs(recipe_dir), fitting_configs(kind, recipe_dir)
    best = f"conf/{kind}.yaml"
    file = best if best in found or not found else fitting[0] if fitting else "FILE"
    others = f" (there are {', '.join(found)})" if file == "FILE" else ""
    said = f"Stage {stage} needs a config: add --{kind}_config {shlex.quote(file)}{others}"
    if file == "FILE" and stage.name == "pack_model":  # which needs no setting
        line = corrected_command([], [f"--{kind}_config", best])
        short = f"echo 'pack: {{}}' > {best}"
        return f"Stage {stage} needs a config, which may be short. Write: {short} && {line}"
    line = corrected_command([], [f"--{kind}_config", file]) if file != "FILE" else ""
    return f"{said}. Write: {line}" if line else said


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


@dataclass(frozen=True)
class _File:
    typed: str
    marks: Mapping[str, Sequence[str]]
    """The keys that mark a kind, by kind."""
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
            f"{_described(inference[0], 'inference')}.",
            fix=f"Write: {_corrected(place)}",
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
            f"{reader} {_article(wanted)} config, but {_described(other, other.kind)}.",
            fix=f"Write: {_corrected(place)}",
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
    from espnet3.config.files import read_layers
    from espnet3.config.resolve import RunNames

    known = set[str]()
    for _, layer in read_layers(Path(path), RunNames.of([Path(path)], None)):
        dataset = layer.values.get("dataset")
        inner = [f"dataset.{key}" for key in dataset] if isinstance(dataset, dict) else []
        known |= {*map(str, layer.values), *inner}
    marks = {kind: [key for key in keys if key in known] for kind, keys in _MARKS.items()}
    can_decode = {"model", "dataset.test"} <= known
    return _File(typed, {kind: keys for kind, keys in marks.items() if keys}, can_decode)


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
