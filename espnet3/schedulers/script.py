"""The directives at the head of a job script: each option once, in the words of the scheduler.

Settings and the user's own directives may ask for the same. Schedulers take an option that comes
twice each in its own way, and most say nothing: Slurm and Grid Engine take the last one, PBS the
first `select`, and OAR takes every `-l` for an alternative. So what is asked for twice is merged
here, as far as all of it can be had, and else refused. All job scripts go through `render_header`:
those of Dask clusters, of detached workers and of trainings.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from espnet3.errors import ConfigError
from espnet3.schedulers.base import Made, Option, Scheduler

# A word of a directive: quotes keep blanks together.
_WORD = re.compile(r"""(?:[^\s"']|"(?:\\.|[^"\\])*"|'[^']*')+""")
_COMMA = re.compile(r"""(?:[^,"']|"(?:\\.|[^"\\])*"|'[^']*')+""")
# Users paste lines with the mark of their old scripts: `#SBATCH --gres=gpu:1`.
_MARK = re.compile(r"^\s*#(?:[A-Z]+|\$)\s+")
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_PLAIN = re.compile(r"[\w./+,@%=:-]+")


@dataclass(frozen=True)
class Header:
    """All directives of a job."""

    lines: list[str]
    notes: list[str]
    """Remark for the user about them."""


def render_header(
    scheduler: Scheduler, made: Sequence[Made], own: Sequence[str], where: str
) -> Header:
    """Return the directives of a job as lines of its script, each option once.

    Args:
        scheduler: whose job it is.
        made: what settings ask for.
        own: the user's directives.
        where: the setting that has those, for messages.

    Raises:
        ConfigError: it asks for what a job cannot have together.
    """
    own = [_bare(scheduler, line, where) for line in own]
    notes: list[str] = []
    # Parts of a heterogeneous job repeat options on purpose; merging would mix the parts.
    if scheduler.has_parts(own):
        lines = [each.text for each in made] + list(own)
    else:
        read = [replace(o, made=each) for each in made for o in _read(scheduler, each.text, -1)]
        read += [o for number, line in enumerate(own) for o in _read(scheduler, line, number)]
        options = scheduler.merge(_said_last(read), where, notes)
        lines = _write(_each_once(scheduler, options, where, notes), read, own)
    return Header([f"{scheduler.mark} {line}" for line in lines], notes)


def _bare(scheduler: Scheduler, line: str, where: str) -> str:
    """Return a directive without the mark that its line in the script will have.

    Raises:
        ConfigError: it is no option; some schedulers would take the line for a comment.
    """
    bare = _MARK.sub("", line)
    if bare.lstrip().startswith("-") or scheduler.has_parts([bare]):
        return bare
    dashes = "--" if scheduler.long_names else "-l "
    raise ConfigError(
        f"{where} has {line!r}, which is no option: those begin with a dash.",
        fix=f"Write such as: {dashes + bare.strip()!r}",
    )


def option_names(scheduler: Scheduler, line: str) -> list[str]:
    """Return what the options of a directive are called: `--gres`, `-l walltime`."""
    return [option.name for option in _read(scheduler, line, 0)]


def _read(scheduler: Scheduler, line: str, number: int) -> list[Option]:
    """Return the options of a directive: `-l gpu=1,h_rt=60 -pe smp 4` has three."""
    words = _WORD.findall(line)
    # A letter must follow the dash: -10 is a value.
    starts = [i for i, word in enumerate(words) if re.match(r"--?[A-Za-z]", word)]
    if not starts or starts[0] != 0:
        return [Option(line.strip(), "", line, line=number)]
    groups = [words[a:b] for a, b in zip(starts, [*starts[1:], len(words)], strict=True)]
    found: list[Option] = []
    for group in groups:
        text = line if len(groups) == 1 else " ".join(group)
        found += _read_option(scheduler, group, text, number)
    return found


def _read_option(scheduler: Scheduler, words: list[str], text: str, number: int) -> list[Option]:
    first, separator, value = words[0].partition("=")
    if first.startswith("--") or len(first) == 2:
        value = " ".join([value, *words[1:]]).strip() if separator else " ".join(words[1:])
    elif scheduler.glues_values:  # -lselect=1:ngpus=1, -pgpu
        first, value = words[0][:2], " ".join([words[0][2:].removeprefix("="), *words[1:]]).strip()
    else:
        first, value = words[0], " ".join(words[1:])
    name = scheduler.long_names.get(first, first)
    if name == "-l" and scheduler.lists_resources:
        return [_resource(item, number) for item in _COMMA.findall(_unquoted(value))]
    return [Option(scheduler.option_name(name, value), value, text, line=number)]


def _resource(item: str, number: int) -> Option:
    name, _, value = item.strip().partition("=")
    return Option(f"-l {name}", value, f"-l {item.strip()}", line=number)


def _said_last(options: Sequence[Option]) -> list[Option]:
    """Leave out defaults of what another setting says: a resource_spec may have a walltime."""
    said = {o.name for o in options if o.made is not None and o.made.key}
    return [o for o in options if o.made is None or o.made.key or o.name not in said]


def _each_once(
    scheduler: Scheduler, options: Sequence[Option], where: str, notes: list[str]
) -> list[Option]:
    """Leave out what settings say again, and what is there twice."""
    own: dict[str, Option] = {}
    may_repeat = scheduler.repeatable
    # After -soft, Grid Engine takes a resource a second time, as a wish.
    has_soft = any(option.name == "-soft" for option in options)
    for option in options:
        if option.made is not None or option.name in may_repeat:
            continue
        other = own.setdefault(option.name, option)
        if plain(other.value) != plain(option.value) and not has_soft:
            raise ConfigError(
                f"{where} has {other.text!r} and {option.text!r}, of which a job can have one.",
                fix="Delete the one that you do not mean",
            )
    kept: list[Option] = []
    for option in options:
        if option.made is None:
            is_new = option.name in may_repeat or own[option.name] is option or has_soft
            kept += [option] if is_new else []
        elif (rival := _rival(scheduler, option, own)) is None:
            kept.append(option)
        else:
            _compare(scheduler, option, rival, where, notes)
    return kept


def _rival(scheduler: Scheduler, option: Option, own: Mapping[str, Option]) -> Option | None:
    """Return the user's option that takes the place of one that follows from settings."""
    # A bare -l or -R may ask for anything, so an equal name is no sign of a conflict.
    if option.name in ("-l", "-R"):
        return None
    names = (option.name, *scheduler.rivals.get(option.name, ()))
    return next((own[name] for name in names if name in own), None)


def _compare(
    scheduler: Scheduler, option: Option, rival: Option, where: str, notes: list[str]
) -> None:
    """Note a setting that is not used, because a directive takes its place."""
    assert option.made is not None
    if option.made.key and plain(option.value) != plain(rival.value):
        notes.append(describe_unused(option.made.key, option.text, rival.text, where))
    elif rival.name == option.name:
        setting = scheduler.needed.get(option.name)
        note_less(setting, option.value, rival.value, f"{where} has {rival.text!r}", notes)


def describe_unused(key: str, text: str, directive: str, where: str) -> str:
    """Say that a setting is not used, because the user's directive stands in its place."""
    return (
        f"{key} makes {text!r}, which is not used: {where} has {directive!r}. Delete the one that "
        "you do not mean"
    )


def note_less(setting: str | None, needed: str, asked: str, by: str, notes: list[str]) -> None:
    """Note that a worker counts on more than its job asks for.

    Args:
        setting: of `parallel.options`, from which the worker knows; None if there is none.
        needed: what the worker may use.
        asked: what the job asks for.
        by: says what asks for it.
        notes: gets the note.
    """
    if setting is None or (got := _amount(asked)) is None or (want := _amount(needed)) is None:
        return
    if 0 < got < want:  # 0 is all of a node
        notes.append(
            f"{by}, but parallel.options.{setting} lets the worker use {needed}. "
            "Set both to the same: schedulers end jobs that take more than they asked for"
        )


def _amount(text: str) -> int | None:
    match = _SIZE.fullmatch(plain(text))
    return int(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ") if match else None


def _unquoted(value: str) -> str:
    """Return a value without quotes around all of it."""
    match = re.fullmatch(r"""(["'])([^"']*)\1""", value.strip())
    return match[2] if match else value


def _write(kept: Sequence[Option], options: Sequence[Option], own: Sequence[str]) -> list[str]:
    """Return the lines; a directive of which nothing was taken away as the user wrote it."""
    lines: list[str] = []
    whole = {
        number
        for number in range(len(own))
        if [o for o in kept if o.line == number] == [o for o in options if o.line == number]
    }
    done: set[int] = set()
    made_done: set[int] = set()
    for option in kept:
        if option.made is not None and option.line == -1:
            lines += _made_lines(option, kept, options, made_done)
        elif option.line not in whole:
            lines.append(option.text)
        elif option.line not in done:
            done.add(option.line)
            lines.append(own[option.line])
    return lines


def _made_lines(
    option: Option, kept: Sequence[Option], options: Sequence[Option], done: set[int]
) -> list[str]:
    """Return a setting's line as it was made, unless only a part of it is left."""
    made = option.made
    assert made is not None
    # By identity: a `Made` holds a dict and cannot be hashed.
    if id(made) in done:
        return []
    if [o for o in kept if o.made is made] != [o for o in options if o.made is made]:
        return [option.text]
    done.add(id(made))
    return [made.text]


# --- Words of directives --------------------------------------------------------------------------


def plain(value: str) -> str:
    """Return a value without blanks and quotes around it."""
    return value.strip().strip("\"'")


def optional(form: str, value: str | None, key: str) -> Iterator[Made]:
    """Yield a directive if there is a value for it."""
    if value:
        yield Made(form.format(quoted(value)), key)


def quoted(text: str) -> str:
    """Quote a value as schedulers read it in a directive: in double quotes."""
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def no_colon(path: str) -> str:
    """Return the path of a log.

    Raises:
        ConfigError: it has a colon.
    """
    if ":" in path:
        raise ConfigError(
            f"The log {path!r} has a colon, before which PBS and SGE expect the name of a host.",
            fix="Write the logs elsewhere: launch.log_dir=FOLDER",
        )
    return path


def safe_name(name: str) -> str:
    """Return a name that all accept: letters first, and nothing but letters, digits, `_.+-`."""
    safe = re.sub(r"[^A-Za-z0-9_.+-]", "_", name)
    return safe if safe[:1].isalpha() else f"j{safe}"
