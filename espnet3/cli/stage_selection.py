"""Which stages a command line asks for: names, numbers, ranges, `all`; and which may detach."""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet3.cli.console import UsageError
from espnet3.errors import suggest
from espnet3.systems.base.stages import Stage
from espnet3.text import on_one_line
from espnet3.trainer.launching.process_rank import LAUNCHED, ProcessRank

ALL = "all"
_STAGES_OF_ESPNET2 = {
    1: "create_dataset", 5: "train_tokenizer", 7: "train", 10: "collect_stats", 11: "train",
    12: "infer", 13: "measure", 14: "pack_model", 15: "upload_model",
}  # fmt: skip
"""What stages of `asr.sh` are called here; those that are missing are no stages."""
_INSTEAD = {"train": "a training continues alone as a job: espnet3 launch"}


@dataclass(frozen=True)
class Selected:
    """A stage that was asked for, and why it will not run, if so."""

    stage: Stage
    skipped: str = ""
    by_name: bool = True
    """Whether it was named itself, and not only covered by `all` or a range."""


def explain_numbers(first: str, last: str, selected: Sequence[Selected]) -> str:
    """Say which stages two numbers stand for, where ESPnet2's `asr.sh` would run others.

    Args:
        first: as typed behind `--stage`.
        last: as typed behind `--stop_stage`.
        selected: what they mean here.

    Returns:
        An empty string for names, and where both mean the same.
    """
    if not (first.isdigit() and last.isdigit()):
        return ""
    theirs = dict.fromkeys(_STAGES_OF_ESPNET2.get(n) for n in range(int(first), int(last) + 1))
    names = [name for name in theirs if name]
    ours = [choice.stage.name for choice in selected]
    if names == ours:
        return ""
    line = f" For those of ESPnet2's asr.sh, write: --stages {' '.join(names)}" if names else ""
    return (
        f"--stage {first} --stop_stage {last} counts as --list-stages does, and means: "
        f"--stages {' '.join(ours)}.{line}"
    )


def select_stages(
    words: Sequence[str], stages: Sequence[Stage], *, stop: str | None = None, system: str = ""
) -> list[Selected]:
    """Return the stages that the words stand for, each once, in the order of the system.

    A stage that the system does not define is skipped where `all` or a range covers it.

    Args:
        words: such as `6`, `infer`, `4-7`, `train-measure`, `all`.
        stages: those of the system, in order.
        stop: the last stage of a range that begins with the only word.
        system: name of the system's class, for the errors.

    Raises:
        UsageError: a word is no stage, a range runs backwards, or a stage that was asked for by
            name is not defined.
    """
    ranges = [_until(words, stop, stages)] if stop is not None else []
    ranges += [_range(word, stages) for word in ([] if ranges else words)]
    asked = {index for found in ranges for index in found}
    by_name = {found[0] for found in ranges if len(found) == 1}
    selected = []
    for index in sorted(asked):
        stage = stages[index]
        if not stage.is_defined and index in by_name:
            raise UsageError(_undefined(stage, system))
        reason = "" if stage.is_defined else f"{system} has no {stage.name}()"
        selected.append(Selected(stage, reason, index in by_name))
    return selected


def stages_of_rank(selected: Sequence[Selected], rank: ProcessRank) -> Sequence[Selected]:
    """Return the stages that this process runs.

    Raises:
        UsageError: srun or torchrun started a stage in many processes that runs in one.
    """
    running = [entry for entry in selected if not entry.skipped]
    if rank.is_external:
        alone = [entry.stage.name for entry in running if not entry.stage.is_distributed]
        if alone:
            raise UsageError(_not_together(alone, rank))
    if rank.is_first:
        return selected
    launched = os.environ.get(LAUNCHED)
    names = [launched] if launched else [e.stage.name for e in running if e.stage.is_distributed]
    return [entry for entry in running if entry.stage.name in names]


def _not_together(alone: Sequence[str], rank: ProcessRank) -> str:
    return (
        f"{rank.launcher} started {rank.world_size} processes, but {', '.join(alone)} must run in "
        f"one, and does so on its own workers. Run --stages {' '.join(alone)} without "
        f"{rank.launcher}, and only --stages train with it."
    )


def spell_stages(left: Sequence[Stage], stages: Sequence[Stage]) -> list[str]:
    """Return words for some stages in order: one range if nothing lies between them."""
    names = [stage.name for stage in stages]
    asked = [stage.name for stage in left]
    begin, end = names.index(asked[0]), names.index(asked[-1])
    if len(asked) > 1 and names[begin : end + 1] == asked:
        return [f"{asked[0]}-{asked[-1]}"]
    return [stage.name for stage in left if stage.is_defined]


def _undefined(stage: Stage, system: str) -> str:
    return (
        f"{system} has no stage {stage.name!r} of its own: write def {stage.name}(self) in your "
        "system class"
    )


def _until(words: Sequence[str], stop: str, stages: Sequence[Stage]) -> list[int]:
    if len(words) == 1 and _name_of_espnet2(words[0], stages):
        raise UsageError(_unknown(words[0], stages))
    first = _index(words[0], stages) if len(words) == 1 else None
    if first is None:
        raise UsageError(
            f"--stop_stage {stop} needs one stage to begin with.",
            fix="Write: --stage 4 --stop_stage 7, or a range: --stages 4-7",
        )
    return _between(first, _known_index(stop, stages), f"--stage {words[0]} --stop_stage {stop}")


def _range(word: str, stages: Sequence[Stage]) -> list[int]:
    if word == ALL:
        return [index for index, stage in enumerate(stages) if stage.in_all]
    index = _index(word, stages)
    if index is not None:
        return [index]
    for left, right in _splits(word):
        first, last = _index(left, stages), _index(right, stages)
        if first is not None and last is not None:
            return _between(first, last, f"--stages {word}")
    left, _, right = word.partition("-")
    known = [part for part in (left, right) if part and _index(part, stages) is not None]
    unknown = right if known == [left] else left if known == [right] else word
    raise UsageError(_unknown(unknown or word, stages))


def _splits(word: str) -> Iterator[tuple[str, str]]:
    for index, letter in enumerate(word):
        if letter == "-":
            yield word[:index], word[index + 1 :]


def _between(first: int, last: int, spelled: str) -> list[int]:
    if first > last:
        raise UsageError(f"{spelled} runs backwards.", fix="Put the earlier stage first.")
    return list(range(first, last + 1))


def _index(word: str, stages: Sequence[Stage]) -> int | None:
    name = word.replace("-", "_")
    number = int(word) if word.isascii() and word.isdigit() else -1
    found = (i for i, s in enumerate(stages) if s.name == name or s.number == number)
    return next(found, None)


def _known_index(word: str, stages: Sequence[Stage]) -> int:
    index = _index(word, stages)
    if index is None:
        raise UsageError(_unknown(word, stages))
    return index


def _name_of_espnet2(word: str, stages: Sequence[Stage]) -> str | None:
    """Return our name for a number of `asr.sh` that no stage of ours has."""
    if not (word.isascii() and word.isdigit()) or _index(word, stages) is not None:
        return None
    return _STAGES_OF_ESPNET2.get(int(word))


def _unknown(word: str, stages: Sequence[Stage]) -> str:
    hint = suggest(word, [ALL, *(stage.name for stage in stages)])
    if name := _name_of_espnet2(word, stages):
        hint = f" For stage {word} of ESPnet2's asr.sh, write: --stages {name}."
    listed = ", ".join(f"{s.number} {s.name}" if s.number else s.name for s in stages)
    return f"There is no stage {word!r}.{hint} Stages: {listed}; or all."


def check_detach(stages: Sequence[Stage], known: Sequence[Stage]) -> None:
    """Refuse `--detach` before anything starts, unless the first stage can do so.

    Those after it are not run.

    Raises:
        UsageError: with the stages that can.
    """
    able = [position for position, stage in enumerate(stages) if stage.can_detach]
    if not stages or able[:1] == [0]:
        return
    first = stages[0].name
    instead = f"; {_INSTEAD[first]}" if first in _INSTEAD else ""
    if able:
        before = " ".join(stage.name for stage in stages[: able[0]])
        way = f"Run first: --stages {before}, and then: --stages {stages[able[0]].name} --detach"
    else:
        way = f"It is for: {', '.join(stage.name for stage in known if stage.can_detach)}"
    raise UsageError(f"--detach: the stage {first!r} cannot continue alone{instead}. {way}")


def what_comes_after(run_dirs: Sequence[Path], command: Sequence[str]) -> str:
    """Return the line that runs the other stages when the workers of the last one have ended."""
    folders = shlex.join(os.path.relpath(run_dir) for run_dir in run_dirs)
    return on_one_line(f"espnet3 wait {folders} && {shlex.join(command)}")
