"""Record of a training, `<exp_dir>/training.json`: the inputs of its weights.

It is written before the first step. Later calls are compared with it before anything else: the
weights of one training are never continued, or shown, as those of another. Changes that were
accepted on the way are in it, with epoch and step.
"""

import json
import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3 import __version__
from espnet3.commands import free_name, recipe_command, same_command
from espnet3.config.fingerprint import diff, same_file
from espnet3.config.sources import names_places
from espnet3.errors import EspnetError, RunFolderError, StaleRunError
from espnet3.io.atomic import write_json
from espnet3.io.shared_files import DamagedFileError, parse_record, read_record
from espnet3.parallel.identity import is_below
from espnet3.systems.base.given_parts import NOTHING_GIVEN, GivenParts
from espnet3.systems.base.training_fingerprint import (
    DEFAULTS,
    TrainingDescription,
    describe_training_run,
    describe_values,
    is_unknown,
)

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

FILE = "training.json"
_CONFIG = "config.yaml"
_VERSION = 1
_WEIGHTS = ("*.ckpt", "*.safetensors")
_OF_DATA = re.compile(r"(dataset\.\w+(?:\.\d+)?)\.(content|n_items|audio)")
_BUILT_ONCE = re.compile(
    r"(optimizer|scheduler)s?(\.\w+\.\w+)?\._target_|optimizers\.\w+\.params.*|freeze(\.\d+)?"
)
"""What the state in a checkpoint belongs to: no new value can take it over."""
_NEEDED = (("model",), ("dataset",), ("optimizer", "optimizers"))
"""Blocks without one of which there is no training."""
_USED, _UNUSED = "is used now", "is not used any more"
_MOST_LINES = 30
_NO_RECORD = "there was no record of data and code before"


@dataclass(frozen=True)
class Acceptance:
    """Changes with which a training continued."""

    time: str
    epoch: int
    """Epochs that were done before."""
    step: int
    """Steps that were done before."""
    changes: list[str]
    """Lines as a refusal has them: `optimizer.lr: 0.1 -> 0.01`."""


@dataclass(frozen=True)
class TrainingRecord:
    """Settings and files that a training depended on at its latest step."""

    fingerprint: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    start: str = ""
    espnet3: str = ""
    accepted: list[Acceptance] = field(default_factory=list)
    before: dict[str, Any] | None = None
    """The record without the last acceptance, which counts until there is a later checkpoint."""
    version: int = _VERSION


@dataclass(frozen=True)
class Comparison:
    """A training that is asked for, beside the one that is there."""

    exp_dir: Path
    described: TrainingDescription
    base: TrainingRecord | None = None
    """What made the weights; None where nothing was trained yet, or it starts from scratch."""
    accepted: tuple[str, ...] = ()
    """Changes since then that the config allows, line by line."""
    on_disk: TrainingRecord | None = None

    def write(self, epoch: int, step: int) -> None:
        """Write the record, as the training continues from here; to be called by the first process.

        Whatever was accepted on the way here stays in it.
        """
        if self.on_disk is not None and self.base is not None:
            known = self.on_disk.accepted[len(self.base.accepted) :]
            if tuple(line for one in known for line in one.changes) == self.accepted:
                return  # it says all this already
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        base = self.base or TrainingRecord({})
        new = Acceptance(now, epoch, step, list(self.accepted))
        record = replace(
            base,
            fingerprint=self.described.fingerprint,
            files=self.described.files(),
            start=base.start or now,
            espnet3=base.espnet3 or __version__,
            accepted=[*base.accepted, *([new] if self.accepted else [])],
            before=asdict(replace(base, before=None)) if self.accepted and base.start else None,
        )
        self.exp_dir.mkdir(parents=True, exist_ok=True)
        write_json(self.exp_dir / FILE, asdict(record))

    def changed_since(self, step: int) -> tuple[str, ...]:
        """Return the keys that were accepted after a checkpoint of this step was written.

        After a kill before the next checkpoint, the record has them and the checkpoint has not.
        """
        known = self.base.accepted if self.base else []
        lines = [line for one in known if one.step >= step for line in one.changes]
        return tuple(dict.fromkeys(_key(line) for line in (*lines, *self.accepted)))


@dataclass(frozen=True)
class _Request:
    """Request of a config to the folder of a training, beside the settings that are compared."""

    exp_dir: Path
    is_used: bool
    """Weights are to be used, and not to be trained further."""
    ckpt_path: str | None
    accept_changes: tuple[str, ...]
    unset: frozenset[str]
    """Those of `DEFAULTS` that the config leaves unsaid."""
    tag: str
    """`exp_tag`, where `exp_dir` follows from it; else empty."""

    @classmethod
    def of(cls, loaded: "LoadedConfig", *, is_used: bool = False) -> "_Request":
        config = loaded.config
        exp_dir = Path(str(config["exp_dir"]))
        fit, accept = config.get("fit"), config.get("accept_changes") or ()
        ckpt_path = fit.get("ckpt_path") if isinstance(fit, Mapping) else None
        # The node before it is resolved: only there it shows whether exp_dir follows from exp_tag.
        follows = "exp_tag" in str(config._get_node("exp_dir"))
        return cls(
            exp_dir,
            is_used,
            str(ckpt_path) if ckpt_path else None,
            (accept,) if isinstance(accept, str) else tuple(map(str, accept)),
            frozenset(key for key in DEFAULTS if not loaded.has(key)),
            str(config.get("exp_tag") or exp_dir.name) if follows else "",
        )

    def another_folder(self) -> str:
        """Return the override that trains elsewhere: of `exp_tag`, unless `exp_dir` is spelt out.

        Its number is the first that is free.
        """
        if not self.tag:
            return f"exp_dir={free_name(self.exp_dir)}"
        free = Path(free_name(self.exp_dir.parent / Path(self.tag).name))
        return f"exp_tag={Path(self.tag).with_name(free.name)}"


def has_weights(exp_dir: Path) -> bool:
    """Tell whether an experiment has checkpoints or averaged weights."""
    return any(next(exp_dir.glob(pattern), None) for pattern in _WEIGHTS)


def compare_training(
    loaded: "LoadedConfig", *, with_inputs: bool = True, given: GivenParts = NOTHING_GIVEN
) -> Comparison:
    """Compare the training that is asked for with the one in `exp_dir`; nothing is written.

    Args:
        loaded: the training config.
        with_inputs: also compare files and data; without, what no stage makes.
        given: model and data that come as objects.

    Raises:
        StaleRunError: Naming each key that differs and was not accepted, and the ways on.
        RunFolderError: The record is damaged.
        EspnetError: A dataset cannot be built.
    """
    request = _Request.of(loaded)
    described = describe_training_run(loaded.plain(), with_inputs=with_inputs, given=given)
    # With nothing trained, or all put aside, only a checkpoint from elsewhere can be in the way.
    if loaded.config.get("resume") == "never" or not has_weights(request.exp_dir):
        return _compare_origin(request, described)
    return _compare(request, described)


def _compare_origin(request: _Request, described: TrainingDescription) -> Comparison:
    """Note what changed since the checkpoint of another training that a new one continues from."""
    folder = Path(request.ckpt_path).parent if request.ckpt_path else None
    record = read_training_record(folder) if folder else None
    if folder is None or record is None:
        return Comparison(request.exp_dir, described)
    changed = _changes(record, described)
    fixed = [line for line in changed if _BUILT_ONCE.fullmatch(_key(line))]
    # State of another optimizer cannot be loaded, so accept_changes is no way around it.
    if fixed:
        raise StaleRunError(_refusal(replace(request, exp_dir=folder), fixed))
    return Comparison(request.exp_dir, described, accepted=tuple(changed))


@names_places
def compare_weights(
    loaded: "LoadedConfig",
    *,
    with_inputs: bool,
    others: Sequence["LoadedConfig"] = (),
) -> None:
    """Refuse weights that another training config made than the one that is given beside them.

    A config with which nothing could be trained, such as one of `exp_tag` and `optimizer` alone,
    says nothing of what it lacks; what it sets is compared.

    Data that cannot be looked at here is left out, with a line: results may well be made where the
    training data is not.

    Args:
        loaded: the training config.
        with_inputs: also compare code, files and data; without, settings only, without imports.
        others: the configs that are given beside it; what the command line adds to these as well
            is meant for them.

    Raises:
        StaleRunError: Naming each key that differs and was not accepted.
    """
    request = _Request.of(loaded, is_used=True)
    if not has_weights(request.exp_dir) or not any(map(loaded.has, ("optimizer", "optimizers"))):
        return
    # Without a record, data and code have nothing to be compared with.
    described = _described_here(loaded.plain(), with_inputs and (request.exp_dir / FILE).exists())
    added = [key for key in described.fingerprint if _is_added(key, loaded, others)]
    _compare(request, described, added)


def _is_added(key: str, loaded: "LoadedConfig", others: Sequence["LoadedConfig"]) -> bool:
    """Tell whether an override set a key in this config and in another one."""
    sources = [one.find_source(key) for one in (loaded, *others)]
    typed = [source is not None and source.file.startswith("command line") for source in sources]
    return typed[0] and any(typed[1:])


def _described_here(values: Mapping[str, Any], with_inputs: bool) -> TrainingDescription:
    if with_inputs:
        try:
            return describe_training_run(values)
        except (EspnetError, OSError) as error:
            logger.info("The training data was not compared with that of the weights: %s", error)
    return TrainingDescription(describe_values(values))


def _compare(
    request: _Request, described: TrainingDescription, added: Sequence[str] = ()
) -> Comparison:
    exp_dir = request.exp_dir
    record = read_training_record(exp_dir)
    base = _of_the_weights(record, request) if record else _from_config(exp_dir)
    if base is None:
        return Comparison(exp_dir, described)
    known = (record or base).fingerprint
    ours = {k: v for k, v in described.fingerprint.items() if k in known or k not in added}
    if request.is_used:
        if not _is_whole(ours):
            ours = {k: v for k, v in ours.items() if k not in request.unset}
        base = replace(base, fingerprint=_limited(base.fingerprint, ours))
        ours = _limited(ours, known)
    described = replace(described, fingerprint=ours)
    if record is None:
        return _compare_values(request, described, base)
    accepted = [line for one in record.accepted[len(base.accepted) :] for line in one.changes]
    changed = _changes(base, described)
    # What was accepted once is not refused again when the same command is repeated.
    new = [line for line in changed if line not in accepted]
    _refuse(request, new)
    if new and not request.is_used:
        logger.warning("Accepted, and written to %s: %s", exp_dir / FILE, "; ".join(new))
    return Comparison(exp_dir, described, base, tuple(changed), record)


def _compare_values(
    request: _Request, described: TrainingDescription, base: TrainingRecord
) -> Comparison:
    """Compare with what a training of an earlier version, without a record, says of itself."""
    changed = _changed_values(base.fingerprint, described.fingerprint)
    _refuse(request, changed)
    if not request.is_used:
        logger.warning(
            "%s was trained before trainings left a record (%s): its settings were compared with "
            "%s, its data and code were not. From now on they are.",
            request.exp_dir, FILE, _CONFIG,
        )  # fmt: skip
    return Comparison(request.exp_dir, described, base, (*changed, _NO_RECORD))


def _is_whole(fingerprint: Mapping[str, Any]) -> bool:
    blocks = {key.partition(".")[0] for key in fingerprint}
    return all(any(name in blocks for name in names) for names in _NEEDED)


def _limited(values: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what another description does not set, if it is not of a whole training."""
    return {key: value for key, value in values.items() if _is_whole(other) or key in other}


def _of_the_weights(record: TrainingRecord, request: _Request) -> TrainingRecord:
    """Return the record without a change that no checkpoint has seen yet: it may be taken back."""
    if record.before is None or not record.accepted:
        return record
    from espnet3.trainer.checkpointing.resume import find_resume_point

    try:
        point = find_resume_point(request.exp_dir, ckpt_path=request.ckpt_path)
    except EspnetError:  # it is damaged, which is no matter where averages are used
        if not request.is_used:
            raise
        return record
    if point is None or point.position.step > record.accepted[-1].step:
        return record
    return parse_record(json.dumps(record.before).encode(), TrainingRecord, request.exp_dir / FILE)


def _refuse(request: _Request, changed: Sequence[str]) -> None:
    refused = [
        line
        for line in changed
        if _BUILT_ONCE.fullmatch(_key(line)) or not is_below(_key(line), request.accept_changes)
    ]
    if refused:
        raise StaleRunError(_refusal(request, refused))


def read_training_record(exp_dir: Path) -> TrainingRecord | None:
    """Return the record of a training, or None if it has none.

    Raises:
        RunFolderError: It is damaged, or of a newer version.
    """
    try:
        record = read_record(exp_dir / FILE, TrainingRecord)
    except DamagedFileError as error:
        raise RunFolderError(
            f"{error} It says what the weights were made of.",
            fix="Put it back from a copy; or remove it "
            f"to compare with {_CONFIG} alone: rm {shlex.quote(str(exp_dir / FILE))}",
        ) from error
    if record is not None and record.version > _VERSION:
        raise RunFolderError(
            f"{exp_dir / FILE} is of version {record.version}, and this ESPnet3 ({__version__}) "
            f"reads up to {_VERSION}.",
            fix=f"Use the ESPnet3 that trained it: {record.espnet3}",
        )
    return record


def _from_config(exp_dir: Path) -> TrainingRecord | None:
    """Return what an experiment without a record says of itself: its settings."""
    from espnet3.config.load import read_values

    file = exp_dir / _CONFIG
    if not file.is_file():
        return None
    return TrainingRecord(describe_values(read_values(file)))


def _changed_values(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    unknown = {key for key, value in old.items() if is_unknown(value)}
    kept = {
        key: value
        for key, value in new.items()
        # An older training has no record of code and data, so their absence is no change.
        if key not in unknown and not key.startswith("code.") and not _OF_DATA.fullmatch(key)
    }
    return diff({key: value for key, value in old.items() if key not in unknown}, kept)


def _changes(record: TrainingRecord, described: TrainingDescription) -> list[str]:
    old, new = record.fingerprint, described.fingerprint
    if described.sets is None:  # files and data may be made by a stage that comes first
        old = {key: value for key, value in old.items() if key in new or not _is_input(key)}
    lines = [_in_words(line, old, new) for line in diff(old, new) if not _is_count(_key(line))]
    if described.sets is not None:  # then files were looked at as well
        lines += _changed_files(record, described)
    # Code that came or went follows from what was set, or from other code.
    followed = [line for line in lines if line.endswith((_USED, _UNUSED))]
    lines = [line for line in lines if line not in followed] or followed
    return sorted(lines, key=lambda line: line.startswith("code."))  # what was set comes first


def _is_input(key: str) -> bool:
    return key.startswith("code.") or _OF_DATA.fullmatch(key) is not None


def _is_count(key: str) -> bool:
    match = _OF_DATA.fullmatch(key)
    return match is not None and match[2] == "n_items"


def _in_words(line: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Say what changed, since two digests mean nothing to a reader."""
    key = _key(line)
    if key.startswith("code."):
        return f"{key}: {_of_code(key in old, key in new)}"
    if key not in old or key not in new:
        return line
    match = _OF_DATA.fullmatch(key)
    if match is None:
        return line
    if match[2] == "audio":
        return f"{key}: the audio files have other content"
    counts = [values.get(f"{match[1]}.n_items", "?") for values in (old, new)]
    return f"{key}: other data ({counts[0]} items then, {counts[1]} now)"


def _of_code(was_used: bool, is_used: bool) -> str:
    if was_used and is_used:
        return "the code changed"
    return _USED if is_used else _UNUSED


def _changed_files(record: TrainingRecord, described: TrainingDescription) -> list[str]:
    lines = []
    for key, old in record.files.items():
        if key not in record.fingerprint:
            continue  # nothing is said of it
        if described.fingerprint.get(key) != record.fingerprint.get(key):
            continue  # another file: a line of its own says so
        path = described.paths.get(key)
        if path is None:
            # Weights to start from are read once.
            if not is_below(key, ("init",)):
                lines.append(f"{key}: the file is gone")
        elif not same_file(old, path):
            lines.append(f"{key}: {path} has other content")
    return lines


def _key(line: str) -> str:
    return line.partition(":")[0]


def _refusal(request: _Request, refused: Sequence[str]) -> str:
    shown, rest = refused[:_MOST_LINES], len(refused) - _MOST_LINES
    more = f"\n  and {rest} more" if rest > 0 else ""
    listing = "\n".join(f"  {line}" for line in shown) + more
    keys = [_key(line) for line in refused]
    if len(refused) > _MOST_LINES:
        keys = list(dict.fromkeys(key.partition(".")[0] for key in keys))
    fixed = [key for key in keys if _BUILT_ONCE.fullmatch(key)]
    accept = same_command(f"accept_changes=[{','.join(key for key in keys if key not in fixed)}]")
    tag, is_used = request.another_folder(), request.is_used
    if is_used:
        ways = (
            "They are not what this config would give. Give the config that they were trained "
            f"with; or train another model:\n  {recipe_command('train', overrides=[tag])}\n"
            f"or take them all the same:\n  {accept}"
        )
    else:
        ways = f"It was not touched. Keep it and train another one:\n  {same_command(tag)}\n"
        ways += f"or put it aside and start over:\n  {same_command('resume=never')}"
        if len(fixed) < len(keys):
            ways += f"\nor continue with the change, which is then recorded:\n  {accept}"
    if fixed and not is_used:
        start = f"init={{path: {request.exp_dir / 'last.ckpt'}}}"
        ways += (
            f"\n{', '.join(fixed)} cannot change in a resumed training; start another one "
            f"from its weights:\n  {same_command(tag, start)}"
        )
    what = "weights of another training" if is_used else "another training"
    return f"{request.exp_dir} holds {what}:\n{listing}\n{ways}"
