"""`espnet3 plan CONFIG ...`: how long the runs of a config would take; nothing is started."""

import argparse
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from espnet3.cli.console import UsageError, print_error
from espnet3.cli.plan_report import StagePlan, show
from espnet3.cli.recipe import set_up
from espnet3.cli.recipe_folder import SCRIPT, find_files, recipe_of
from espnet3.cli.recipe_options import Options, is_override
from espnet3.cli.stage_selection import select_stages
from espnet3.errors import EspnetError, suggest
from espnet3.systems.base.known_rate import StatedRate
from espnet3.systems.base.stages import find_stage, stages_of
from espnet3.systems.base.system import BaseSystem
from espnet3.text import on_one_line

_STAGES = {"collect_stats": "training", "infer": "inference"}
"""Stages whose runs can be told beforehand, and the kind of their configs."""
_EPILOG = (
    "The files are merged left to right, as for `espnet3 run --config`. KEY.PATH=VALUE changes a "
    "value, such as parallel.n_workers=32. Without --rtf or --seconds-per-item, the speed is that "
    "of the nearest earlier run of the recipe."
)


def run_line(argv: Sequence[str]) -> int:
    """Tell shards, batches, expected time and cost of each run, and the job script.

    Returns:
        0 if all of it could be told, 1 if a stage could not.

    Raises:
        UsageError: the line is wrong, or the files belong to no recipe.
        ConfigError: the config is wrong.
    """
    overrides = tuple(word for word in argv if is_override(word))
    args = _parser().parse_args([word for word in argv if not is_override(word)])
    recipe_dir, files = _find_recipe(args)
    own_system = _system_of(recipe_dir / SCRIPT)
    sys.dont_write_bytecode = True
    configs = {"training": tuple(args.training_config), "inference": tuple(args.inference_config)}
    for kind in _kinds_of(files, recipe_dir):
        configs[kind] = configs[kind] or files
    names = _choose_stages(args.stages, [kind for kind, given in configs.items() if given])
    options = Options(
        stages=tuple(names),
        configs={kind: given for kind, given in configs.items() if given},
        overrides=overrides,
        dry_run=True,
    )
    selected = select_stages(names, stages_of(BaseSystem), system=own_system.__name__)
    system, _ = set_up(BaseSystem, options, selected, recipe_dir)
    stated = StatedRate(args.rtf, args.seconds_per_item, args.load_seconds)
    return max(_tell(name, system, own_system, stated) for name in names)


def _tell(name: str, system: BaseSystem, own_system: type[BaseSystem], stated: StatedRate) -> int:
    stage = find_stage(stages_of(own_system), name)
    print(f"Stage {stage}: {stage.help}")
    method = getattr(own_system, name)
    if not method.__module__.startswith("espnet3."):
        print(
            f"  note: {method.__qualname__}() is the recipe's own; this is what that of BaseSystem "
            "would do. For what the recipe itself tells: --dry-run"
        )
    try:
        show(StagePlan.of(name, system.config_for(name), stated))
    except (EspnetError, OSError) as error:
        print_error(error)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="espnet3 plan",
        usage="espnet3 plan [RECIPE_DIR] CONFIG ... [KEY.PATH=VALUE ...] [--rtf X]",
        description="Tell how long the runs of a config would take; nothing is started or written.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="CONFIG",
        help="such as conf/inference.yaml conf/parallel_slurm.yaml")  # fmt: skip
    add("--recipe", metavar="DIR", help="the folder of the recipe, if it is not this one")
    for kind in _STAGES.values():
        add(f"--{kind}_config", f"--{kind}-config", nargs="+", action="extend", default=[],
            metavar="FILE", help=f"the {kind} config, merged left to right")  # fmt: skip
    add("--stages", "--stage", nargs="+", action="extend", default=[], metavar="STAGE",
        help=f"only these, of {', '.join(_STAGES)}")  # fmt: skip
    rates = parser.add_mutually_exclusive_group()
    rates.add_argument("--rtf", type=_positive, metavar="X",
        help="seconds of a worker for a second of audio")  # fmt: skip
    rates.add_argument("--seconds-per-item", "--seconds_per_item", type=_positive, metavar="S",
        help="seconds of a worker for an item")  # fmt: skip
    add("--load-seconds", "--load_seconds", type=_positive, metavar="S",
        help="what a worker takes to load its model")  # fmt: skip
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _find_recipe(args: argparse.Namespace) -> tuple[Path, tuple[str, ...]]:
    """Return the folder of the recipe, and the config files that are not of a named kind."""
    words = list(args.words)
    folder = args.recipe
    if folder is None and words and Path(words[0]).is_dir():
        folder = words.pop(0)
    first = next(iter([*words, *args.inference_config, *args.training_config]), None)
    if first is None:
        raise UsageError(
            "no config is given. Write: espnet3 plan conf/inference.yaml conf/parallel_slurm.yaml"
        )
    if folder is None:
        return recipe_of(first), tuple(words)
    if not (Path(folder) / SCRIPT).is_file():
        raise UsageError(f"{on_one_line(folder)} holds no {SCRIPT}, so it is no recipe's folder.")
    return Path(folder).absolute(), tuple(words)


def _kinds_of(files: tuple[str, ...], recipe_dir: Path) -> list[str]:
    """Return what kinds of config the files are: training, inference, or one file for both."""
    if not files:
        return []
    from espnet3.config.load import load_config

    found = find_files(files, Path.cwd(), recipe_dir)
    paths = [str(recipe_dir / file) for file in found]
    loaded = load_config(paths, [], recipe_dir=recipe_dir)
    trains = any(loaded.has(key) for key in ("trainer", "optimizer", "optimizers"))
    infers = loaded.has("dataset.test") or loaded.has("provider") or not trains
    return [kind for kind, is_it in (("training", trains), ("inference", infers)) if is_it]


def _choose_stages(asked: Sequence[str], kinds: Sequence[str]) -> list[str]:
    for name in asked:
        if name not in _STAGES:
            raise UsageError(
                f"espnet3 plan knows nothing of the stage {name!r}.{suggest(name, _STAGES)} It "
                f"plans {' and '.join(_STAGES)}; of others, see run.py --dry-run."
            )
    names = [name for name, kind in _STAGES.items() if kind in kinds and name in (asked or _STAGES)]
    if not names:
        raise UsageError(f"--stages {shlex.join(asked)} needs --{_STAGES[asked[0]]}_config FILE.")
    return names


def _system_of(script: Path) -> type[BaseSystem]:
    """Return the system of a recipe: the most special class of it that its script knows."""
    argv = sys.argv
    sys.path.insert(0, str(script.parent))
    sys.dont_write_bytecode = True
    sys.argv = [str(script)]  # a script without a __main__ guard then only shows its usage
    try:
        names = runpy.run_path(str(script), run_name="espnet3_recipe")
    except SystemExit:
        return BaseSystem
    finally:
        sys.argv = argv
    systems = [v for v in names.values() if isinstance(v, type) and issubclass(v, BaseSystem)]
    return max(systems, key=lambda cls: len(cls.__mro__), default=BaseSystem)
