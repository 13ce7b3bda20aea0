"""`init`: start from the weights of another model, whole or by parts, and say what was loaded."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from espnet3.config.schema import FrozenConfig, validate
from espnet3.config.sources import join_key, set_in
from espnet3.errors import ConfigError, RunFolderError, suggest
from espnet3.trainer.checkpointing.weights import load_weights

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

log = logging.getLogger(__name__)

KEY = "init"
_MOST_GROUPS = 8


class InitConfig(FrozenConfig):
    """One file to start from."""

    path: str
    """`.safetensors`, `.ckpt`, or a `state_dict` saved by torch."""
    source: str = Field("", alias="from")
    """Take only the weights below this prefix, such as `encoder`; it is cut off."""
    to: str = ""
    """Put them below this prefix of the model."""
    exclude: tuple[str, ...] = ()
    """Names in the model, prefixes or patterns (`decoder.*.bias`), to leave as they are."""
    strict: bool = False
    """Whether anything missing, unexpected or of another shape is an error."""


@dataclass
class InitReport:
    """What became of each weight, by the names in the model."""

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
        """Whether file and model fit without a rest."""
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


def parse_init(value: Any, loaded: "LoadedConfig | None" = None) -> tuple[InitConfig, ...]:
    """Read `init`: a path, a mapping, or a list of these; None means nothing.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    if value is None:
        return ()
    many = isinstance(value, list | tuple)
    entries = []
    for index, entry in enumerate(value if many else [value]):
        key = join_key(KEY, index) if many else KEY
        plain = {"path": entry} if isinstance(entry, str) else entry
        if not isinstance(plain, Mapping):
            raise ConfigError(
                f"{key} is {entry!r}{set_in(key, loaded)}, no file. Write: "
                "init: {path: exp/other/valid.loss.ave_3best.safetensors}"
            )
        entries.append(validate(InitConfig, plain, prefix=key, loaded=loaded))
    return tuple(entries)


def check_files(entries: Sequence[InitConfig], loaded: "LoadedConfig | None" = None) -> None:
    """See to it that the files are there, before anything is built for them.

    Raises:
        ConfigError: naming the one that is not, and its place.
    """
    for index, entry in enumerate(entries):
        if not Path(entry.path).exists():
            raise ConfigError(
                f"{_called(entry, index, loaded)}, which does not exist. Correct the path; it "
                "counts from the recipe's folder."
            )


def load_initial_weights(
    model: torch.nn.Module, entries: Sequence[InitConfig], loaded: "LoadedConfig | None" = None
) -> list[InitReport]:
    """Copy weights into the model, file after file, and log a report for each.

    Args:
        model: is changed.
        entries: in this order.
        loaded: where they come from, so that errors name file and line.

    Raises:
        ConfigError: a file is missing or damaged, nothing fits, or with `strict` not everything.
            The model may then hold a part.
    """
    check_files(entries, loaded)
    reports = []
    for index, entry in enumerate(entries):
        try:
            weights = load_weights(entry.path)
        except RunFolderError as error:
            raise ConfigError(_unreadable(_called(entry, index, loaded), error)) from error
        report = _copy(weights, model, entry)
        log.info("%s", report)
        if not report.loaded:
            raise ConfigError(_nothing_fits(report, entry, model))
        if entry.strict and not report.is_whole:
            raise ConfigError(
                f"{report}\nNot everything fits, and init says strict: true. Set exclude to leave "
                "parts as they are, from and to for other names, or strict: false."
            )
        reports.append(report)
    return reports


def _called(entry: InitConfig, index: int, loaded: "LoadedConfig | None") -> str:
    value = None if loaded is None else loaded.config.get(KEY)
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    key = join_key(KEY, index, "path") if is_list else join_key(KEY, "path")
    return f"{key} is {entry.path!r}{set_in(key, loaded)}"


def _unreadable(called: str, error: RunFolderError) -> str:
    if isinstance(error.__cause__, Exception) and "Python objects" not in str(error):
        # What it says of resuming is of no use here.
        reason = " ".join(str(error.__cause__).split())[:200]
        return (
            f"{called}, which is damaged, or holds no weights ({reason}). Give a .safetensors "
            "file, a checkpoint of a training, or what torch.save(model.state_dict(), path) wrote."
        )
    return f"{called}. {error}"


def _copy(
    tensors: dict[str, torch.Tensor], model: torch.nn.Module, entry: InitConfig
) -> InitReport:
    report = InitReport(entry.path)
    weights = _renamed(tensors, entry)
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
    model.load_state_dict(chosen, strict=False)
    return report


def _renamed(weights: dict[str, torch.Tensor], entry: InitConfig) -> dict[str, torch.Tensor]:
    source, target = entry.source.rstrip("."), entry.to.rstrip(".")
    taken = {n: v for n, v in weights.items() if _is_below(n, source)}
    if not taken:
        prefixes = sorted({name.partition(".")[0] for name in weights})
        raise ConfigError(
            f"{KEY}: {entry.path} has no weights below from: {entry.source}."
            f"{suggest(entry.source, prefixes)} It has: {', '.join(prefixes[:20])}."
        )
    cut = len(source) + 1 if source else 0
    return {(f"{target}." if target else "") + name[cut:]: v for name, v in taken.items()}


def _is_below(name: str, prefix: str) -> bool:
    prefix = prefix.rstrip(".")
    return not prefix or name == prefix or name.startswith(f"{prefix}.")


def _is_excluded(name: str, patterns: Iterable[str]) -> bool:
    return any(_is_below(name, pattern) or fnmatchcase(name, pattern) for pattern in patterns)


def _nothing_fits(report: InitReport, entry: InitConfig, model: torch.nn.Module) -> str:
    theirs = [*report.unexpected, *report.reshaped]
    return (
        f"{report}\nNothing of {entry.path} fits {type(model).__name__}. Names in the file: "
        f"{', '.join(theirs[:3]) or 'none'}; in the model: {', '.join(report.missing[:3]) or '-'}. "
        "Say which part goes where: init: {path: ..., from: PREFIX_IN_FILE, to: PREFIX_IN_MODEL}"
    )


def _groups(title: str, names: list[str]) -> list[str]:
    counts = Counter(_group(name) for name in names)
    return _listing(title, [_counted(group, n) for group, n in counts.items()], len(names))


def _group(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _counted(group: str, n: int) -> str:
    return group if n == 1 else f"{group}.* ({n})"


def _listing(title: str, items: list[str], n: int | None = None) -> list[str]:
    if not items:
        return []
    rest = len(items) - _MOST_GROUPS
    more = f", and {rest} more" if rest > 0 else ""
    return [f"  {n or len(items)} {title}: {', '.join(items[:_MOST_GROUPS])}{more}"]
