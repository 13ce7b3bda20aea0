"""Check the arguments in a block with a `_target_` before the class is called with more of them."""

import inspect
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from espnet3.config.advice import unknown_hint
from espnet3.config.sources import join_key
from espnet3.config.targets import RESERVED, BadTarget, locate_callable
from espnet3.errors import ConfigError


def check_arguments(
    key: str, target: str, block: Mapping[str, Any], *, hidden: Collection[str] = ()
) -> None:
    """Refuse arguments that a class does not take, those of its base classes included.

    Args:
        key: of the block, such as `runner`.
        target: dotted path of the class.
        block: its arguments; names that Hydra reserves are let pass.
        hidden: arguments that others than users give, which are not worth a mention.

    Raises:
        ConfigError: the class cannot be imported, or takes no such argument.
    """
    try:
        found = locate_callable(target)
    except BadTarget as bad:
        name = join_key(key, "_target_")
        raise ConfigError(key=name, value=target, problem=f"but {bad}") from None
    known = argument_names(found)
    if known is None:
        return
    for name in block:
        if name not in known and name not in RESERVED:
            full = join_key(key, name)
            free = sorted(known.difference(hidden))
            takes = f"It takes: {', '.join(free) or 'nothing'}."
            hint = partial(unknown_hint, full, block[name], sorted(known))
            raise ConfigError(
                key=full,
                problem=f"is no argument of {target}",
                fix=lambda loaded: hint(loaded) or takes,  # noqa: B023 - raised at once
            )


def argument_names(target: Any) -> set[str] | None:
    """Return the names that can be given; None if any can.

    A class that hands `**kwargs` on to its base class takes the names of that one as well.
    """
    names: set[str] = set()
    if (
        _is_class(target)
        and target.__init__ is object.__init__
        and target.__new__ is object.__new__
    ):
        return names  # it takes none; the signature of object's own method would let all pass
    functions = [vars(cls).get("__init__") for cls in target.__mro__] if _is_class(target) else []
    for function in [f for f in functions if f is not None] or [target]:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return None
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names - {"self"}
    return None


def _is_class(target: Any) -> bool:
    return isinstance(target, type)
