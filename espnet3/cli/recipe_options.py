"""The command line of a recipe: options, overrides among them, and which stages they ask for.

Stages are names, numbers, ranges such as `4-7`, or `all`.
"""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.cli.console import UsageError
from espnet3.commands import corrected_command
from espnet3.config.known_keys import OWN
from espnet3.config.value_translations import Has
from espnet3.errors import closest, suggest
from espnet3.systems.base.context import DEFAULTS, SHARED
from espnet3.systems.base.stages import KINDS, Stage
from espnet3.text import on_one_line
from espnet3.trainer.launching.process_rank import LAUNCHED, ProcessRank

if TYPE_CHECKING:
    from espnet3.config.advice import Advice

_OVERRIDE = re.compile(r"[+~]*[^-/=\s][^/=\s]*=")
_HELP = {
    "training": "for stages 1 to 5; what it says of folders holds for the other configs as well",
    "inference": "for infer",
    "metrics": "for measure and report",
    "publication": "for pack_model and upload_model",
    "demo": "for pack_demo and upload_demo",
}


ALL = "all"
_STAGES_OF_ESPNET2 = {
    1: "create_dataset", 5: "train_tokenizer", 7: "train", 10: "collect_stats", 11: "train",
    12: "infer", 13: "measure", 14: "pack_model", 15: "upload_model",
}  # fmt: skip
"""Our stage for each stage of `asr.sh`; those that are missing have none."""
_INSTEAD = {"train": "a training continues alone as a job: espnet3 launch"}


@dataclass(frozen=True)
class Options:
    """Parsed command line of a recipe."""

    stages: tuple[str, ...] = ()
    stop_stage: str | None = None
    config: tuple[str, ...] = ()
    configs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Files by kind, for those that were given."""
    overrides: tuple[str, ...] = ()
    dry_run: bool = False
    detach: bool = False
    list_stages: bool = False
    best: tuple[str, ...] = ()
    """The score that compares the values of a sweep: `valid/wer`, or that and `min` or `max`."""
    words: tuple[str, ...] = ()
    """As they were typed, for lines to type."""

    def command_with(self, argument: str) -> str:
        """Return the line that was typed, with another argument."""
        return f"{self.command_of(self.words)} {argument}"

    def command_of(self, words: Sequence[str]) -> str:
        """Return the line that calls this program with other words."""
        return shlex.join([*program_words(self.words), *words])


def parse_options(argv: Sequence[str], stages: Sequence[Stage], *, prog: str) -> Options:
    """Parse a command line; overrides (`key.path=value`) may stand anywhere on it.

    Raises:
        UsageError: a word is neither option nor value.
        SystemExit: from argparse, after `--help` and after a missing value.
    """
    # Taken out before argparse, to which they would be further values of the option before them.
    overrides = tuple(word for word in argv if is_override(word))
    rest = [word for word in argv if not is_override(word)]
    parser = make_parser(stages, prog=prog)
    args, stray = parser.parse_known_args(rest)
    if stray:
        raise UsageError(_explain_stray(stray, stages, args))
    configs = {kind: tuple(getattr(args, f"{kind}_config")) for kind in KINDS}
    return Options(
        stages=tuple(args.stages),
        stop_stage=args.stop_stage,
        config=tuple(args.config),
        configs={kind: files for kind, files in configs.items() if files},
        overrides=overrides,
        dry_run=args.dry_run,
        detach=args.detach,
        list_stages=args.list_stages,
        best=tuple(args.best),
        words=tuple(argv),
    )


def is_override(word: str) -> bool:
    """Tell an override from an option, and from a file such as `conf/beam=8.yaml`."""
    return _OVERRIDE.match(word) is not None


def parse_line(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """Parse the line of a verb, and return its overrides, which may stand anywhere on it."""
    overrides = tuple(word for word in argv if is_override(word))
    return parser.parse_args([word for word in argv if not is_override(word)]), overrides


def make_parser(stages: Sequence[Stage], *, prog: str) -> argparse.ArgumentParser:
    """Return the parser, whose help lists the stages."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} --stages STAGE ... [--config FILE ...] [KEY.PATH=VALUE ...] [--dry-run]",
        description="Run stages of a recipe.",
        epilog=f"stages:\n{list_stages(stages)}\n\nKEY.PATH=VALUE changes a value of all configs, "
        "such as parallel.n_workers=4.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # or --stop would pass for --stop_stage
    )
    add = parser.add_argument
    add("--stages", "--stage", nargs="+", action="extend", default=[], metavar="STAGE",
        help="names, numbers, ranges such as 4-7 or train-measure, or all")  # fmt: skip
    add("--stop_stage", "--stop-stage", metavar="STAGE",
        help="the last stage, if --stage is the first")  # fmt: skip
    _add_files(parser, "config", "for the stages that have no config of their own, merged in order")
    for kind in KINDS:
        _add_files(parser, f"{kind}_config", _HELP[kind])
    add("--dry-run", "--dry_run", action="store_true", help="say what would be done, and end")
    add("--detach", action="store_true",
        help="leave the work of a stage to workers that continue without this program")  # fmt: skip
    add("--best", nargs="+", default=[], metavar=("SET/METRIC", "min|max"),
        help="try each of the values KEY.PATH=[A,B,C] of the model on a set, and decode the test "
        "sets with the best")  # fmt: skip
    add("--list-stages", "--list_stages", action="store_true", help="list the stages, and end")
    return parser


def _add_files(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    spellings = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
    parser.add_argument(
        *spellings, dest=name, nargs="+", action="extend", default=[], metavar="FILE", help=text
    )


def list_stages(stages: Sequence[Stage]) -> str:
    """Return a line for each stage: number, name, what it does, which config it reads."""
    width = max(len(stage.name) for stage in stages)
    lines = []
    for stage in stages:
        number = "" if stage.number is None else str(stage.number)
        missing = "" if stage.is_defined else " - not in this system"
        options = " or ".join(f"--{kind}_config" for kind in stage.configs)
        lines.append(f"  {number:>2}  {stage.name:{width}}  {stage.help} ({options}){missing}")
    return "\n".join(lines)


def _explain_stray(stray: Sequence[str], stages: Sequence[Stage], args: argparse.Namespace) -> str:
    word = stray[0]
    if word.startswith("-"):
        return _explain_option(stray, _names_of(args.stages, stages), _keys_of(args))
    if any(word in (stage.name, str(stage.number)) for stage in stages):
        line = _instead([word], ["--stages", word])
        return f"{word!r} stands alone. To run that stage, write: {line}"
    return (
        f"{word!r} is neither an option nor an override. Write: --stages STAGE, --config FILE, "
        "or KEY.PATH=VALUE"
    )


def _explain_option(stray: Sequence[str], asked: Sequence[str], has: Has | None) -> str:
    """Say what stands for `--nj 8`, as one writes it in shell recipes of ESPnet2."""
    name, equals, value = stray[0].partition("=")
    wrong = [stray[0]]
    if not equals and len(stray) > 1 and not stray[1].startswith("-"):
        value = stray[1]
        wrong.append(value)
    key = name.lstrip("-")
    answer = f"There is no option {name}."
    if "." in key and value:
        return f"{answer} An override has no dashes: {_instead(wrong, [f'{key}={value}'])}"
    known = ["--help", "--stages", "--stage", "--stop_stage", "--config", "--dry-run"]
    known += ["--detach", "--best", "--list-stages", *(f"--{kind}_config" for kind in KINDS)]
    advice = _advice(key, value, asked, has)
    if advice is not None:
        words = _instead(wrong, advice.overrides()) if advice.overrides() else ""
        return f"{answer} {advice.why}{' Write: ' * bool(words)}{words}".replace("  ", " ")
    if key in OWN[""] or key in DEFAULTS or key in SHARED:
        return f"{answer} An override has no dashes: {_instead(wrong, [f'{key}={value}'])}"
    close = closest(name, known)
    write = f" Write: {line}" if close and (line := corrected_command([name], [close])) else ""
    return f"{answer}{suggest(name, known)} For all of them: --help{write}"


def _instead(wrong: Sequence[str], right: Sequence[str]) -> str:
    """Return the line that was typed with other words; these alone if it is not known."""
    return corrected_command(wrong, right) or shlex.join(right)


def _advice(key: str, value: str, asked: Sequence[str], has: Has | None) -> "Advice | None":
    from espnet3.config.advice import advise
    from espnet3.config.load import parse_override
    from espnet3.errors import ConfigError

    try:
        parsed = parse_override(f"{key}={value}").value
    except ConfigError:
        parsed = value
    return advise((key,), parsed, asked, has=has)


def _keys_of(args: argparse.Namespace) -> Has | None:
    """Return a test for the keys of the configs that were named, as far as they can be read."""
    from espnet3.config.load import load_config
    from espnet3.errors import ConfigError

    options = ("config", *(f"{kind}_config" for kind in KINDS))
    files = [file for name in options for file in getattr(args, name)]
    try:
        return load_config(files).has if files else None
    except ConfigError:  # reported once the options are right
        return None


def _names_of(asked: Sequence[str], stages: Sequence[Stage]) -> list[str]:
    try:
        return [selected.stage.name for selected in select_stages(asked, stages)]
    except UsageError:  # reported once the options are right
        return list(asked)


def program_words(argv: Sequence[str]) -> list[str]:
    """Return what stands before `argv` on the command line, such as `python run.py`.

    Args:
        argv: the last arguments of the program; if they are not, the usual call is returned.
    """
    typed = list(sys.orig_argv)
    n_before = len(typed) - len(argv)
    if n_before < 2 or typed[n_before:] != list(argv) or typed[1] == "-c":
        return ["python", "run.py"]
    words = [Path(typed[0]).name, *typed[1:n_before]]
    # An installed command is a script with the path of its interpreter.
    return ["espnet3", *words[2:]] if Path(words[1]).name == "espnet3" else words


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
    # Lightning starts the whole command again for each rank, which must not repeat other stages.
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
    # Names may be typed with dashes too, so each dash may be that of the range.
    for index, letter in enumerate(word):
        if letter == "-":
            yield word[:index], word[index + 1 :]


def _between(first: int, last: int, spelled: str) -> list[int]:
    if first > last:
        raise UsageError(f"{spelled} runs backwards.", fix="Put the earlier stage first.")
    return list(range(first, last + 1))


def _index(word: str, stages: Sequence[Stage]) -> int | None:
    name = word.replace("-", "_")
    # `isdigit` also accepts characters such as a superscript 2, for which `int` raises.
    number = int(word) if word.isascii() and word.isdigit() else -1
    found = (i for i, s in enumerate(stages) if s.name == name or s.number == number)
    return next(found, None)


def _several_or_a_file(word: str, stages: Sequence[Stage]) -> str:
    """Return what is wrong with stages in one word, or with a config among them."""
    parts = word.replace(",", " ").split()
    if len(parts) > 1 and all(_index(part, stages) is not None for part in parts):
        line = corrected_command([word], parts)
        write = f" Write: {line}" if line else f" Write: --stages {' '.join(parts)}"
        return f"--stages has {word!r} as one word, but each stage is a word of its own.{write}"
    if word.endswith((".yaml", ".yml")):
        line = corrected_command([word], ["--config", word])
        write = f" Write: {line}" if line else f" Write: --config {word}"
        return f"{word} stands among the stages, but is a config.{write}"
    return ""


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
    if told := _several_or_a_file(word, stages):
        return told
    hint = suggest(word, [ALL, *(stage.name for stage in stages)])
    name = _name_of_espnet2(word, stages)
    if name:
        hint = f" For stage {word} of ESPnet2's asr.sh, write: --stages {name}."
    listed = ", ".join(f"{s.number} {s.name}" if s.number else s.name for s in stages)
    close = name or closest(word, [ALL, *(stage.name for stage in stages)])
    line = corrected_command([word], [close]) if close else ""
    write = f" Write: {line}" if line else ""
    return f"There is no stage {word!r}.{hint} Stages: {listed}; or all.{write}"


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
