"""Check the configs of all stages that were asked for, before the first of them runs."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from espnet3.config.own_keys import BLOCK_HOMES, HOMES
from espnet3.errors import ConfigError, ResourceError
from espnet3.systems.base.context import DEFAULTS, SHARED
from espnet3.systems.base.readers import Readers, check_typed, tell_written
from espnet3.systems.base.stages import EVERYWHERE, STAGES, Stage, has_own
from espnet3.systems.base.system import BaseSystem

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

KNOWN_KEYS = frozenset(
    (
        *DEFAULTS, *SHARED, *EVERYWHERE, "launch",
        *(key.partition(".")[0] for known in STAGES for key in known.reads),
    )
)  # fmt: skip
"""Top-level keys with a meaning; others are the recipe's own."""


def check_stages(system: BaseSystem, stages: Sequence[Stage], *, dry_run: bool = False) -> None:
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
    for loaded in {id(loaded): loaded for loaded in configs}.values():
        used_by = [stage.name for stage, own in zip(stages, configs, strict=True) if own is loaded]
        check_config(loaded, used_by)
    readers = Readers(system, stages)
    check_typed(readers)
    for stage, loaded in zip(stages, configs, strict=True):
        check_targets(loaded, stage.blocks)
    system.planned = tuple(stage.name for stage in stages)
    for stage in stages:
        check = f"check_{stage.name}"
        if has_own(type(system), stage.name, check):
            _run_check(getattr(system, check), dry_run)
    tell_written(readers)


def _run_check(check: Callable[[], None], dry_run: bool) -> None:
    try:
        check()
    except ResourceError as error:
        if not dry_run:
            raise
        logger.warning("%s", error)


def check_config(loaded: "LoadedConfig", stages: Sequence[str]) -> None:
    """Check a config by itself, for the stages (by name) that read it.

    Raises:
        ConfigError: naming the key, its place, and the line to write.
    """
    from espnet3.config.keys import check_block, check_keys
    from espnet3.parallel.parallel import as_parallel_config

    known = KNOWN_KEYS
    if not any(loaded.has(key) for key in ("optimizer", "optimizers")):
        # Of training; those of inference stand under runner.
        known -= {"resume", "accept_changes"}
    check_keys(loaded, known, homes=HOMES, stages=stages)
    for block, homes in BLOCK_HOMES.items():
        check_block(loaded, block, homes, stages)
    loaded.plain()
    as_parallel_config(loaded)


def check_targets(loaded: "LoadedConfig", blocks: Iterable[str] | None) -> None:
    """Import everything that a `_target_` in these blocks names.

    Args:
        loaded: the config.
        blocks: top-level keys; None for all.

    Raises:
        ConfigError: naming the key, its place, and what is wrong.
    """
    from espnet3.config.sources import set_in
    from espnet3.config.targets import BadTarget, install_hint, locate_callable

    values = loaded.plain()
    used = values if blocks is None else {key: values[key] for key in blocks if key in values}
    for key, target in find_targets(used):
        where = f"{key} is {target!r}{set_in(key, loaded)}"
        try:
            locate_callable(str(target))
        except BadTarget as bad:
            raise ConfigError(f"{where}, but {bad}") from bad
        except Exception as error:
            problem = f"{type(error).__name__}: {error}{install_hint(error)}"
            raise ConfigError(
                f"{where}, but its module cannot be imported: {problem}. Mend it, then see: "
                f"python -c 'import {str(target).rpartition('.')[0]}'"
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
