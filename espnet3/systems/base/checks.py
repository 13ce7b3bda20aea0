"""Check the configs of all stages that were asked for, before the first of them runs.

First come all mistakes that the text of the configs tells, in one error; for these nothing is
imported, as torch, Lightning and the user's model take seconds. Then what only an import or a file
can tell, which the checks of the stages look at.

A setting that nothing reads, neither a stage nor another key nor user code, is a mistake that shows
after the night it cost: a sweep over `lr` that trained the same model three times. It is refused on
the command line, and reported in a file.
"""

import ast
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from espnet3.commands import corrected_command, gather_corrections, override_key, same_command
from espnet3.config.advice import (
    advise,
    check_block,
    check_top_level_keys,
    raise_any,
    raise_together,
    references,
    split_problems,
)
from espnet3.config.known_keys import BLOCK_HOMES, HOMES
from espnet3.config.sources import Source, names_places, value_at
from espnet3.config.targets import (
    BadTarget,
    find_definition,
    install_hint,
    locate_callable,
    signature_at,
    signature_without_import,
    unknown_arguments,
)
from espnet3.errors import ConfigError, ResourceError
from espnet3.parallel.parallel import as_parallel_config
from espnet3.systems.base.context import DEFAULTS, SHARED
from espnet3.systems.base.stages import (
    EVERYWHERE,
    KINDS,
    STAGES,
    Stage,
    find_config,
    has_own,
    stages_of,
)
from espnet3.text import listed

if TYPE_CHECKING:
    from espnet3.config.advice import Advice
    from espnet3.config.load import LoadedConfig
    from espnet3.systems.base.system import BaseSystem


logger = logging.getLogger(__name__)

_COMMAND_LINE = "command line: "
_OF_LAUNCH = "launch"
_ACCEPTED = "accept_changes"
_CONFIG_NAMES = ("config", "cfg", "conf", "loaded", "hparams", *KINDS)
"""What people call the config in code."""
_MARKS_OF_TRAINING = ("optimizer", "optimizers")


def check_stages(system: "BaseSystem", stages: Sequence[Stage], *, dry_run: bool = False) -> None:
    """Check all that can be known before anything runs.

    That is: misspelt and misplaced keys, unused settings, interpolations that lead
    nowhere, the `parallel` block, targets that do not import, and what `check_<stage>` of the
    system checks.

    Args:
        system: with its configs.
        stages: those to run.
        dry_run: nothing will run, so what this machine lacks is only a warning.

    Raises:
        ConfigError: the first problem.
        ResourceError: this machine, or what the scheduler gave, does not fit.
    """
    configs = [system.config_for(stage.name) for stage in stages]
    readers = Readers(system, stages)
    # After the keys: a misspelt one is better named as such than as one that nobody reads.
    refuse_mistakes(system, stages, configs, then=partial(_unread_complaints, readers))
    refuse_unread(readers)
    for stage, loaded in zip(stages, configs, strict=True):
        check_targets(loaded, stage.blocks)
    # Before the checks, which ask whether an earlier stage makes what is missing.
    system.planned = tuple(stage.name for stage in stages)
    for stage in stages:
        check = f"check_{stage.name}"
        if has_own(type(system), stage.name, check):
            _run_check(getattr(system, check), dry_run)
    warn_of_unread(readers)


def _run_check(check: Callable[[], None], dry_run: bool) -> None:
    try:
        check()
    except ResourceError as error:
        if not dry_run:
            raise
        logger.warning("%s", error)


@names_places
def check_targets(loaded: "LoadedConfig", blocks: Iterable[str] | None) -> None:
    """Import everything that a `_target_` in these blocks names, but what is surely there.

    Args:
        loaded: the config.
        blocks: top-level keys; None for all.

    Raises:
        ConfigError: naming the key, its place, and what is wrong.
    """
    values = loaded.plain()
    used = values if blocks is None else {key: values[key] for key in blocks if key in values}
    for key, target in find_targets(used):
        definition = find_definition(str(target))
        if definition is not None and definition.is_intact:
            continue  # to import torch takes seconds, and there may be nothing to do
        try:
            locate_callable(str(target))
        except BadTarget as bad:
            raise ConfigError(key=key, value=target, problem=f"but {bad}") from bad
        except Exception as error:
            # Importing runs the user's module, which may raise anything.
            reason = f"{type(error).__name__}: {error}{install_hint(error)}"
            raise ConfigError(
                key=key,
                value=target,
                problem=f"but its module cannot be imported: {reason}",
                fix=f"Mend it, then see: python -c 'import {str(target).rpartition('.')[0]}'",
            ) from error


def find_targets(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key and value of each `_target_` in plain containers."""
    children: Iterable[tuple[Any, Any]] = ()
    if isinstance(values, dict):
        children = values.items()
    elif isinstance(values, list):
        children = enumerate(values)
    for name, child in children:
        key = f"{prefix}{name}"
        if name == "_target_":
            yield key, child
        else:
            yield from find_targets(child, f"{key}.")


@dataclass(frozen=True)
class Setting:
    """A key that a user set, in one of the configs."""

    kind: str
    key: str
    source: Source

    @property
    def is_typed(self) -> bool:
        """Tell whether it was given on the command line."""
        return self.source.file.startswith(_COMMAND_LINE)

    @property
    def block(self) -> str:
        """The top-level key that it is, or is below."""
        return self.key.partition(".")[0]


@dataclass
class Readers:
    """Readers of the keys of the given configs."""

    system: "BaseSystem"
    stages: Sequence[Stage]
    """Those that run."""
    configs: dict[str, "LoadedConfig"] = field(init=False)
    _named: dict[str, frozenset[str]] = field(init=False, default_factory=dict)
    _references: dict[str, dict[str, set[str]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        given = {kind: getattr(self.system, kind) for kind in KINDS}
        self.configs = {kind: loaded for kind, loaded in given.items() if loaded is not None}

    @property
    def names(self) -> list[str]:
        """Of the stages that run."""
        return [stage.name for stage in self.stages]

    @property
    def which_do_not(self) -> str:
        """The stages that run, as the beginning of a sentence: `infer does not`."""
        return f"{listed(self.names)} {'does' if len(self.names) == 1 else 'do'} not"

    def settings(self) -> Iterator[Setting]:
        """Yield what users set: each override, and each top-level key of the files."""
        for kind, loaded in self.configs.items():
            # One override may set many keys; it is reported once, by its text.
            typed = {s.file: s for s in loaded.sources.values() if s.file.startswith(_COMMAND_LINE)}
            for text, source in typed.items():
                yield Setting(kind, _key_set_by(text, loaded), source)
            for key in map(str, loaded.config):
                place = loaded.find_source(key)
                if place is not None and place.file not in (*typed, "default"):
                    # A default is nobody's mistake, so it is not reported.
                    yield Setting(kind, key, place)

    def of(self, setting: Setting) -> list[str]:
        """Return the names of the stages that run and read a setting."""
        loaded = self.configs[setting.kind]
        found = [
            stage.name
            for stage in self.stages
            if find_config(self.system, stage) is loaded and self.reads(stage, setting.key)
        ]
        if setting.kind == "inference":
            found += [s.name for s in self.stages if _is_in(setting.key, s.reads_of_inference)]
        # Stages that use a model compare the settings of its training.
        users = [stage.name for stage in self.stages if stage.uses_weights]
        if users and setting.kind == "training":
            found += users if setting.block == _ACCEPTED or is_compared(setting.key) else ()
        return found

    def is_read(self, setting: Setting) -> bool:
        """Tell whether anything reads a setting in this call."""
        return bool(self.of(setting)) or self._is_named(setting, self.is_read)

    def is_known(self, setting: Setting) -> bool:
        """Tell whether anything reads a setting of this kind of config, in this call or another."""
        # `launch` is read by `espnet3 launch`, which is no stage.
        if setting.block == _OF_LAUNCH and setting.kind == "training":
            return True
        kind = [stage for stage in stages_of(type(self.system)) if setting.kind in stage.configs]
        is_read = any(self.reads(stage, setting.block) for stage in kind)
        return is_read or self._is_named(setting, self.is_known)

    def reads(self, stage: Stage, key: str) -> bool:
        """Tell whether a stage reads a key, or something below it."""
        if key.partition(".")[0] in EVERYWHERE:
            return True
        return _is_in(key, stage.reads) and not any(
            key == ignored or key.startswith(f"{ignored}.") for ignored in stage.ignores
        )

    def _is_named(self, setting: Setting, counts: Callable[[Setting], bool]) -> bool:
        """Tell whether code that gets the config names the key, or another key that counts does."""
        loaded = self.configs[setting.kind]
        if setting.kind not in self._named:
            self._named[setting.kind] = frozenset(_names_in_code(self.system, loaded))
            self._references[setting.kind] = references(loaded)
        if setting.block in self._named[setting.kind]:
            return True
        known = self._references[setting.kind]
        referring = {name: known[name] for name in known if _overlap(setting.key, name)}
        # Without these, so that a key that refers to itself ends it.
        self._references[setting.kind] = {k: v for k, v in known.items() if k not in referring}
        others = set().union(*referring.values())
        is_referred = any(counts(replace(setting, key=key)) for key in others)
        self._references[setting.kind] = known
        return is_referred


def refuse_unread(readers: Readers) -> None:
    """Refuse unused settings of the command line.

    Where a stage of the recipe's own runs, which may read anything, it is a warning.

    Raises:
        ConfigError: with the line to write instead.
    """
    with one_line_for_all():
        raise_any(_unread_complaints(readers))
    if not _are_all_ours(readers):
        for setting in _unread_overrides(readers):
            logger.warning("%s", _complaint(readers, setting))


def _unread_complaints(readers: Readers, known: Collection[str] = ()) -> list[str]:
    """Return what is wrong with unused overrides, but those of keys that are known to be wrong."""
    unread = _unread_overrides(readers) if _are_all_ours(readers) else ()
    wrong = [setting for setting in unread if not _is_in(setting.key, known)]
    return [_complaint(readers, setting) for setting in wrong]


def _are_all_ours(readers: Readers) -> bool:
    return all(stage.is_ours for stage in readers.stages)


def _unread_overrides(readers: Readers) -> list[Setting]:
    typed = dict[str, list[Setting]]()
    for setting in readers.settings():
        if setting.is_typed:
            typed.setdefault(setting.source.file, []).append(setting)
    # An override goes to several configs, and it is enough that one of them is read.
    return [each[0] for each in typed.values() if not any(map(readers.is_read, each))]


def warn_of_unread(readers: Readers) -> None:
    """Warn about settings of a file that no stage reads, in this call or another."""
    # Only configs that a stage of this call reads: the others were not meant for it.
    used = {id(find_config(readers.system, stage)) for stage in readers.stages}
    written = dict[tuple[str, str], list[Setting]]()
    for setting in readers.settings():
        if not setting.is_typed:
            written.setdefault((str(setting.source), setting.key), []).append(setting)
    unread = [
        each[0]
        for each in written.values()
        if any(id(readers.configs[setting.kind]) in used for setting in each)
        and not any(map(readers.is_known, each))
    ]
    elsewhere = dict[str, list[str]]()
    for setting in unread:
        if _is_for_others(readers, setting):
            elsewhere.setdefault(setting.source.file, []).append(setting.key)
        else:
            logger.warning("%s", _complaint(readers, setting))
    for file, keys in elsewhere.items():
        logger.info("Of %s, %s read %s", file, readers.which_do_not, ", ".join(keys))
    _warn_of_idle_workers(readers)


def unread_overrides(
    system: "BaseSystem", stages: Sequence[Stage], overrides: Iterable[str]
) -> list[str]:
    """Return the overrides that none of some stages reads: a line for these must not have them."""
    readers = Readers(system, stages)
    read = {
        _key_of(setting.source.file.removeprefix(_COMMAND_LINE))
        for setting in readers.settings()
        if setting.is_typed and readers.is_read(setting)
    }
    return [text for text in overrides if _key_of(text) not in read]


def names_in_code(targets: Iterable[type | str]) -> set[str]:
    """Return the keys of a config that code of the user's own reads, as far as its source shows.

    `config.lm_path`, `cfg["lm_path"]` and `config.get("lm_path")` read `lm_path`.

    Args:
        targets: classes, or their dotted paths; what their modules import counts as well.
    """
    from espnet3.parallel.own_modules import find_module, follow_imports

    names = [
        target.__module__ if isinstance(target, type) else target.rpartition(".")[0]
        for target in targets
    ]
    start = [module for name in names if name and (module := find_module(name)) is not None]
    found = set[str]()
    for module in follow_imports(start).values():
        found.update(_keys_read(module.text().tree))
    return found


def keys_of_others(stage_name: str) -> set[str]:
    """Return the top-level keys that are read by other stages, and not by this one."""
    read = {known.name: {key.partition(".")[0] for key in known.reads} for known in STAGES}
    return set().union(*read.values()) - read[stage_name] - {*EVERYWHERE}


def is_compared(key: str) -> bool:
    """Tell whether stages that use weights compare a key with that of the training."""
    from espnet3.systems.base.training_fingerprint import is_of_results

    train = next(stage for stage in STAGES if stage.name == "train")
    return _is_in(key, train.reads) and is_of_results(key)


def _is_in(key: str, read: Iterable[str]) -> bool:
    return any(_overlap(key, other) for other in read)


def _overlap(key: str, other: str) -> bool:
    # With a dot at the end, so that `model` does not match `model_dir`.
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _key_set_by(text: str, loaded: "LoadedConfig") -> str:
    """Return the key that an override has set; it may be another name of one, as `expdir` is."""
    key = _key_of(text.removeprefix(_COMMAND_LINE))
    if key in loaded.sources:
        return key
    return next((k for k, source in loaded.sources.items() if source.file == text), key)


def _key_of(override: str) -> str:
    from espnet3.config.load import parse_override

    return ".".join(parse_override(override).path)


def _is_for_others(readers: Readers, setting: Setting) -> bool:
    """Tell whether a key is of another stage in a file that serves training and inference alike."""
    loaded = readers.configs[setting.kind]
    is_whole = any(loaded.has(key) for key in _MARKS_OF_TRAINING) and loaded.has("dataset.test")
    stages = stages_of(type(readers.system))
    return is_whole and any(readers.reads(stage, setting.key) for stage in stages)


def _warn_of_idle_workers(readers: Readers) -> None:
    """Warn of workers that were asked for where only `trainer` counts: GPUs would stay idle."""
    training = readers.configs.get("training")
    source = training.find_source("parallel") if training is not None else None
    if training is None or source is None or "train" not in readers.names:
        return
    block = training.config.get("parallel") or {}
    is_read = readers.of(Setting("training", "parallel", source))
    n_workers = block.get("n_workers", 1)
    if is_read or block.get("env") in (None, "local") or n_workers == 1:
        return
    if training.has("trainer.devices") or training.has("trainer.num_nodes"):
        return  # they know the two layers
    is_here = block.get("env") == "local_gpu"
    what = f"trainer: {{devices: {n_workers}}}" if is_here else "trainer: {num_nodes: 2}"
    how = "" if is_here else ", and submit it as one job: espnet3 launch CONFIG ..."
    logger.warning(
        "parallel.env is %s with %s workers (set in %s), but train does not read that block: it is "
        "for runners, such as infer. For a training on several GPUs write: %s%s",
        block.get("env"), n_workers, source, what, how,
    )  # fmt: skip


def _complaint(readers: Readers, setting: Setting) -> str:
    """Return what is wrong, where it was set, and what to write."""
    loaded = readers.configs[setting.kind]
    value = _value(loaded, setting.key)
    found = advise(tuple(setting.key.split(".")), value, readers.names, has=loaded.has)
    place = f" ({setting.source})" if setting.is_typed else f" in {setting.source}"
    others = [
        stage.name
        for stage in stages_of(type(readers.system))
        if stage.is_defined and readers.reads(stage, setting.key)
    ]
    problem = f"Nothing reads {setting.key}{place}."
    if setting.block == _OF_LAUNCH:
        return f"{problem} It is for jobs: espnet3 launch conf/training.yaml conf/launch_slurm.yaml"
    if others:
        problem = f"{readers.which_do_not} read {setting.key}{place}; {', '.join(others)} would."
    # That other stages would read it is said already.
    if found is None or (others and not found.key):
        return f"{problem} {_way_out(setting, bool(others))}"
    line = _line_with(setting, found) if setting.is_typed else found.line()
    write = f"Write: {line}" if found.key else ""
    if not write and setting.is_typed:
        write = _leave_out(setting)
    return " ".join(filter(None, [problem, found.why, write]))


def _way_out(setting: Setting, is_of_others: bool) -> str:
    if is_of_others:
        return _leave_out(setting) if setting.is_typed else "Move it to the config of that stage."
    if setting.is_typed:
        own = f"A value of your own has its place under vars: vars.{setting.key}=..."
        return (
            f"{own} Or leave it out: {line}"
            if (line := _without(setting))
            else f"Leave it out. {own}"
        )
    return (
        "Delete it. A value of your own has its place under vars, to which others refer: "
        f"${{vars.{setting.key}}}"
    )


def _line_with(setting: Setting, advice: "Advice") -> str:
    """Return the line that was typed with the right override; that alone in a notebook."""
    typed = setting.source.file.removeprefix(_COMMAND_LINE)
    return corrected_command([typed], advice.overrides()) or advice.override()


def _leave_out(setting: Setting) -> str:
    line = _without(setting)
    return f"Leave it out: {line}" if line else "Leave it out."


def _without(setting: Setting) -> str:
    """Return the line that was typed without an override; empty in a notebook."""
    typed = setting.source.file.removeprefix(_COMMAND_LINE)
    return same_command(without=[setting.key, override_key(typed)])


def _value(loaded: "LoadedConfig", key: str) -> Any:
    from espnet3.config.redact import redact

    # The value is shown in a message, and may be a password.
    return value_at(redact(loaded.config), key, default=None)


def _names_in_code(system: "BaseSystem", loaded: "LoadedConfig") -> set[str]:
    from omegaconf import OmegaConf

    target = OmegaConf.select(loaded.config, "provider._target_", throw_on_resolution_failure=False)
    own = [cls for cls in type(system).__mro__ if not cls.__module__.startswith("espnet3.")]
    return names_in_code([*own, *([target] if isinstance(target, str) else ())])


def _keys_read(tree: ast.AST) -> Iterator[str]:
    """Yield what the text takes from something that is called a config."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_config(node.value):
            yield node.attr
        elif isinstance(node, ast.Subscript) and _is_config(node.value):
            yield from _texts(node.slice)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and _is_config(node.func.value):
                yield from _texts(*node.args)  # config.get("x"), loaded.has("x.y")
            elif any(map(_is_config, node.args)):
                yield from _texts(*node.args)  # OmegaConf.select(config, "x.y")


def _is_config(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    # By parts of the name, as code says `train_config` and `self.cfg`.
    return any(word in str(name).lower() for word in _CONFIG_NAMES)


def _texts(*nodes: ast.AST) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(".")[0]


KNOWN_KEYS = frozenset(
    (
        *DEFAULTS, *SHARED, *EVERYWHERE, "launch",
        *(key.partition(".")[0] for known in STAGES for key in known.reads),
    )
)  # fmt: skip
"""Top-level keys with a meaning; others are the recipe's own."""
_BUILT = {
    "train": ("model", "optimizer", "optimizers", "scheduler", "schedulers"),
    "collect_stats": ("model",),
    "infer": ("model",),
}
"""Blocks of which a stage builds each `_target_` with the arguments beside it."""


def refuse_mistakes(
    system: "BaseSystem",
    stages: Sequence[Stage],
    configs: Sequence["LoadedConfig"],
    *,
    then: Callable[[Collection[str]], list[str]],
) -> None:
    """Refuse misspelt keys, wrong blocks and arguments that no target takes, at once.

    Args:
        system: whose stages they are.
        stages: those to run.
        configs: of each stage.
        then: returns further problems, if there are any, without those of some keys.

    Raises:
        ConfigError: with a line for each.
    """
    with one_line_for_all(), ExitStack() as stack:
        for loaded in configs:
            stack.enter_context(loaded.read_once())
        mistakes = _Mistakes()
        # Several stages may share one config, whose problems are reported once.
        for loaded in {id(loaded): loaded for loaded in configs}.values():
            users = [stage for stage, own in zip(stages, configs, strict=True) if own is loaded]
            for check in _checks_of(loaded, [stage.name for stage in users]):
                mistakes.find(check)
        for stage, loaded in zip(stages, configs, strict=True):
            if stage.is_ours:
                mistakes.find(partial(check_written_arguments, loaded, stage.name))
        for stage, loaded in zip(stages, configs, strict=True):
            for read in system.readers_of(stage.name) if stage.is_ours else ():
                mistakes.find(partial(read, loaded), only=loaded.has)
        if mistakes.problems:
            mistakes.problems += then(mistakes.keys)
        mistakes.refuse()


@contextmanager
def one_line_for_all() -> Iterator[None]:
    """Add the line that corrects all mistakes to an error: that of each mistake corrects one."""
    with gather_corrections() as corrections:
        try:
            yield
        except ConfigError as error:
            problems = split_problems(str(error))
            typed = [text for text in problems if _COMMAND_LINE in text]
            if len(problems) > 1 and (line := corrections.line(len(problems))):
                error.add_note(f"With all of these corrected: {line}")
            elif len(typed) > 1 and (line := corrections.line(len(typed))):
                error.add_note(f"With those of the command line corrected: {line}")
            raise


class _Mistakes:
    """Problems of configs, one for each key."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._first: ConfigError | None = None

    @property
    def keys(self) -> set[str]:
        """The keys that the problems are about."""
        return set(map(_key_in, self.problems))

    def find(self, check: Callable[[], object], only: Callable[[str], bool] | None = None) -> None:
        """Note what a check refuses.

        Args:
            check: may raise a `ConfigError`.
            only: returns whether a key is to be told here; others are left to the checks of the
                stages: what is missing may be what another problem is about.
        """
        try:
            check()
        except ConfigError as error:
            notes = "".join(f"\n{text}" for text in getattr(error, "__notes__", ()))
            found = split_problems(f"{error}{notes}")
            # One key may be found wrong twice, in two ways.
            is_new = self._is_new if only else lambda key: key not in self.keys
            kept = [p for p in found if is_new(_key_in(p)) and (not only or only(_key_in(p)))]
            if kept and self._first is None:
                self._first = error
            self.problems += kept

    def _is_new(self, key: str) -> bool:
        """Tell whether nothing was found of a key, of one below it, or of one above it."""
        return not any(
            f"{key}.".startswith(f"{known}.") or f"{known}.".startswith(f"{key}.")
            for known in self.keys
        )

    def refuse(self) -> None:
        """Raise one error with all problems, if there are any.

        Raises:
            ConfigError: the only one as it was, or one with a line for each.
        """
        if len(self.problems) == 1 and self._first is not None:
            raise self._first
        raise_any(self.problems)


def _key_in(problem: str) -> str:
    return problem.split(" ")[0].rstrip(":,")


def check_config(loaded: "LoadedConfig", stages: Sequence[str]) -> None:
    """Check a config by itself, for the stages (by name) that read it.

    Raises:
        ConfigError: naming the key, its place, and the line to write.
    """
    for check in _checks_of(loaded, stages):
        check()


def _checks_of(loaded: "LoadedConfig", stages: Sequence[str]) -> Iterator[Callable[[], object]]:
    known = KNOWN_KEYS
    if not any(loaded.has(key) for key in ("optimizer", "optimizers")):
        # Of training; those of inference stand under runner.
        known -= {"resume", "accept_changes"}
    yield partial(check_top_level_keys, loaded, known, homes=HOMES, stages=stages)
    for block, homes in BLOCK_HOMES.items():
        yield partial(check_block, loaded, block, homes, stages)
    # Resolves every interpolation, so that one that leads nowhere fails now and not in a stage.
    yield loaded.plain
    if loaded.has("parallel"):
        yield partial(as_parallel_config, loaded)


Reader = Callable[["LoadedConfig"], object]


def readers_of(stage: str) -> Sequence[Reader]:
    """Return the functions that read what a stage needs of its config, without an import.

    Args:
        stage: the name of one of ours.
    """
    if stage == "infer":
        from espnet3.systems.base.inference_config import check_runner_block, load_inference_config

        return load_inference_config, check_runner_block, _check_test_sets
    if stage == "measure":
        from espnet3.systems.base.metric_config import load_metrics_config

        return load_metrics_config, _check_metrics
    if stage == "report":
        from espnet3.systems.base.report_clips import load_report_config

        return (load_report_config,)
    if stage == "collect_stats":
        from espnet3.systems.base.statistics import load_statistics_config

        return load_statistics_config, _check_training_sets
    if stage == "train":
        from espnet3.trainer.config import load_training_config
        from espnet3.trainer.optimization.optimization_config import load_optimization_keys

        return load_training_config, load_optimization_keys, _check_loader, _check_training_sets
    return ()


def _check_test_sets(loaded: "LoadedConfig") -> None:
    from espnet3.components.data.data_organizer import check_entries

    # A provider of one's own may read the entries in its own way.
    if not loaded.has("provider._target_"):
        check_entries(loaded, ("test",))


def _check_training_sets(loaded: "LoadedConfig") -> None:
    from espnet3.components.data.data_organizer import check_entries

    check_entries(loaded, ("train", "valid"))


@names_places
def _check_metrics(loaded: "LoadedConfig") -> None:
    found: list[ConfigError] = []
    for key, node in _nodes_in(loaded.plain().get("metrics"), "metrics"):
        target = str(node["_target_"])
        # Most of ours are dataclasses, whose text does not tell; they import nothing heavy.
        with suppress(BadTarget):
            signature = signature_at(target) if target.startswith("espnet3.") else None
            found += unknown_arguments(signature, key, node) if signature else ()
    raise_together(found)


@names_places
def _check_loader(loaded: "LoadedConfig") -> None:
    from espnet3.components.data.loader_config import DataLoaderConfig

    values = loaded.plain().get("dataloader")
    # What is no mapping has a message of its own, with what to write.
    if isinstance(values, Mapping):
        DataLoaderConfig.from_config(values)


@names_places
def check_written_arguments(loaded: "LoadedConfig", stage: str) -> None:
    """Refuse misspelt arguments of `_target_`s and of the trainer, as far as their text tells.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    values = loaded.plain()
    if stage == "infer" and "provider" in values:
        return  # a provider of one's own may read the block in its own way
    found: list[ConfigError] = []
    for block in _BUILT.get(stage, ()):
        for key, node in _nodes_in(values.get(block), block):
            signature = signature_without_import(str(node["_target_"]))
            if signature is not None:
                found += unknown_arguments(signature, key, node)
                if stage == "infer" and not found:
                    _refuse_several(signature, key, node, loaded)
    if stage == "train":
        from espnet3.trainer.trainer_block import unknown_names

        found += unknown_names(loaded)
    raise_together(found)


def _refuse_several(
    signature: inspect.Signature, key: str, node: Mapping[str, Any], loaded: "LoadedConfig"
) -> None:
    """Refuse a list that was typed for an argument of ours that is a number.

    Raises:
        ConfigError: with the option that tries several values.
    """
    for name, value in node.items():
        parameter = signature.parameters.get(name)
        is_number = parameter is not None and type(parameter.default) in (int, float)
        is_ours = str(node["_target_"]).startswith("espnet3.")
        full = f"{key}.{name}"
        if isinstance(value, list) and is_number and is_ours and loaded.is_typed(full):
            # Where measure is not asked for, it must be.
            line = corrected_command(["infer"], ["infer", "measure"]) or same_command()
            line = same_command() if "measure measure" in line else line
            raise ConfigError(
                key=full,
                value=value,
                problem="but is one number",
                fix="To decode the validation set with each of them, and the test sets with the "
                f"best, write: {line} --best valid/wer",
            )


def _nodes_in(values: Any, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the key of each mapping with a `_target_`, and the mapping."""
    if isinstance(values, dict):
        if "_target_" in values:
            yield key, values
        if values.get("_recursive_") is False:
            return  # what is built of it is up to the target
        children: Iterable[tuple[Any, Any]] = values.items()
    else:
        children = enumerate(values) if isinstance(values, list) else ()
    for name, child in children:
        yield from _nodes_in(child, f"{key}.{name}")
