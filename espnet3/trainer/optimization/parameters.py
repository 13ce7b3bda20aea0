"""Which parameters are trained, and by which optimizer: `freeze` and `optimizers.NAME.params`."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter

from espnet3.errors import ConfigError, suggest
from espnet3.text import amount, count, first_few, share_text
from espnet3.trainer.optimization.optimization_config import OptimizationConfig

logger = logging.getLogger(__name__)

KEY = "freeze"
_MOST_NAMES = 8
_WRAPPERS = ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module.")


@dataclass(frozen=True)
class Frozen:
    """What of a model is frozen."""

    modules: Mapping[str, nn.Module]
    """The outermost modules all of which is frozen, by name; they stay in eval mode."""
    parameters: tuple[str, ...]
    """Names of all frozen parameters."""
    n_frozen: int
    n_parameters: int
    """Numbers in them, and in the whole model; tied ones count once."""
    changed: tuple[nn.Parameter, ...] = ()
    """Parameters that were trainable before."""

    def hold(self) -> None:
        """Put the modules back into eval mode, after whatever has set the model to train mode.

        So the running statistics of a BatchNorm stay as they are, and nothing is dropped out.
        """
        for module in self.modules.values():
            if module.training:
                module.eval()

    def warn_of_others(self, model: nn.Module) -> None:
        """Warn of modules in eval mode that `freeze` does not name; Lightning leaves them in it."""
        held = {id(module) for one in self.modules.values() for module in one.modules()}
        found = {plain_name(n): m for n, m in model.named_modules() if not m.training}
        others = [name for name, module in found.items() if id(module) not in held]
        if others:
            logger.warning(
                "%s in eval mode at the start of training, and stay so: no dropout, and running "
                "statistics as they are. For all of it, call model.train() first; to mean it, "
                "write: freeze: [...]",
                "The whole model is"
                if others[0] == ""
                else f"Of the model, {first_few(others, _MOST_NAMES)} are",
            )

    def release(self) -> None:
        """Make trainable again what was so before."""
        for parameter in self.changed:
            parameter.requires_grad_(True)

    def __str__(self) -> str:
        inside = tuple(f"{name}." for name in self.modules)
        single = [name for name in self.parameters if not name.startswith(inside)]
        parts = [
            *([f"{first_few(self.modules, _MOST_NAMES)} (in eval mode)"] if self.modules else []),
            *(
                [f"{count(len(single), 'parameter')} by name ({first_few(single, _MOST_NAMES)})"]
                * bool(single)
            ),
        ]
        share = self.n_frozen / self.n_parameters if self.n_parameters else 0.0
        return (
            f"Frozen: {' and '.join(parts)}; {amount(self.n_frozen)} of "
            f"{amount(self.n_parameters)} parameters, {share_text(share)}"
        )


NOTHING = Frozen({}, (), 0, 0)


def freeze(model: nn.Module, patterns: Sequence[str]) -> Frozen:
    """Freeze what the patterns name, put it into eval mode, and log what that is.

    A pattern fits a parameter by its name or by that of a module around it: `encoder`,
    `encoder.*`, `*.norm`, `encoder.layers.[0-5].*`, `decoder.embed.weight`.

    Raises:
        ConfigError: a pattern fits nothing, or nothing would be left to train.
    """
    if not patterns:
        return NOTHING
    modules = {plain_name(name): module for name, module in model.named_modules() if name}
    # A tied weight has two names, and may be meant by either.
    named = {plain_name(n): p for n, p in model.named_parameters(remove_duplicate=False)}
    for index, pattern in enumerate(patterns):
        if not any(matches(name, pattern) for name in (*named, *modules)):
            key = f"{KEY}.{index}" if len(patterns) > 1 else KEY
            raise _unknown(key, pattern, named, modules, model)
    chosen = {n: p for n, p in named.items() if any(matches(n, pattern) for pattern in patterns)}
    ids = {id(parameter) for parameter in chosen.values()}
    if not any(p.requires_grad for p in named.values() if id(p) not in ids):
        raise ConfigError(
            key=KEY,
            problem=f"leaves nothing of {type(model).__name__} to train: {', '.join(patterns)} "
            "names all of its trainable parameters",
            fix=_way_out([*modules, *named], named),
        )
    changed = tuple({id(p): p for p in chosen.values() if p.requires_grad}.values())
    for parameter in changed:
        parameter.requires_grad_(False)
    held = {
        name: module for name, module in modules.items() if _is_held(name, module, patterns, ids)
    }
    frozen = Frozen(
        {n: m for n, m in held.items() if not any(n.startswith(f"{above}.") for above in held)},
        tuple(n for n, p in named.items() if id(p) in ids),
        sum(_size(p) for p in model.parameters() if id(p) in ids),
        sum(_size(p) for p in model.parameters()),
        changed,
    )
    frozen.hold()
    logger.info("%s", frozen)
    return frozen


def _is_held(name: str, module: nn.Module, patterns: Sequence[str], frozen: set[int]) -> bool:
    """Tell whether all of a module is frozen: it is named, or each of its parameters is."""
    own = list(module.parameters())
    if any(id(parameter) not in frozen for parameter in own):
        return False  # a pattern such as *.weight takes a part of it
    return bool(own) or any(matches(name, pattern) for pattern in patterns)


def _size(parameter: nn.Parameter) -> int:
    return 0 if isinstance(parameter, UninitializedParameter) else parameter.numel()


def _unknown(
    key: str, pattern: str, named: Mapping[str, Any], modules: Mapping[str, Any], model: nn.Module
) -> ConfigError:
    bare = pattern.removesuffix(".*").removesuffix("*")
    hint = suggest(bare, [*modules, *named]) or suggest(bare.partition(".")[0], modules)
    names = [hint.split("'")[1]] if hint else [*modules, *named]
    return ConfigError(
        key=key,
        value=pattern,
        problem=f"but {type(model).__name__} has no module or parameter of that name.{hint} "
        f"It has: {first_few(_first_parts(named), _MOST_NAMES)}",
        fix=_way_out(names, named),
    )


def _way_out(names: Sequence[str], named: Mapping[str, nn.Parameter]) -> str:
    """Return a line with the first of some names that would leave something to train."""
    trainable = [name for name, parameter in named.items() if parameter.requires_grad]
    fits = (one for one in names if not all(matches(name, one) for name in trainable))
    found = next(fits, None)
    return f"Write: freeze: [{found}]" if found else "Delete freeze."


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


def _owners(name: str, optimization: OptimizationConfig) -> list[str]:
    return [
        optimizer
        for optimizer, config in optimization.optimizers.items()
        if (not config.params and len(optimization.optimizers) == 1)
        or any(matches(name, prefix) for prefix in config.params)
    ]


def _check_prefixes(
    names: Mapping[str, object], frozen: Sequence[str], optimization: OptimizationConfig
) -> None:
    modules = _first_parts(names)
    for optimizer, config in optimization.optimizers.items():
        key = f"optimizers.{optimizer}.params"
        if not config.params and len(optimization.optimizers) > 1:
            raise ConfigError(
                f"{key} is not set, but with several optimizers each needs its parameters. "
                f"Write: params: [...], from {first_few(modules, _MOST_NAMES)}"
            )
        for prefix in config.params:
            if any(matches(name, prefix) for name in names):
                continue
            if any(matches(name, prefix) for name in frozen):
                raise ConfigError(
                    f"{key} has {prefix!r}",
                    key=key,
                    problem="but all that begins so is frozen (see freeze), so that this "
                    "optimizer has nothing to do",
                    fix=f"Delete {prefix!r} there, or optimizers.{optimizer}; or take it out of "
                    "freeze.",
                )
            raise ConfigError(
                f"{key} has {prefix!r}",
                key=key,
                problem=f"but no trainable parameter begins so.{suggest(prefix, modules)} The "
                f"model has: {first_few(modules, _MOST_NAMES)}.",
            )


def _check_orphans(orphans: Sequence[str], optimization: OptimizationConfig) -> None:
    if not orphans:
        return
    optimizer, config = next(iter(optimization.optimizers.items()))
    line = ", ".join([*config.params, *_first_parts(orphans)])
    raise ConfigError(
        f"{len(orphans)} trainable parameter(s) belong to no optimizer: "
        f"{first_few(orphans, _MOST_NAMES)}. "
        f"Add them to one, such as optimizers.{optimizer}.params: [{line}], or freeze them in the "
        "model by requires_grad_(False)."
    )


def _check_shared(shared: Mapping[str, Sequence[str]]) -> None:
    if not shared:
        return
    name, owners = next(iter(shared.items()))
    raise ConfigError(
        f"{len(shared)} parameter(s) belong to several optimizers: "
        f"{first_few(shared, _MOST_NAMES)}. "
        f"{name!r} fits optimizers.{owners[0]}.params and optimizers.{owners[1]}.params: make the "
        "prefixes of one of them longer, so that each parameter fits one."
    )


def plain_name(name: str) -> str:
    """Return the name without what wrappers add to it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def matches(name: str, prefix: str) -> bool:
    """Tell whether a name is that of a prefix, or below it; `*` stands for anything."""
    prefix = prefix.removesuffix(".")
    is_below = name == prefix or name.startswith(f"{prefix}.")
    return is_below or fnmatchcase(name, prefix) or fnmatchcase(name, f"{prefix}.*")


def _first_parts(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.partition(".")[0] for name in names))
