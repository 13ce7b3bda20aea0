"""`--dry-run`: what each stage would do."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from espnet3.cli.stage_selection import Selected
from espnet3.errors import EspnetError
from espnet3.systems.base.context import context_value
from espnet3.systems.base.stages import Stage, has_own
from espnet3.systems.base.system import BaseSystem
from espnet3.text import on_one_line, printable


def print_plan(system: BaseSystem, selected: Sequence[Selected]) -> None:
    """Print what would be done; nothing is run or written."""
    earlier = ""
    for entry in selected:
        print(f"Stage {entry.stage}: {entry.stage.help}")
        if entry.skipped:
            print(f"  skipped: {entry.skipped}")
            continue
        for line in _describe(system, entry.stage, earlier):
            print(f"  {printable(line)}")
        earlier = entry.stage.name


def _describe(system: BaseSystem, stage: Stage, earlier: str) -> Iterator[str]:
    loaded = system.config_for(stage.name)
    exp_dir = Path(context_value(loaded, "exp_dir"))
    yield f"config: {' + '.join(on_one_line(file) for file in loaded.files)}"
    yield f"log: {on_one_line(exp_dir / stage.name)}.log"
    try:
        yield from _own_words(system, stage)
    except (EspnetError, OSError) as error:
        if not earlier:
            raise
        # An earlier stage may make what this one looks for.
        yield f"more can be told after {earlier}; now: {on_one_line(error)}"


def _own_words(system: BaseSystem, stage: Stage) -> list[str]:
    describe = f"describe_{stage.name}"
    if not has_own(type(system), stage.name, describe):
        return [f"runs {type(system).__name__}.{stage.name}()"]
    return [line for text in getattr(system, describe)() for line in text.split("\n")]
