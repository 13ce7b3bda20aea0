"""The best checkpoints of each `best_model_criterion`: `best.json`, and averages of them."""

import hashlib
import json
import logging
import math
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning
import torch

from espnet3.commands import recipe_command
from espnet3.errors import ConfigError, RunFolderError, suggest
from espnet3.io.atomic import StrPath, fsync_dir, fsync_file, temp_path, write_json
from espnet3.text import count, first_few
from espnet3.trainer.checkpointing.checkpoint_io import (
    PREFIX,
    explain_trouble,
    read_checkpoint,
    remove_path,
    weights_in,
    write_checkpoint,
)
from espnet3.trainer.config import Criterion

log = logging.getLogger(__name__)

INDEX = "best.json"
LAST = "last.ckpt"
STATE_KEY = "CheckpointKeeper"
"""Under which the list is in the state of the callbacks of a checkpoint."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint and the value of the metric when it was written."""

    file: str
    """Name in the experiment's folder."""
    value: float
    epoch: int
    step: int


class BestCheckpoints:
    """The best K of each criterion so far; says which files to write and which are dropped."""

    def __init__(self, criteria: Iterable[Criterion]) -> None:
        self.lists: dict[Criterion, list[Saved]] = {criterion: [] for criterion in criteria}
        self.kept: list[str] = []  # of earlier settings: ours no longer, and never removed

    def add(self, file: str, values: Mapping[str, float], epoch: int, step: int) -> list[Criterion]:
        """Put a checkpoint in the lists where it belongs, and drop what falls out of them.

        NaN and infinite values never enter. Of equal values the older one stays.

        Returns:
            The criteria of which it is now one of the best; empty: it need not be written.
        """
        entered = []
        for criterion, saved in self.lists.items():
            value = values.get(criterion.monitor)
            if value is None or not math.isfinite(value):
                continue
            # A second save at the same step has the same name, and replaces its entry.
            others = [one for one in saved if one.file != file]
            others.append(Saved(file, float(value), epoch, step))
            # Of equal values the older one: later checkpoints must not displace files that are as
            # good.
            best = sorted(others, key=lambda one: (criterion.rank(one.value), one.step))
            self.lists[criterion] = best[: criterion.k]
            if file in [one.file for one in self.lists[criterion]]:
                entered.append(criterion)
        return entered

    def files(self) -> set[str]:
        """Return the names of all files that must stay."""
        return {one.file for saved in self.lists.values() for one in saved} | set(self.kept)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values: what is in `best.json` and in a checkpoint."""
        criteria = [
            {**asdict(criterion), "checkpoints": [asdict(one) for one in saved]}
            for criterion, saved in self.lists.items()
        ]
        return {"version": 1, "criteria": criteria, "kept": list(self.kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the lists; files of criteria or places that are gone are kept for good."""
        old = _read_lists(state)
        for criterion in self.lists:
            same = [
                s
                for c, s in old.items()
                if (c.monitor, c.mode) == (criterion.monitor, criterion.mode)
            ]
            self.lists[criterion] = same[0][: criterion.k] if same else []
        self.kept = list(state.get("kept", []))
        everything = {one.file for saved in old.values() for one in saved}
        # Never removed: with other criteria, an old best checkpoint is the user's to delete.
        self.kept += sorted(everything - self.files())


def read_index(exp_dir: StrPath) -> dict[Criterion, list[Saved]]:
    """Return the best checkpoints of each criterion, best first, as they are on the disk.

    `best.json` is read, or if it is gone the state in `last.ckpt`.

    Raises:
        RunFolderError: neither is there, or what is there is damaged.
    """
    index, last = Path(exp_dir) / INDEX, Path(exp_dir) / LAST
    if index.is_file():
        try:
            return _read_lists(json.loads(index.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(
                f"{index} is damaged ({error}).", fix=f"Delete it: the list is in {LAST} as well."
            ) from error
    if last.exists():
        # Mapped, since the list is a few lines in a file of gigabytes.
        state = read_checkpoint(last, mmap=True).get("callbacks", {}).get(STATE_KEY)
        if state is not None:
            return _read_lists(state)
    raise RunFolderError(
        f"{exp_dir} has no {INDEX} and no {LAST} with a list of the best checkpoints. "
        f"Train first: {recipe_command('train')}"
    )


def _read_lists(state: Mapping[str, Any]) -> dict[Criterion, list[Saved]]:
    return {
        Criterion(entry["monitor"], entry["k"], entry["mode"]): [
            Saved(**one) for one in entry["checkpoints"]
        ]
        for entry in state["criteria"]
    }


@dataclass(frozen=True)
class Averaged:
    """The files of an average, and what went into it."""

    safetensors: Path
    """Weights under the names of the bare model."""
    checkpoint: Path
    """The same as a Lightning checkpoint, without optimizers."""
    record: Path
    """What was averaged: files, values, steps, sha256, date."""
    sources: tuple[Saved, ...]
    missing: tuple[Saved, ...]
    """Of the best, those whose file is gone."""


def average(exp_dir: StrPath, criterion: Criterion) -> Averaged:
    """Write `<monitor>.ave_<K>best.{safetensors,ckpt,json}`: the mean of the best K checkpoints.

    Floating-point weights are averaged in float64; integer ones, such as the number of batches
    that a normalisation has seen, are those of the newest checkpoint. One checkpoint is read at a
    time. With fewer than K, those that are there are averaged, with a warning.

    Raises:
        RunFolderError: there is none, they are of different models, or the disk is full.
        ConfigError: the training did not keep the best of this metric.
    """
    folder = Path(exp_dir)
    best = _best_of(folder, criterion)
    sources = tuple(one for one in best if (folder / one.file).exists())
    missing = tuple(one for one in best if one not in sources)
    if not sources:
        raise RunFolderError(
            f"No checkpoint is left of the best of {criterion.monitor} in {folder}; "
            f"{INDEX} lists {', '.join(one.file for one in best) or 'none'}. Train again, or put "
            "the files back."
        )
    if len(sources) < criterion.k:
        gone = f" {', '.join(one.file for one in missing)}: gone." if missing else ""
        log.warning(
            "Averaging %s of %s instead of %d: there are no more.%s",
            count(len(sources), "checkpoint"), criterion.monitor, criterion.k, gone,
        )  # fmt: skip
    # Oldest first: integer buffers are those of the file that is read last.
    weights = mean_weights([folder / one.file for one in sorted(sources, key=lambda s: s.step)])
    averaged = Averaged(
        safetensors=folder / f"{criterion.stem}.safetensors",
        checkpoint=folder / f"{criterion.stem}.ckpt",
        record=folder / f"{criterion.stem}.json",
        sources=sources,
        missing=missing,
    )
    _write(averaged, criterion, weights)
    log.info("Averaged %s to %s.", ", ".join(s.file for s in sources), averaged.safetensors)
    return averaged


def average_all(exp_dir: StrPath, criteria: Iterable[Criterion]) -> list[Averaged]:
    """Average the best checkpoints of each criterion; see `average`."""
    return [average(exp_dir, criterion) for criterion in criteria]


def mean_weights(paths: list[Path]) -> dict[str, torch.Tensor]:
    """Return the mean of the weights in checkpoints, oldest first; names of the bare model."""
    sums: dict[str, torch.Tensor] = {}
    newest: dict[str, torch.Tensor] = {}
    for path in paths:
        newest = weights_in(read_checkpoint(path, mmap=True), path)
        if sums:
            _check_same(sums, newest, path, paths[0])
        for name, value in newest.items():
            if _is_averaged(value):
                kind = torch.complex128 if value.is_complex() else torch.float64
                # A float64 tensor would otherwise be summed up in place, in the checkpoint itself.
                wide = value.to(kind, copy=True)
                sums[name] = sums[name].add_(wide) if name in sums else wide
            else:
                # A clone, so that the mapping of the file can be released.
                sums[name] = value.clone()
    return {
        name: total.div_(len(paths)).to(newest[name].dtype) if _is_averaged(total) else total
        for name, total in sums.items()
    }


def _best_of(folder: Path, criterion: Criterion) -> list[Saved]:
    lists = read_index(folder)
    for kept, saved in lists.items():
        # K may differ: stage 5 averages again with another number.
        if (kept.monitor, kept.mode) == (criterion.monitor, criterion.mode):
            return saved[: criterion.k]
    known = [f"[{c.monitor}, {c.k}, {c.mode}]" for c in lists]
    hint = suggest(criterion.monitor, [c.monitor for c in lists])
    raise ConfigError(
        f"{folder} has no list of the best of {criterion}: the training kept "
        f"{', '.join(known) or 'only the last checkpoint'}.{hint} Write one of these in "
        "best_model_criterion, or train with "
        f"best_model_criterion: [[{criterion.monitor}, {criterion.k}, {criterion.mode}]]"
    )


def _is_averaged(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _check_same(
    sums: dict[str, torch.Tensor], weights: dict[str, torch.Tensor], path: Path, first: Path
) -> None:
    names = sorted(
        {n for n in sums.keys() | weights.keys() if n not in sums or n not in weights}
        | {n for n in sums.keys() & weights.keys() if sums[n].shape != weights[n].shape}
    )
    if names:
        raise RunFolderError(
            f"{path.name} and {first.name} in {path.parent} are of different models: "
            f"{first_few(names, 5)} differ. Move those of the old model "
            "away, or train from scratch with resume: never."
        )


def _write(averaged: Averaged, criterion: Criterion, weights: dict[str, torch.Tensor]) -> None:
    newest = max(averaged.sources, key=lambda one: one.step)
    with explain_trouble(averaged.safetensors, weights):
        _write_safetensors(weights, averaged.safetensors)
    checkpoint = {
        "state_dict": {PREFIX + name: value for name, value in weights.items()},
        "epoch": newest.epoch,
        "global_step": newest.step,
        "pytorch-lightning_version": lightning.__version__,
    }
    write_checkpoint(checkpoint, averaged.checkpoint)
    with explain_trouble(averaged.record):
        write_json(averaged.record, _record(averaged, criterion))


def _write_safetensors(weights: dict[str, torch.Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    temp = temp_path(str(path))
    Path(temp).touch()  # for the permissions that are usual here: `save_file` makes it private
    permissions = stat.S_IMODE(os.stat(temp).st_mode)
    # Tied weights were summed one by one, so no two tensors share their memory.
    plain = {name: value.contiguous() for name, value in weights.items()}
    try:
        save_file(plain, temp, metadata={"format": "pt"})
        os.chmod(temp, permissions)
        fsync_file(temp)
        os.replace(temp, path)
    except SafetensorError as error:
        remove_path(temp)
        # An OSError, so that `explain_trouble` recognises a full disk.
        raise OSError(*_os_error(error)) from error
    except BaseException:
        remove_path(temp)
        raise
    fsync_dir(path.parent)


def _os_error(error: Exception) -> tuple[int, str]:
    # It is written by Rust, which names the number of the error only in its text.
    text = str(error)
    for number in range(1, 134):
        if f"(os error {number})" in text:
            return number, os.strerror(number)
    return 5, text  # EIO


def _record(averaged: Averaged, criterion: Criterion) -> dict[str, Any]:
    folder = averaged.record.parent
    return {
        "criterion": asdict(criterion),
        "n_averaged": len(averaged.sources),
        "averaged": [
            {**asdict(one), "sha256": sha256(folder / one.file)} for one in averaged.sources
        ],
        "missing": [asdict(one) for one in averaged.missing],
        "files": {p.name: sha256(p) for p in (averaged.safetensors, averaged.checkpoint)},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"torch": str(torch.__version__), "lightning": lightning.__version__},
    }


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
