"""Which parameters belong to which optimizer."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from espnet3.errors import ConfigError, suggest
from espnet3.trainer.optimization.optimization_config import OptimizationConfig

_WRAPPERS = ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module.")


def split_parameters(
    model: nn.Module, optimization: OptimizationConfig
) -> dict[str, list[nn.Parameter]]:
    """Return the trainable parameters of each optimizer, in the order of the model.

    Raises:
        ConfigError: a parameter belongs to no optimizer or to several, or a prefix names nothing.
    """
    trainable = {plain_name(n): p for n, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ConfigError(
            f"{type(model).__name__} has no trainable parameter. Leave some with "
            "requires_grad=True, or check that the layers are attributes of the model."
        )
    frozen = [plain_name(n) for n, p in model.named_parameters() if not p.requires_grad]
    _check_prefixes(trainable, frozen, optimization)
    owners = {name: _owners(name, optimization) for name in trainable}
    _check_orphans([n for n, o in owners.items() if not o], optimization)
    _check_shared({n: o for n, o in owners.items() if len(o) > 1})
    return {
        optimizer: [p for name, p in trainable.items() if owners[name] == [optimizer]]
        for optimizer in optimization.optimizers
    }


def plain_name(name: str) -> str:
    """Return the name without what wrappers add to it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _owners(name: str, optimization: OptimizationConfig) -> list[str]:
    return [
        optimizer
        for optimizer, config in optimization.optimizers.items()
        if (not config.params and len(optimization.optimizers) == 1)
        or any(matches(name, prefix) for prefix in config.params)
    ]


def matches(name: str, prefix: str) -> bool:
    """Tell whether a name is that of a prefix, or below it; `*` stands for anything."""
    prefix = prefix.removesuffix(".")
    is_below = name == prefix or name.startswith(f"{prefix}.")
    return is_below or fnmatchcase(name, prefix) or fnmatchcase(name, f"{prefix}.*")


def _check_prefixes(
    names: Mapping[str, object], frozen: Sequence[str], optimization: OptimizationConfig
) -> None:
    modules = _first_parts(list(names))
    for optimizer, config in optimization.optimizers.items():
        key = f"optimizers.{optimizer}.params"
        if not config.params and len(optimization.optimizers) > 1:
            raise ConfigError(
                f"{key} is not set, but with several optimizers each needs its parameters. "
                f"Write: params: [...], from {_listing(modules)}"
            )
        for prefix in config.params:
            if any(matches(name, prefix) for name in names):
                continue
            if any(matches(name, prefix) for name in frozen):
                raise ConfigError(
                    f"{key} has {prefix!r}{optimization.set_in(key)}, but all that begins so is "
                    f"frozen (see freeze), so that this optimizer has nothing to do. Delete "
                    f"{prefix!r} there, or optimizers.{optimizer}; or take it out of freeze."
                )
            raise ConfigError(
                f"{key} has {prefix!r}{optimization.set_in(key)}, but no trainable parameter "
                f"begins so.{suggest(prefix, modules)} The model has: {_listing(modules)}."
            )


def _check_orphans(orphans: Sequence[str], optimization: OptimizationConfig) -> None:
    if not orphans:
        return
    optimizer, config = next(iter(optimization.optimizers.items()))
    line = ", ".join([*config.params, *_first_parts(orphans)])
    raise ConfigError(
        f"{len(orphans)} trainable parameter(s) belong to no optimizer: {_listing(orphans)}. "
        f"Add them to one, such as optimizers.{optimizer}.params: [{line}], or freeze them in the "
        "model by requires_grad_(False)."
    )


def _check_shared(shared: Mapping[str, Sequence[str]]) -> None:
    if not shared:
        return
    name, owners = next(iter(shared.items()))
    raise ConfigError(
        f"{len(shared)} parameter(s) belong to several optimizers: {_listing(list(shared))}. "
        f"{name!r} fits optimizers.{owners[0]}.params and optimizers.{owners[1]}.params: make the "
        "prefixes of one of them longer, so that each parameter fits one."
    )


def _first_parts(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def _listing(names: Sequence[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
