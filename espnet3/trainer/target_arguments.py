"""Check the arguments of a `_target_` by its own signature, before it is called."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import join_key, set_in
from espnet3.config.targets import BadTarget, find_bad_argument, locate, signature_of
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


def check_call(
    node: Mapping[str, Any],
    key: str,
    loaded: "LoadedConfig | None" = None,
    *,
    added: Iterable[str] = (),
) -> None:
    """Refuse arguments that a target does not take, or lacks.

    One with `**kwargs` takes any: where they go, such as from `DDPStrategy` to torch, is its own.

    Args:
        node: `_target_` and its arguments.
        key: of the node, for errors.
        loaded: where it comes from.
        added: arguments that the caller will give as well.

    Raises:
        ConfigError: naming the argument and its place, or those that are missing.
    """
    _check(node, key, loaded, {**node, **dict.fromkeys(added)}, lacks_nothing=True)


def check_parts(node: Mapping[str, Any], key: str, loaded: "LoadedConfig | None" = None) -> None:
    """Refuse arguments that the targets within a node do not take; they may lack some as yet.

    Raises:
        ConfigError: naming the argument and its place.
    """
    if node.get("_recursive_") is False:
        return  # what is built of it is up to the target
    for name, child in node.items():
        if isinstance(child, Mapping):
            inner = join_key(key, str(name))
            if "_target_" in child:
                _check(child, inner, loaded, child, lacks_nothing=False)
            check_parts(child, inner, loaded)


def _check(
    node: Mapping[str, Any],
    key: str,
    loaded: "LoadedConfig | None",
    arguments: Mapping[str, Any],
    *,
    lacks_nothing: bool,
) -> None:
    target = str(node["_target_"])
    try:
        signature = signature_of(locate(target))
    except BadTarget as bad:
        name = join_key(key, "_target_")
        raise ConfigError(f"{name} is {target!r}{set_in(name, loaded)}, but {bad}") from bad
    bad_one = find_bad_argument(signature, arguments) if signature else None
    if bad_one is None or not (bad_one.name or lacks_nothing):
        return
    full = join_key(key, bad_one.name) if bad_one.name else key
    problem = (
        f"is no argument of {target}"
        if bad_one.name
        else f"does not fit {target}: {bad_one.reason}"
    )
    hint = bad_one.hint_at(key, node, loaded)
    raise ConfigError(f"{full}{set_in(full, loaded)} {problem}.{hint}")
