"""All mistakes that the text of the configs tells, in one error.

Nothing is imported: torch, Lightning and the user's model take seconds. What is missing, and what
only an import or a file can tell, is left to the checks of the stages.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from espnet3.commands import corrected_command, gather_corrections, same_command
from espnet3.config.advice import (
    check_block,
    check_keys,
    raise_any,
    raise_together,
    split_problems,
)
from espnet3.config.known_keys import BLOCK_HOMES, HOMES
from espnet3.config.sources import names_places
from espnet3.config.targets import (
    BadTarget,
    signature_at,
    signature_without_import,
    unknown_arguments,
)
from espnet3.errors import ConfigError
from espnet3.parallel.parallel import as_parallel_config
from espnet3.systems.base.context import DEFAULTS, SHARED
from espnet3.systems.base.stages import EVERYWHERE, STAGES, Stage

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig
    from espnet3.systems.base.system import BaseSystem

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
_TYPED = "command line: "


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
            typed = [text for text in problems if _TYPED in text]
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
        return set(map(_key_of, self.problems))

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
            kept = [p for p in found if is_new(_key_of(p)) and (not only or only(_key_of(p)))]
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


def _key_of(problem: str) -> str:
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
    yield partial(check_keys, loaded, known, homes=HOMES, stages=stages)
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
        from espnet3.systems.base.inference_checks import check_runner_block
        from espnet3.systems.base.inference_config import load_inference_config

        return load_inference_config, check_runner_block, _check_test_sets
    if stage == "measure":
        from espnet3.systems.base.metric_config import load_metrics_config

        return load_metrics_config, _check_metrics
    if stage == "report":
        from espnet3.systems.base.reporting.clips import load_report_config

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
