"""Fine-tuning: `init`, the weights before the first step, and `freeze`, what stays as it is.

Initial weights come from a file, whole or by parts, or are drawn by a method that ESPnet2 names.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from espnet3.errors import ConfigError, RunFolderError, suggest
from espnet3.text import amount, count, first_few, folded, share_text
from espnet3.trainer.checkpointing.checkpoint_io import load_weights
from espnet3.trainer.config import METHODS, InitConfig, InitEntry, MethodConfig

log = logging.getLogger(__name__)

_INIT, _FREEZE = "init", "freeze"
_MOST_NAMES = 8
# Added by FSDP, torch.compile and activation checkpointing; they never stand in a config.
_WRAPPERS = ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module.")
_DRAW: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "chainer": lambda weight: nn.init.normal_(weight, 0.0, weight[0].numel() ** -0.5),
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "kaiming_uniform": lambda weight: nn.init.kaiming_uniform_(weight, nonlinearity="relu"),
    "kaiming_normal": lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"),
}
_KEPT = (
    nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm,
    nn.modules.batchnorm._NormBase,
)  # fmt: skip
"""Modules whose own way to begin is right for them."""


@dataclass
class InitReport:
    """Outcome for each weight, by its name in the model."""

    path: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """In the model, but not in the file."""
    unexpected: list[str] = field(default_factory=list)
    """In the file, but not in the model."""
    reshaped: dict[str, str] = field(default_factory=dict)
    """Of another shape: `name -> [file] in the file, [model] in the model`; not loaded."""
    excluded: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Tell whether file and model fit without a rest."""
        return not (self.missing or self.unexpected or self.reshaped)

    def __str__(self) -> str:
        n = len(self.loaded) + len(self.missing) + len(self.reshaped) + len(self.excluded)
        lines = [f"Weights from {self.path}: {len(self.loaded)} of {n} loaded."]
        lines += _groups("missing in the file, left as they were", self.missing)
        lines += _groups("in the file, but not in the model", self.unexpected)
        shapes = [f"{name}: {shape}" for name, shape in self.reshaped.items()]
        lines += _listing("of another shape, left as they were", shapes)
        lines += _groups("excluded", self.excluded)
        return "\n".join(lines)


def check_files(entries: Sequence[InitEntry]) -> None:
    """Check that the files exist, before anything is built for them.

    Raises:
        ConfigError: naming the one that is not.
    """
    for index, entry in enumerate(entries):
        if isinstance(entry, InitConfig) and not Path(entry.path).exists():
            way_out = "Correct the path; it counts from the recipe's folder."
            if "." not in entry.path and "/" not in entry.path:  # a word
                word = next(iter(get_close_matches(entry.path, METHODS)), METHODS[1])
                way_out = (
                    f"{way_out} Or is it a way to draw weights? Those are {', '.join(METHODS)}. "
                    f"Write: init: {word}"
                )
            raise ConfigError(
                key=_key(entries, index),
                value=entry.path,
                problem="which does not exist",
                fix=way_out,
            )


def _key(entries: Sequence[InitEntry], index: int) -> str:
    return f"{_INIT}.{index}.path" if len(entries) > 1 else f"{_INIT}.path"


def load_initial_weights(model: torch.nn.Module, entries: Sequence[InitEntry]) -> list[InitReport]:
    """Copy weights into the model, file after file, and log a report for each.

    Args:
        model: is changed.
        entries: in this order.

    Raises:
        ConfigError: a file is missing or damaged, nothing fits, or with `strict` not everything.
            The model may then hold a part.
    """
    check_files(entries)
    reports = []
    for index, entry in enumerate(entries):
        if isinstance(entry, MethodConfig):
            _draw(model, entry)
            continue
        try:
            weights = load_weights(entry.path)
        except RunFolderError as error:
            raise _unreadable(_key(entries, index), entry.path, error) from error
        report = _copy(weights, model, entry)
        log.info("%s", report)
        if not report.loaded:
            raise ConfigError(_nothing_fits(report, entry, model))
        if entry.strict and not report.is_whole:
            raise ConfigError(
                f"{report}\nNot everything fits, and init says strict: true.",
                fix="Set exclude to leave "
                "parts as they are, from and to for other names, or strict: false.",
            )
        reports.append(report)
    return reports


def _draw(model: nn.Module, entry: MethodConfig) -> None:
    """Draw the weights of a model, all of them in the same order on each rank."""
    kept, n_drawn, n_zero = list[str](), 0, 0
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if id(parameter) in seen or not _is_below(name, entry.to):
                continue
            # A tied weight has two names, and is drawn once.
            seen.add(id(parameter))
            # A lazy module gets its shape in its first forward pass: nothing to draw yet.
            is_open = isinstance(parameter, UninitializedParameter)
            if is_open or isinstance(module, _KEPT) or _is_excluded(name, entry.exclude):
                kept.append(name)
            elif parameter.ndim > 1:
                _DRAW[entry.method](parameter.data)
                n_drawn += 1
            elif "bias" in name.rpartition(".")[2]:
                parameter.data.zero_()
                n_zero += 1
            else:
                kept.append(name)
    if not n_drawn:
        tops = ", ".join(name for name, _ in model.named_children())
        raise ConfigError(
            key=_INIT,
            problem=f"draws no weight of {type(model).__name__}: it has no matrix below to: "
            f"{entry.to!r} that exclude leaves. It has: {tops}",
            fix=f"Write: init: {entry.method}",
        )
    lines = [f"Weights by {entry.method}: {n_drawn} drawn, {n_zero} biases set to 0."]
    log.info("%s", "\n".join([*lines, *_groups("left as they were", kept)]))


def _unreadable(key: str, path: str, error: RunFolderError) -> ConfigError:
    if isinstance(error.__cause__, Exception) and "Python objects" not in str(error):
        # What it says of resuming is of no use here.
        reason = folded(error.__cause__)[:200]
        return ConfigError(
            key=key,
            value=path,
            problem=f"which is damaged, or holds no weights ({reason})",
            fix="Give a .safetensors file, a checkpoint of a training, or what "
            "torch.save(model.state_dict(), path) wrote.",
        )
    return ConfigError(key=key, value=path, fix=str(error))


def _copy(
    tensors: dict[str, torch.Tensor], model: torch.nn.Module, entry: InitConfig
) -> InitReport:
    report = InitReport(entry.path)
    weights = _renamed(tensors, entry)
    # With buffers: the running statistics of a BatchNorm belong to its weights.
    state = model.state_dict()
    wanted = [name for name in state if _is_below(name, entry.to)]
    chosen: dict[str, torch.Tensor] = {}
    for name in wanted:
        if _is_excluded(name, entry.exclude):
            report.excluded.append(name)
        elif name not in weights:
            report.missing.append(name)
        elif weights[name].shape != state[name].shape:
            there, here = list(weights[name].shape), list(state[name].shape)
            report.reshaped[name] = f"{there} in the file, {here} in the model"
        else:
            chosen[name] = weights[name]
    report.loaded = list(chosen)
    report.unexpected = [
        n for n in weights if n not in state and not _is_excluded(n, entry.exclude)
    ]
    # What does not fit was sorted out above, for a report that torch's strict mode cannot give.
    model.load_state_dict(chosen, strict=False)
    return report


def _renamed(weights: dict[str, torch.Tensor], entry: InitConfig) -> dict[str, torch.Tensor]:
    source, target = entry.source.rstrip("."), entry.to.rstrip(".")
    taken = {n: v for n, v in weights.items() if _is_below(n, source)}
    if not taken:
        prefixes = sorted({name.partition(".")[0] for name in weights})
        raise ConfigError(
            f"{_INIT}: {entry.path} has no weights below from: {entry.source}."
            f"{suggest(entry.source, prefixes)} It has: {', '.join(prefixes[:20])}."
        )
    cut = len(source) + 1 if source else 0
    return {(f"{target}." if target else "") + name[cut:]: v for name, v in taken.items()}


def _is_below(name: str, prefix: str) -> bool:
    prefix = prefix.rstrip(".")
    # With the dot: `encoder` must not take `encoder2.weight`.
    return not prefix or name == prefix or name.startswith(f"{prefix}.")


def _is_excluded(name: str, patterns: Iterable[str]) -> bool:
    return any(matches(name, pattern) for pattern in patterns)


def _nothing_fits(report: InitReport, entry: InitConfig, model: torch.nn.Module) -> str:
    theirs = [*report.unexpected, *report.reshaped]
    return (
        f"{report}\nNothing of {entry.path} fits {type(model).__name__}. Names in the file: "
        f"{', '.join(theirs[:3]) or 'none'}; in the model: {', '.join(report.missing[:3]) or '-'}. "
        "Say which part goes where: init: {path: ..., from: PREFIX_IN_FILE, to: PREFIX_IN_MODEL}"
    )


def _groups(title: str, names: list[str]) -> list[str]:
    counts = Counter(".".join(name.split(".")[:2]) for name in names)
    groups = [group if n == 1 else f"{group}.* ({n})" for group, n in counts.items()]
    return _listing(title, groups, len(names))


def _listing(title: str, items: list[str], n: int | None = None) -> list[str]:
    if not items:
        return []
    return [f"  {n or len(items)} {title}: {first_few(items, _MOST_NAMES)}"]


@dataclass(frozen=True)
class Frozen:
    """The frozen part of a model."""

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
            # `eval()` walks the whole tree of modules, and this runs before every batch.
            if module.training:
                module.eval()

    def warn_of_others(self, model: nn.Module) -> None:
        """Warn of modules in eval mode that `freeze` does not name; Lightning leaves them in it."""
        held = {id(module) for one in self.modules.values() for module in one.modules()}
        found = {plain_name(n): m for n, m in model.named_modules() if not m.training}
        others = [name for name, module in found.items() if id(module) not in held]
        if others:
            log.warning(
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
            key = f"{_FREEZE}.{index}" if len(patterns) > 1 else _FREEZE
            raise _unknown(key, pattern, named, modules, model)
    chosen = {n: p for n, p in named.items() if any(matches(n, pattern) for pattern in patterns)}
    # By identity: a tied weight that is frozen under one name must not train under the other.
    ids = {id(parameter) for parameter in chosen.values()}
    if not any(p.requires_grad for p in named.values() if id(p) not in ids):
        raise ConfigError(
            key=_FREEZE,
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
    log.info("%s", frozen)
    return frozen


def _is_held(name: str, module: nn.Module, patterns: Sequence[str], frozen: set[int]) -> bool:
    """Tell whether all of a module is frozen: it is named, or each of its parameters is."""
    own = list(module.parameters())
    if any(id(parameter) not in frozen for parameter in own):
        return False  # a pattern such as *.weight takes a part of it
    # A module without parameters, such as Dropout, counts only if a pattern names it.
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
        f"It has: {first_few(first_parts(named), _MOST_NAMES)}",
        fix=_way_out(names, named),
    )


def _way_out(names: Sequence[str], named: Mapping[str, nn.Parameter]) -> str:
    """Return a line with the first of some names that would leave something to train."""
    trainable = [name for name, parameter in named.items() if parameter.requires_grad]
    fits = (one for one in names if not all(matches(name, one) for name in trainable))
    found = next(fits, None)
    return f"Write: freeze: [{found}]" if found else "Delete freeze."


def plain_name(name: str) -> str:
    """Return the name without what wrappers add to it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def matches(name: str, prefix: str) -> bool:
    """Tell whether a name is that of a prefix, or below it; `*` stands for anything."""
    prefix = prefix.removesuffix(".")
    is_below = name == prefix or name.startswith(f"{prefix}.")
    # `fnmatch` would fold case on some systems, and names of parameters have case.
    return is_below or fnmatchcase(name, prefix) or fnmatchcase(name, f"{prefix}.*")


def first_parts(names: Iterable[str]) -> list[str]:
    """Return the outermost modules of some parameters."""
    return list(dict.fromkeys(name.partition(".")[0] for name in names))
