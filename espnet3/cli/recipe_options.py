"""The command line of a recipe: options for stages and configs, and overrides among them."""

import argparse
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.cli.console import UsageError
from espnet3.cli.stage_selection import select_stages
from espnet3.config.own_keys import OWN
from espnet3.config.ways import Has
from espnet3.errors import suggest
from espnet3.systems.base.context import DEFAULTS, SHARED
from espnet3.systems.base.stages import KINDS, Stage

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


@dataclass(frozen=True)
class Options:
    """What was typed."""

    stages: tuple[str, ...] = ()
    stop_stage: str | None = None
    config: tuple[str, ...] = ()
    configs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Files by kind, for those that were given."""
    overrides: tuple[str, ...] = ()
    dry_run: bool = False
    detach: bool = False
    list_stages: bool = False
    words: tuple[str, ...] = ()
    """As they were typed, for lines to type."""

    def command_with(self, argument: str) -> str:
        """Return the line that was typed, with another argument."""
        return f"{self.command_of(self.words)} {argument}"

    def command_of(self, words: Sequence[str]) -> str:
        """Return the line that calls this program with other words."""
        return shlex.join([*program_words(self.words), *words])

    def without(self, overrides: Collection[str]) -> "Options":
        """Return the same without some of the overrides."""
        return replace(self, overrides=tuple(o for o in self.overrides if o not in overrides))

    def arguments(self, stages: Sequence[str]) -> list[str]:
        """Return the arguments that run these stages with the same configs and overrides."""
        files = {"config": self.config, **{f"{k}_config": v for k, v in self.configs.items()}}
        given = [(f"--{name}", *paths) for name, paths in files.items() if paths]
        words = [word for option in given for word in option]
        return ["--stages", *stages, *words, *self.overrides]


def parse_options(argv: Sequence[str], stages: Sequence[Stage], *, prog: str) -> Options:
    """Parse a command line; overrides (`key.path=value`) may stand anywhere on it.

    Raises:
        UsageError: a word is neither option nor value.
        SystemExit: from argparse, after `--help` and after a missing value.
    """
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
        words=tuple(argv),
    )


def is_override(word: str) -> bool:
    """Tell an override from an option, and from a file such as `conf/beam=8.yaml`."""
    return _OVERRIDE.match(word) is not None


def make_parser(stages: Sequence[Stage], *, prog: str) -> argparse.ArgumentParser:
    """Return the parser, whose help lists the stages."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} --stages STAGE ... [--config FILE ...] [KEY.PATH=VALUE ...] [--dry-run]",
        description="Run stages of a recipe.",
        epilog=f"stages:\n{list_stages(stages)}\n\nKEY.PATH=VALUE changes a value of all configs, "
        "such as parallel.n_workers=4.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
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
        return f"{word!r} stands alone. To run that stage, write: --stages {word}"
    return (
        f"{word!r} is neither an option nor an override. Write: --stages STAGE, --config FILE, "
        "or KEY.PATH=VALUE"
    )


def _explain_option(stray: Sequence[str], asked: Sequence[str], has: Has | None) -> str:
    """Say what stands for `--nj 8`, as one writes it in shell recipes of ESPnet2."""
    name, equals, value = stray[0].partition("=")
    if not equals and len(stray) > 1 and not stray[1].startswith("-"):
        value = stray[1]
    key = name.lstrip("-")
    answer = f"There is no option {name}."
    if "." in key and value:
        return f"{answer} An override has no dashes: {shlex.quote(f'{key}={value}')}"
    known = ["--help", "--stages", "--stage", "--stop_stage", "--config", "--dry-run"]
    known += ["--detach", "--list-stages", *(f"--{kind}_config" for kind in KINDS)]
    advice = _advice(key, value, asked, has)
    if advice is not None:
        words = advice.override()
        return f"{answer} {advice.why}{' Write: ' * bool(words)}{words}".replace("  ", " ")
    if key in OWN[""] or key in DEFAULTS or key in SHARED:
        return f"{answer} An override has no dashes: {shlex.quote(f'{key}={value}')}"
    return f"{answer}{suggest(name, known)} For all of them: --help"


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
