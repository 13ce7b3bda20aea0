"""Entry points of a recipe: its `run.py`, and `espnet3 run` from any folder.

Nothing heavy is imported before the command line is known to be right.
"""

import logging
import os
import runpy
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.cli.console import UsageError, guarded
from espnet3.cli.recipe_configs import (
    SCRIPT,
    RawLine,
    SweepLine,
    TypedLine,
    assign_configs,
    check_given,
    check_kinds,
    enter_recipe,
    find_files,
    find_recipe_dir,
    skip_ungiven,
    skip_unneeded,
    stages_to_run,
)
from espnet3.cli.recipe_options import (
    Options,
    Selected,
    check_detach,
    explain_numbers,
    is_override,
    list_stages,
    make_parser,
    parse_options,
    program_words,
    select_stages,
    stages_of_rank,
)
from espnet3.commands import use_line
from espnet3.memory import rare_collections
from espnet3.systems.base.context import Configs
from espnet3.systems.base.stages import find_config, stages_of
from espnet3.systems.base.system import BaseSystem
from espnet3.text import on_one_line
from espnet3.trainer.launching.process_rank import LAUNCHED, ProcessRank, process_rank

if TYPE_CHECKING:
    from espnet3.systems.base.stages import Invocation


logger = logging.getLogger(__name__)
_START = "ESPNET3_START_DIR"

FIRST_REPORTS_SECONDS = 20.0
"""How long the other processes of a wrong call wait for the first to report what is wrong."""


def run_recipe(
    system: type[BaseSystem],
    argv: Sequence[str] | None = None,
    *,
    recipe_dir: str | Path | None = None,
) -> int:
    """Run the stages that a command line asks for.

    The process changes into the folder of the recipe, and imports from there.

    Args:
        system: the class whose methods are the stages.
        argv: the arguments; those of the program if None.
        recipe_dir: the folder of the recipe; that of the script that runs if None.

    Returns:
        The exit code: 0 if all went well, 1 after an error, 2 for a wrong call, 130 after Ctrl-C,
        143 after SIGTERM.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _remember_start()
    folder = find_recipe_dir() if recipe_dir is None else Path(os.path.abspath(recipe_dir))

    def run() -> int:
        with use_line(RawLine(program_words(arguments), arguments)):
            return _run(system, arguments, folder)

    return guarded(run)


def _remember_start() -> None:
    """Note the folder that the command was typed in, before the recipe's folder is entered.

    Lightning repeats the command from the folder of the recipe, where relative paths lead nowhere.
    A process that it started goes back to where the command was typed.
    """
    if LAUNCHED in os.environ and _START in os.environ:
        os.chdir(os.environ[_START])
    else:
        os.environ[_START] = os.getcwd()
    if os.path.exists(sys.argv[0]):
        sys.argv[0] = os.path.abspath(sys.argv[0])


def _run(system: type[BaseSystem], argv: Sequence[str], recipe_dir: Path) -> int:
    stages = stages_of(system)
    program = program_words(argv)
    options = parse_options(argv, stages, prog=shlex.join(program))
    if options.list_stages:
        print(list_stages(stages))
        return 0
    if not options.stages:
        print(make_parser(stages, prog=shlex.join(program)).format_usage(), end="")
        print(f"\nstages:\n{list_stages(stages)}", flush=True)
        if argv:
            raise UsageError("No stage is given.", fix="Write, for example: --stages infer measure")
        return 0
    selected: Sequence[Selected] = select_stages(
        options.stages, stages, stop=options.stop_stage, system=system.__name__
    )
    rank = process_rank()
    if options.stop_stage is not None and rank.is_first:
        _explain_numbers_of_espnet2(options, selected)
    selected = _stages_of_rank(selected, rank)
    # Before `set_up`, which changes the folder.
    working_dir = os.path.relpath(Path.cwd(), recipe_dir)
    make_line = SweepLine if options.best else TypedLine
    line = make_line(
        system, options, program, stages_to_run(selected), recipe_dir, start_dir=Path.cwd()
    )
    with use_line(line):
        return _run_selected(line, selected, working_dir)


def _run_selected(line: TypedLine, selected: Sequence[Selected], working_dir: str) -> int:
    options, rank = line.options, process_rank()
    if options.best:
        from espnet3.cli.sweep import run_sweep

        return run_sweep(line, selected, _invocation(line, working_dir))
    line.instance, selected = set_up(line.system, options, selected, line.recipe_dir)
    from espnet3.cli.stage_loop import StageLoop, print_plan, run_rank

    if options.dry_run:
        print_plan(line.instance, selected)
        return 0
    invocation = _invocation(line, working_dir)
    if not rank.is_first:
        return run_rank(line.instance, selected, rank, invocation)
    return StageLoop(line.instance, selected, line, invocation).run()


def _invocation(line: TypedLine, working_dir: str) -> "Invocation":
    # Imported after the checks: mistakes are reported without what only a stage needs.
    from espnet3.systems.base.stages import Invocation

    return Invocation([*line.program, *line.options.words], working_dir, line.recipe_dir)


def _explain_numbers_of_espnet2(options: Options, selected: Sequence[Selected]) -> None:
    note = explain_numbers(options.stages[0], options.stop_stage or "", selected)
    if note:
        print(f"espnet3: {note}", file=sys.stderr)


def _stages_of_rank(selected: Sequence[Selected], rank: ProcessRank) -> Sequence[Selected]:
    if rank == ProcessRank():  # not started by a launcher
        return selected
    try:
        return stages_of_rank(selected, rank)
    except UsageError:
        if rank.is_first:
            raise
        # torchrun ends all processes as soon as one has ended; only the first reports.
        time.sleep(FIRST_REPORTS_SECONDS)
        raise SystemExit(2) from None


def set_up(
    system: type[BaseSystem], options: Options, selected: Sequence[Selected], recipe_dir: Path
) -> tuple[BaseSystem, Sequence[Selected]]:
    """Load and check all configs, and build the system with them; the folder changes.

    Returns:
        The system, and the stages, of which some may turn out to have nothing to do.
    """
    with rare_collections():
        return _set_up(system, options, selected, recipe_dir)


def _set_up(
    system: type[BaseSystem], options: Options, selected: Sequence[Selected], recipe_dir: Path
) -> tuple[BaseSystem, Sequence[Selected]]:
    from espnet3.systems.base.checks import check_stages
    from espnet3.systems.base.context import check_inference_dir

    configs, selected = load_selected(system, options, selected, recipe_dir)
    stages = stages_to_run(selected)
    if any("metrics" in stage.configs for stage in stages):
        check_inference_dir(configs)
    instance = system(**vars(configs))
    if options.detach:
        check_detach(stages, stages_of(system))
        instance.detach = True
    check_stages(instance, stages, dry_run=options.dry_run)
    return instance, selected


def load_selected(
    system: type[BaseSystem], options: Options, selected: Sequence[Selected], recipe_dir: Path
) -> tuple[Configs, Sequence[Selected]]:
    """Load the configs of the stages, of which some may turn out to have nothing to do.

    The folder changes into the recipe's.
    """
    from espnet3.systems.base.context import find_experiment, load_configs

    process_rank().show_logs()
    # A dry run leaves nothing behind, no __pycache__ either.
    sys.dont_write_bytecode |= options.dry_run
    files = assign_configs(options, stages_to_run(selected))
    selected = skip_ungiven(selected, files, recipe_dir)
    stages = stages_to_run(selected)
    check_given(stages, lambda stage: any(kind in files for kind in stage.configs), recipe_dir)
    _warn_about_unused(options, files)
    start_dir = Path.cwd()
    enter_recipe(recipe_dir)
    found = {kind: find_files(paths, start_dir, recipe_dir) for kind, paths in files.items()}
    configs = load_configs(found, options.overrides, recipe_dir=recipe_dir)
    selected = skip_unneeded(selected, configs)
    stages = stages_to_run(selected)
    if options.words:  # `espnet3 plan` sorts its files itself
        check_kinds(system, stages, options, files, found)
    experiment = find_experiment(configs, stages, options.command_with)
    if experiment is not None:
        configs = load_configs(
            found, options.overrides, recipe_dir=recipe_dir, experiment=experiment
        )
    check_given(stages, lambda stage: find_config(configs, stage) is not None, recipe_dir)
    return configs, selected


def _warn_about_unused(options: Options, files: dict[str, tuple[str, ...]]) -> None:
    if options.config and options.config not in files.values():
        logger.warning(
            "--config %s is not used: every stage has a config of its own",
            shlex.join(options.config),
        )


_HELP = {"-h", "--help"}


def run(argv: Sequence[str]) -> int:
    """Run the script of a recipe as `python run.py` would, with the rest of the line.

    Raises:
        UsageError: the folder has no script.
    """
    names_folder = bool(argv) and not argv[0].startswith("-") and not is_override(argv[0])
    folder = Path(argv[0] if names_folder else ".")
    rest = list(argv[1:] if names_folder else argv)
    script = folder / SCRIPT
    if not script.is_file():
        if _HELP & set(rest):
            return print_help()
        raise UsageError(_no_script(folder, rest))
    return _run_script(Path(os.path.abspath(script)), rest)


def _run_script(script: Path, argv: list[str]) -> int:
    sys.path.insert(0, str(script.parent))  # the script itself imports from its folder
    sys.argv = [str(script), *argv]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):  # as Python itself does with sys.exit("text")
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    return 0


def print_help() -> int:
    """Print the options that every recipe has, without its own stages."""
    from espnet3.systems.base.stages import stages_of
    from espnet3.systems.base.system import BaseSystem

    make_parser(stages_of(BaseSystem), prog="espnet3 run [RECIPE_DIR]").print_help()
    return 0


def _no_script(folder: Path, rest: Sequence[str]) -> str:
    below = sorted(path.parent for path in folder.glob(f"egs3/*/*/{SCRIPT}"))
    example = shlex.quote(str(below[0])) if below else "RECIPE_DIR"
    what = f"holds no {SCRIPT}" if folder.is_dir() else "is no folder"
    command = f"espnet3 run {example} {shlex.join(rest) or '--list-stages'}"
    return f"{on_one_line(folder)} {what}. Name the folder of a recipe: {on_one_line(command)}"
