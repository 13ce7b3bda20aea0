"""Which stages a command line asks for: names, numbers, ranges, `all`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from espnet3.cli.console import UsageError
from espnet3.errors import suggest
from espnet3.systems.base.stages import Stage

ALL = "all"
_OF_ESPNET2 = {
    "11": "train",
    "12": "infer",
    "13": "measure",
    "14": "pack_model",
    "15": "upload_model",
}
"""Numbers of `asr.sh` that no stage of ours has."""


@dataclass(frozen=True)
class Selected:
    """A stage that was asked for, and why it will not run, if so."""

    stage: Stage
    skipped: str = ""
    by_name: bool = True
    """Whether it was named itself, and not only covered by `all` or a range."""


_NUMBERS_OF_ESPNET2 = {
    1: "create_dataset", 5: "train_tokenizer", 7: "train", 10: "collect_stats", 11: "train",
    12: "infer", 13: "measure", 14: "pack_model", 15: "upload_model",
}  # fmt: skip
"""What stages of `asr.sh` are called here; those that are missing are no stages."""


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
    theirs = dict.fromkeys(_NUMBERS_OF_ESPNET2.get(n) for n in range(int(first), int(last) + 1))
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
    if len(words) == 1 and words[0] in _OF_ESPNET2:
        raise UsageError(_unknown(words[0], stages))
    first = _index(words[0], stages) if len(words) == 1 else None
    if first is None:
        raise UsageError(
            f"--stop_stage {stop} needs one stage to begin with. Write: --stage 4 --stop_stage 7, "
            "or a range: --stages 4-7"
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
        raise UsageError(f"{spelled} runs backwards. Put the earlier stage first.")
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


def _unknown(word: str, stages: Sequence[Stage]) -> str:
    hint = suggest(word, [ALL, *(stage.name for stage in stages)])
    if word in _OF_ESPNET2:
        hint = f" For stage {word} of ESPnet2's asr.sh, write: --stages {_OF_ESPNET2[word]}."
    listed = ", ".join(f"{s.number} {s.name}" if s.number else s.name for s in stages)
    return f"There is no stage {word!r}.{hint} Stages: {listed}; or all."
