"""One line for each option of a job, where the settings and the user's own directives ask for it.

Schedulers take an option that comes twice each in its own way, and most say nothing: Slurm and Grid
Engine take the last one, PBS the first `select`, and OAR takes every `-l` for an alternative. So
what is asked for twice is merged here, as far as all of it can be had, and else refused.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from espnet3.errors import ConfigError

# A word of a directive: quotes keep blanks together.
_WORD = re.compile(r"""(?:[^\s"']|"(?:\\.|[^"\\])*"|'[^']*')+""")
_COMMA = re.compile(r"""(?:[^,"']|"(?:\\.|[^"\\])*"|'[^']*')+""")
_LSF_SECTION = re.compile(r"\b(\w+)\[")
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_SLURM_NAMES = {
    "-p": "--partition", "-A": "--account", "-t": "--time", "-c": "--cpus-per-task",
    "-J": "--job-name", "-o": "--output", "-e": "--error", "-N": "--nodes", "-n": "--ntasks",
    "-x": "--exclude", "-w": "--nodelist", "-C": "--constraint", "-d": "--dependency",
    "-q": "--qos", "-G": "--gpus", "-L": "--licenses", "-D": "--chdir", "-a": "--array",
    "-b": "--begin", "-M": "--clusters", "-m": "--distribution",
}  # fmt: skip
# What says the same thing in another way: of these the user's own stands alone.
_RIVALS = {
    "--mem": ("--mem-per-cpu", "--mem-per-gpu"),
    "-l h_rt": ("-l s_rt",),
}
_GPUS_OF_SLURM = ("--gpus", "--gpus-per-node", "--gpus-per-task", "--gpus-per-socket")
# Resources of a host, which PBS wants in the chunk as soon as there is a `select`.
_OF_A_CHUNK = ("ncpus", "mem", "vmem", "ngpus", "mpiprocs", "ompthreads", "host", "vnode", "arch")
_GLUED = ("slurm", "pbs", "moab")
"""Schedulers whose options of one letter may have their value right behind it: `-lselect=1`."""
_ADD_UP = {
    "sge": ("-q", "-v", "-m", "-M", "-hold_jid", "-ac", "-dc", "-sc", "-soft", "-hard", "-masterq"),
    "lsf": ("-R", "-E", "-Ep", "-f", "-a"),
    "oar": ("-l", "-t", "-a"),
}
"""Options that may come several times."""
_NEEDED = {
    "--cpus-per-task": "cores", "ncpus": "cores", "ppn": "cores", "-n": "cores",
    "--mem": "memory", "mem": "memory",
}  # fmt: skip
"""What a Dask worker is told that it has, by the option that asks for it."""


@dataclass(frozen=True)
class Made:
    """An option that follows from settings; a directive may say otherwise."""

    text: str
    """As in a directive: `-l walltime=04:00:00`."""
    key: str = ""
    """The user's setting that says so, such as `parallel.options.queue`; empty for a default."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """The same for parts of it: the resources of a chunk, whose number is `""`."""

    def setting(self, part: str) -> str:
        """Return which setting a part follows from; empty for a default."""
        return self.parts.get(part, self.key)


@dataclass(frozen=True)
class Header:
    """All options of a job."""

    lines: list[str]
    notes: list[str]
    """What a user should know about them."""


@dataclass(frozen=True)
class _Option:
    name: str
    value: str
    text: str
    made: Made | None = None
    line: int = -1
    """Of the directive that it stands in, which may hold several."""


def merge_directives(env: str, made: Sequence[Made], own: Sequence[str], where: str) -> Header:
    """Return the options of a job, each once.

    Args:
        env: the scheduler.
        made: what settings ask for.
        own: the user's directives.
        where: the setting that has those, for messages.

    Raises:
        ConfigError: it asks for what a job cannot have together.
    """
    own = [_bare(env, line, where) for line in own]
    if env == "slurm" and any(re.search(r"\b(?:het|pack)job\b", line) for line in own):
        return Header([each.text for each in made] + list(own), [])  # parts with options of theirs
    read = [replace(option, made=each) for each in made for option in _read(env, each.text, -1)]
    read += [option for number, line in enumerate(own) for option in _read(env, line, number)]
    options, notes = _said_last(read), list[str]()
    if env in ("pbs", "moab"):
        options = _merge_chunks(env, options, where, notes)
    elif env == "slurm":
        options = _merge_gres(options, where)
    elif env == "oar":
        options = _merge_oar(options, where, notes)
    kept = _each_once(env, options, where, notes)
    return Header(_write(kept, read, own), notes)


def _bare(env: str, line: str, where: str) -> str:
    """Return a directive without the mark that its line in the script will have.

    Raises:
        ConfigError: it is no option; some schedulers would take the line for a comment.
    """
    bare = re.sub(r"^\s*#(?:SBATCH|PBS|MSUB|BSUB|OAR|\$)\s+", "", line)
    is_part = env == "slurm" and re.match(r"\s*(?:het|pack)job\b", bare)
    if bare.lstrip().startswith("-") or is_part:
        return bare
    example = f"--{bare.strip()}" if env == "slurm" else f"-l {bare.strip()}"
    raise ConfigError(
        f"{where} has {line!r}, which is no option: those begin with a dash. Write such as: "
        f"{example!r}"
    )


def option_names(env: str, line: str) -> list[str]:
    """Return what the options of a directive are called: `--gres`, `-l walltime`."""
    return [option.name for option in _read(env, line, 0)]


def _read(env: str, line: str, number: int) -> list[_Option]:
    """Return the options of a directive: `-l gpu=1,h_rt=60 -pe smp 4` has three."""
    words = _WORD.findall(line)
    starts = [i for i, word in enumerate(words) if re.match(r"--?[A-Za-z]", word)]
    if not starts or starts[0] != 0:
        return [_Option(line.strip(), "", line, line=number)]
    groups = [words[a:b] for a, b in zip(starts, [*starts[1:], len(words)], strict=True)]
    found: list[_Option] = []
    for group in groups:
        found += _read_option(env, group, line if len(groups) == 1 else " ".join(group), number)
    return found


def _read_option(env: str, words: list[str], text: str, number: int) -> list[_Option]:
    first, separator, value = words[0].partition("=")
    if first.startswith("--") or len(first) == 2:
        value = " ".join([value, *words[1:]]).strip() if separator else " ".join(words[1:])
    elif env in _GLUED:  # -lselect=1:ngpus=1, -pgpu
        first, value = words[0][:2], " ".join([words[0][2:].removeprefix("="), *words[1:]]).strip()
    else:
        first, value = words[0], " ".join(words[1:])
    name = _SLURM_NAMES.get(first, first) if env == "slurm" else first
    if name == "-l" and env in ("pbs", "moab", "sge"):
        return [_resource(item, number) for item in _COMMA.findall(_unquoted(value))]
    if name == "-W" and env in ("pbs", "moab"):
        name = f"-W {value.partition('=')[0]}"
    if name == "-R" and env == "lsf":
        name = _requirement(value)
    return [_Option(name, value, text, line=number)]


def _resource(item: str, number: int) -> _Option:
    name, _, value = item.strip().partition("=")
    return _Option(f"-l {name}", value, f"-l {item.strip()}", line=number)


def _requirement(value: str) -> str:
    """Return what a requirement of LSF is about; others of its kind may stand beside it."""
    sections = _LSF_SECTION.findall(value)
    if "span" in sections:
        return "-R span"
    return "-R mem" if "rusage" in sections and "mem=" in value else "-R"


def _said_last(options: Sequence[_Option]) -> list[_Option]:
    """Leave out defaults of what another setting says: a resource_spec may have a walltime."""
    said = {o.name for o in options if o.made is not None and o.made.key}
    return [o for o in options if o.made is None or o.made.key or o.name not in said]


def _each_once(env: str, options: Sequence[_Option], where: str, notes: list[str]) -> list[_Option]:
    """Leave out what settings say again, and what is there twice."""
    own: dict[str, _Option] = {}
    may_repeat = _ADD_UP.get(env, ())
    has_soft = any(option.name == "-soft" for option in options)
    for option in options:
        if option.made is not None or option.name in may_repeat:
            continue
        other = own.setdefault(option.name, option)
        if _plain(other.value) != _plain(option.value) and not has_soft:
            raise ConfigError(
                f"{where} has {other.text!r} and {option.text!r}, of which a job can have one. "
                "Delete the one that you do not mean"
            )
    kept: list[_Option] = []
    for option in options:
        if option.made is None:
            is_new = option.name in may_repeat or own[option.name] is option or has_soft
            kept += [option] if is_new else []
        elif (rival := _rival(option, own)) is None:
            kept.append(option)
        else:
            _compare(option, rival, where, notes)
    return kept


def _rival(option: _Option, own: Mapping[str, _Option]) -> _Option | None:
    if option.name == "-l" or option.name == "-R":
        return None
    names = (option.name, *_RIVALS.get(option.name, ()))
    return next((own[name] for name in names if name in own), None)


def _compare(option: _Option, rival: _Option, where: str, notes: list[str]) -> None:
    """Note a setting that is not used, because a directive takes its place."""
    assert option.made is not None
    if option.made.key and _plain(option.value) != _plain(rival.value):
        notes.append(_unused(option.made.key, option.text, rival.text, where))
    elif rival.name == option.name:
        _note_less(option.name, option.value, rival.value, f"{where} has {rival.text!r}", notes)


def _unused(key: str, text: str, directive: str, where: str) -> str:
    return (
        f"{key} makes {text!r}, which is not used: {where} has {directive!r}. Delete the one that "
        "you do not mean"
    )


def _note_less(name: str, needed: str, asked: str, who: str, notes: list[str]) -> None:
    """Note that a worker counts on more than its job asks for."""
    setting = _NEEDED.get(name)
    if setting is None or (got := _amount(asked)) is None or (want := _amount(needed)) is None:
        return
    if 0 < got < want:  # 0 is all of a node
        notes.append(
            f"{who}, but the worker is told that it has {needed}, by parallel.options.{setting}. "
            "Set both to the same: schedulers end jobs that take more than they asked for"
        )


def _amount(text: str) -> int | None:
    match = _SIZE.fullmatch(_plain(text))
    return int(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ") if match else None


def _unquoted(value: str) -> str:
    """Return a value without quotes around all of it."""
    match = re.fullmatch(r"""(["'])([^"']*)\1""", value.strip())
    return match[2] if match else value


def _plain(value: str) -> str:
    return value.strip().strip("\"'")


def _write(kept: Sequence[_Option], options: Sequence[_Option], own: Sequence[str]) -> list[str]:
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
    option: _Option, kept: Sequence[_Option], options: Sequence[_Option], done: set[int]
) -> list[str]:
    """Return a setting's line as it was made, unless only a part of it is left."""
    made = option.made
    assert made is not None
    if id(made) in done:
        return []
    if [o for o in kept if o.made is made] != [o for o in options if o.made is made]:
        return [option.text]
    done.add(id(made))
    return [made.text]


# --- PBS and Moab: chunks of resources ------------------------------------------------------------


def _merge_chunks(env: str, options: list[_Option], where: str, notes: list[str]) -> list[_Option]:
    """Put all of a select, or of Torque's nodes, on one line; the first would count alone."""
    asked = [o for o in options if o.name in ("-l select", "-l nodes")]
    name = _spelling(asked)
    loose = [o for o in options if _is_loose(env, name, o)]
    if not asked or (len(asked) == 1 and not loose):
        return options
    head, parts = "", dict[str, str]()
    from_settings = {key for o in asked if o.made is not None for key in _resources(o, name)}
    for option in asked:
        head = _count(option, name, head, where) or head
        new = _resources(option, name)
        if option.made is None:
            _refuse_other(parts, new, from_settings, where)
        parts |= new
    parts |= {o.name.removeprefix("-l "): o.value for o in loose}
    for option in asked:
        if option.made is not None:
            _compare_chunk(option.made, _resources(option, name), parts, where, notes)
    words = [f"{key}={value}" if value else key for key, value in parts.items()]
    value = ":".join([head or "1", *words])
    place = min(options.index(o) for o in asked)
    rest = [o for o in options if o not in asked and o not in loose]
    rest[place:place] = [_Option(name, value, f"{name}={value}", line=-2)]
    if name == "-l nodes":
        rest[place + 1 : place + 1] = _memory_beside_nodes(asked, rest)
    return rest


def _spelling(asked: Sequence[_Option]) -> str:
    """Return how the user spells it: PBS takes no job that has both.

    Raises:
        ConfigError: the user has both.
    """
    said = {o.name: o for o in asked if o.made is None or o.made.key}
    if len(said) > 1:
        told = " and ".join(repr(o.text) for o in said.values())
        raise ConfigError(
            f"The options of a job have {told}, and PBS takes either select or nodes. Write all of "
            "it once: resource_spec: 'select=1:ncpus=4:mem=32gb:ngpus=1'"
        )
    return next(iter(said), asked[0].name if asked else "")


def _is_loose(env: str, name: str, option: _Option) -> bool:
    """Tell whether an option belongs into the chunk: PBS refuses it beside a select."""
    in_chunk = name == "-l select" and env == "pbs" and option.made is None
    return in_chunk and option.name.removeprefix("-l ") in _OF_A_CHUNK


def _count(option: _Option, name: str, known: str, where: str) -> str:
    """Return how many chunks, or which node, an option asks for; empty if it does not say.

    Raises:
        ConfigError: there are several chunks where one job has one worker.
    """
    first = _plain(option.value).split(":")[0]
    if "+" in option.value:
        raise ConfigError(_several(option, where))
    if first.isdigit():
        if option.made is None and first != (known or "1"):
            raise ConfigError(_several(option, where))
        return first
    return first if name == option.name == "-l nodes" and "=" not in first else ""


def _several(option: _Option, where: str) -> str:
    if option.made is not None:
        return (
            f"{option.made.key} is {option.text!r}, of several chunks, and {where} asks for more, "
            "which cannot be merged. Write all of it in one of them"
        )
    words = _plain(option.value).split("+")[0].split(":")
    one = ":".join(["1", *(words[1:] if words[0].isdigit() else words)])
    return (
        f"{where} has {option.text!r}: another number of chunks than the job has. Write what one "
        f"is to have: {option.name}={one}. For more workers set parallel.n_workers; for more "
        "nodes of a training, trainer.num_nodes"
    )


def _resources(option: _Option, name: str) -> dict[str, str]:
    """Return what a chunk is asked for, in the words of `name`."""
    words = _plain(option.value).split(":")
    if words[0].isdigit() or (option.name == "-l nodes" and "=" not in words[0]):
        words = words[1:]
    found = dict(word.partition("=")[::2] for word in words)
    if option.name == name:
        return found
    # Cores and memory of our settings, for nodes of the user's; memory stands beside those.
    return {"ppn": found["ncpus"]} if "ncpus" in found else {}


def _refuse_other(
    parts: Mapping[str, str], new: Mapping[str, str], from_settings: set[str], where: str
) -> None:
    for key, value in new.items():
        is_own = key in parts and key not in from_settings
        if is_own and parts[key].lower() != value.lower():
            raise ConfigError(
                f"{where} has {key}={parts[key]} and {key}={value}, of which a job can have one. "
                "Delete the one that you do not mean"
            )


def _compare_chunk(
    made: Made, new: Mapping[str, str], parts: Mapping[str, str], where: str, notes: list[str]
) -> None:
    for key, value in new.items():
        asked = parts[key]
        if made.setting(key) and asked.lower() != value.lower():
            notes.append(_unused(made.setting(key), f"{key}={value}", f"{key}={asked}", where))
        elif not made.setting(key):
            _note_less(key, value, asked, f"{where} asks for {key}={asked}", notes)


def _memory_beside_nodes(asked: Sequence[_Option], rest: Sequence[_Option]) -> list[_Option]:
    """Return the memory of the settings, which is no part of a node's description."""
    if any(o.name in ("-l mem", "-l pmem", "-l vmem", "-l pvmem") for o in rest):
        return []
    for option in asked:
        if option.made is not None and (match := re.search(r":mem=([^:]+)", option.value)):
            return [_Option("-l mem", match[1], f"-l mem={match[1]}", line=-2)]
    return []


# --- Slurm: generic resources ---------------------------------------------------------------------


def _merge_gres(options: list[_Option], where: str) -> list[_Option]:
    """Put all of --gres on one line; the last one would count alone."""
    own = [o for o in options if o.name == "--gres" and o.made is None]
    made = [o for o in options if o.name == "--gres" and o.made is not None]
    if made and any(o.name in _GPUS_OF_SLURM and o.made is None for o in options):
        options = [o for o in options if o not in made]
        made = []
    if not own or len(own) + len(made) == 1:
        return options
    found: dict[str, str] = {}
    for option in own:
        for item in filter(None, map(str.strip, _plain(option.value).split(","))):
            kind = re.sub(r":\d+\w?$", "", item)
            if found.setdefault(kind, item) != item:
                raise ConfigError(
                    f"{where} has --gres={found[kind]} and --gres={item}, of which a job can have "
                    "one. Delete the one that you do not mean"
                )
    names = {kind.partition(":")[0] for kind in found}
    for name in names & found.keys():
        if other := next((kind for kind in found if kind.startswith(f"{name}:")), None):
            raise ConfigError(
                f"{where} has --gres={found[name]} and --gres={found[other]}, of which one counts. "
                "Delete the one that you do not mean"
            )
    for option in made:
        items = [i for i in option.value.split(",") if i.partition(":")[0] not in names]
        found = {**{item: item for item in items}, **found} if "none" not in names else found
    value = ",".join(found.values())
    merged = _Option("--gres", value, f"--gres={value}", line=-2)
    place = options.index(own[0])
    options = [*options[:place], merged, *options[place:]]
    return [o for o in options if o not in own and o not in made]


# --- OAR: a line for each alternative -------------------------------------------------------------


def _merge_oar(options: list[_Option], where: str, notes: list[str]) -> list[_Option]:
    own = [o for o in options if o.name in ("-l", "--resource") and o.made is None]
    made = next((o for o in options if o.name == "-l" and o.made is not None), None)
    if not own or made is None or made.made is None:
        return options
    resources, walltime = _split_oar(made.value)
    lines = []
    for option in own:
        asked, time = _split_oar(_plain(option.value))
        if asked and (key := made.made.key):
            raise ConfigError(
                f"{key} is {resources!r}, and {where} has "
                f"{option.text!r}, which OAR takes for an alternative. Write one: resource_spec: "
                f"{asked!r}"
            )
        if (
            time
            and walltime
            and time != walltime
            and (option_key := made.made.parts.get("walltime"))
        ):
            notes.append(_unused(option_key, f"walltime={walltime}", option.text, where))
        if asked and resources and not re.search(r"\b(?:core|cpu)s?=", asked):
            notes.append(
                f"{where} has {option.text!r}, which is asked for in place of {resources!r}: the "
                "cores are those that come with it"
            )
        parts = [asked or resources]
        parts += [f"walltime={time or walltime}"] if time or walltime else []
        lines.append(replace(option, name="-l", text=f"-l {','.join(parts)}", line=-2))
    place = options.index(made)
    rest = [o for o in options if o not in own and o is not made]
    rest[place:place] = lines
    return rest


def _split_oar(value: str) -> tuple[str, str]:
    """Return the resources and the walltime of a request."""
    items = value.split(",")
    times = [item.partition("=")[2] for item in items if item.startswith("walltime=")]
    return ",".join(i for i in items if not i.startswith("walltime=")), (times or [""])[-1]


# --- HTCondor: settings with names ----------------------------------------------------------------


def merge_settings(made: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a job of HTCondor, whose names may be written in several ways."""
    said = {_condor_name(name) for name in own}
    return {**{k: v for k, v in made.items() if _condor_name(k) not in said}, **own}


def _condor_name(name: str) -> str:
    """Return a name that `RequestCpus` and `request_cpus` have in common."""
    return name.lower().replace("_", "")
