"""`espnet3 launch CONFIG ...`: a training as a job of Slurm, PBS, SGE or LSF."""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.cli.console import UsageError, make_parser
from espnet3.cli.recipe_configs import SCRIPT, enter_recipe_of
from espnet3.cli.recipe_options import parse_line
from espnet3.errors import ConfigError, suggest
from espnet3.systems.base.stages import STAGES
from espnet3.text import count, on_one_line, printable

if TYPE_CHECKING:
    from espnet3.trainer.launching.job_script import TrainingJob

_TRAIN = "train"
_EPILOG = (
    "The files are merged left to right; one of them has the `launch` block: scheduler, queue, "
    "time, cpus_per_task, ... The numbers of nodes and processes are those of the `trainer` block. "
    "KEY.PATH=VALUE changes a value, such as trainer.num_nodes=2."
)


def launch(argv: Sequence[str]) -> int:
    """Write a job script for a training, submit it, and say how to follow it.

    Raises:
        UsageError: the line is wrong, or the files belong to no recipe.
        ConfigError: the config is wrong, as far as that shows before the training.
        ResourceError: the scheduler is not here, or refuses the job.
    """
    args, overrides = parse_line(_parser(), argv)
    stages = _check_stages(args.stages or [_TRAIN])
    recipe_dir, files = enter_recipe_of(args.configs)
    # The job runs the recipe, which does not read how it was submitted.
    of_recipe = [word for word in overrides if not word.startswith("launch.")]
    arguments = ("--training_config", *files, *of_recipe)
    job = _plan(files, overrides, arguments, recipe_dir, stages)
    if not args.no_check:
        _check_recipe(job)
    if args.dry_run:
        _show(job)
    else:
        _submit(job)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "launch",
        "Write a job script for a training, submit it, and say how to follow it.",
        usage="espnet3 launch CONFIG ... [KEY.PATH=VALUE ...] [--stages STAGE ...] [--dry-run]",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("configs", nargs="+", metavar="CONFIG",
        help="such as conf/training.yaml conf/launch_slurm.yaml")  # fmt: skip
    add("--stages", "--stage", nargs="+", action="extend", metavar="STAGE",
        help="train (the default), and others of the training config around it, which the job "
        "runs in one process")  # fmt: skip
    add("--dry-run", "--dry_run", action="store_true",
        help="show the script; nothing is written or submitted")  # fmt: skip
    add("--no-check", "--no_check", action="store_true",
        help="submit without a dry run of the recipe, which takes seconds, before")  # fmt: skip
    return parser


def _check_stages(words: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the stages, in their order."""
    known = {stage.name: stage for stage in STAGES if "training" in stage.configs}
    numbers = {str(stage.number): name for name, stage in known.items()}
    names = [numbers.get(word, word) for word in words]
    for name in names:
        if name not in known:
            raise UsageError(
                f"espnet3 launch cannot run the stage {name!r}.{suggest(name, known)} It runs "
                f"train, and around it: {', '.join(n for n in known if n != _TRAIN)}."
            )
    if _TRAIN not in names:
        raise UsageError(
            "espnet3 launch is for trainings, but --stages has no train.",
            fix=f"Run the others as they are: python {SCRIPT} --stages {' '.join(names)} "
            "--training_config FILE",
        )
    return tuple(name for name in known if name in names)


def _plan(
    files: Sequence[str],
    overrides: Sequence[str],
    arguments: tuple[str, ...],
    recipe_dir: Path,
    stages: tuple[str, ...],
) -> "TrainingJob":
    from espnet3.systems.base.context import load_configs
    from espnet3.trainer.launching.job_script import render
    from espnet3.trainer.launching.launch import plan_job

    loaded = load_configs({"training": files}, overrides, recipe_dir=recipe_dir).training
    assert loaded is not None
    job = plan_job(loaded, arguments, recipe_dir=recipe_dir, stages=stages)
    render(job)  # refuses options that cannot be written
    return job


def _check_recipe(job: "TrainingJob") -> None:
    """Let the recipe check its config: better now than after a night in the queue.

    Raises:
        ConfigError: with what it says.
    """
    words = [SCRIPT, "--stages", *job.stages, *job.arguments, "--dry-run"]
    print("Checking the recipe ...", file=sys.stderr, flush=True)
    # In a process of its own, with the interpreter and the words that the job will use.
    told = subprocess.run(
        [job.python, *words], cwd=job.recipe_dir, capture_output=True, text=True, errors="replace"
    )
    if told.returncode:
        said = (told.stderr.strip() or told.stdout.strip()).removeprefix("espnet3: ")
        raise ConfigError(
            f"{said}\nNothing was submitted. To see it again: python {shlex.join(words)}"
        )


def _show(job: "TrainingJob") -> None:
    from espnet3.trainer.launching.job_script import render

    print(f"Would be written to {on_one_line(job.script)}, and submitted:\n", file=sys.stderr)
    print(printable(render(job)), end="")


def _submit(job: "TrainingJob") -> None:
    from espnet3.trainer.launching.launch import follow, submit, write_script

    job = write_script(job)
    print(f"Wrote {on_one_line(job.script)}")
    job_id = submit(job)
    lines = follow(job, job_id)
    processes = f"{count(job.n_nodes, 'node')} x {count(job.n_processes, 'process')}"
    print(f"Submitted job {job_id}: {processes}, {count(job.n_gpus, 'GPU')} on each node")
    print(f"  follow: {on_one_line(lines.log)}")
    print(f"  state:  {lines.state}")
    print(f"  stop:   {lines.cancel}")
    if job.config.seconds is None and not job.scheduler.sends_signal:
        print(
            "  note:   without launch.time the job is not restarted when its time is up; write: "
            'time: "24:00:00"'
        )
