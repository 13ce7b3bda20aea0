"""Complete commands, options, stages, config files and overrides in a shell.

`espnet3 completion bash` prints a script that asks `espnet3 completion --answer` at each Tab. The
answer must be quick, so that nothing heavy is imported, and a recipe's stages are read from the
text of its modules.
"""

import argparse
import ast
import glob
import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path

from espnet3.cli.console import UsageError, make_parser

BASH = r"""# espnet3 completion for bash; in ~/.bashrc: eval "$(espnet3 completion bash)"
_espnet3() {
  local line="${COMP_LINE:0:COMP_POINT}" current word
  current="${line##*[[:space:]]}"
  COMPREPLY=()
  while IFS= read -r word; do
    # Bash takes what stands behind = for a word of its own.
    [[ $current == *=* && $COMP_WORDBREAKS == *=* ]] && word="${word#"${current%%=*}="}"
    COMPREPLY+=("$word")
  done < <(espnet3 completion --answer "$line" 2>/dev/null)
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=/.] ]] && compopt -o nospace
}
complete -F _espnet3 espnet3
"""
ZSH = r"""#compdef espnet3
# espnet3 completion for zsh; in ~/.zshrc, behind compinit: eval "$(espnet3 completion zsh)"
_espnet3() {
  local -a found closed open
  found=("${(@f)$(espnet3 completion --answer "$LBUFFER" 2>/dev/null)}")
  found=(${found:#})
  open=(${(M)found:#*[=/.]})
  closed=(${found:#*[=/.]})
  (( $#open )) && compadd -S '' -- $open
  (( $#closed )) && compadd -- $closed
}
compdef _espnet3 espnet3
"""
FISH = """# espnet3 completion for fish; in config.fish: espnet3 completion fish | source
complete -c espnet3 -f \\
  -a '(espnet3 completion --answer (commandline -cp | string collect) 2>/dev/null)'
"""
SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
_STAGES = ("--stages", "--stage", "--stop_stage", "--stop-stage")
_WITH_OVERRIDES = ("run", "launch", "doctor", "plan", "scaling", "resume", "retry", "transcribe")
_WITH_FILES = ("launch", "doctor", "plan", "scaling")
_MOST_BYTES = 1 << 20


def completion(argv: Sequence[str]) -> int:
    """Print the script for a shell, or the words that may follow a line.

    Raises:
        UsageError: the shell is not known.
    """
    parser = make_parser("completion", __doc__ or "")
    parser.add_argument("shell", metavar="SHELL", nargs="?", help=", ".join(SHELLS))
    parser.add_argument("--answer", metavar="LINE", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.answer is not None:
        # An error would be printed amid the line that is being typed.
        with suppress(Exception):
            print(*answer(args.answer), sep="\n")
    elif args.shell in SHELLS:
        print(SHELLS[args.shell], end="")
    else:
        asked = "which shell?" if args.shell is None else f"there is none for {args.shell!r}."
        fix = 'Write: eval "$(espnet3 completion bash)"'
        raise UsageError(f"{asked} Shells: {', '.join(SHELLS)}.", fix=fix)
    return 0


def answer(line: str) -> list[str]:
    """Return the words that the last one of a line may become."""
    words = _split(line)
    current = words[-1]
    fitting = {word for word in _candidates(words) if word.startswith(current)}
    # A key may follow anywhere, so that it is offered where nothing else fits.
    if not fitting and current and len(words) > 2 and words[1] in _WITH_OVERRIDES:
        fitting = {word for word in _overrides(current) if word.startswith(current)}
    return sorted(fitting, key=lambda word: (word.startswith("-"), word))


def _split(line: str) -> list[str]:
    """Return the words of a line that may end in the middle of one."""
    words = [word.strip("'\"") for word in line.split()]
    return words if line and not line[-1].isspace() else [*words, ""]


def _candidates(words: Sequence[str]) -> Iterator[str]:
    from espnet3.cli.main import VERBS

    current = words[-1]
    if len(words) <= 2:
        yield from (*VERBS, "--help", "--version")
        return
    verb, option = words[1], _open_option(words)
    if verb == "completion":
        yield from SHELLS
    elif current.startswith("-"):
        yield from _options(verb)
    elif option in _STAGES:
        yield from _stages(_recipe(words))
    elif option.endswith("config") or (option == "" and verb in _WITH_FILES):
        yield from _configs(_recipe(words), option)
        yield from _paths(current)
    elif option == "":
        yield from _paths(current)


def _open_option(words: Sequence[str]) -> str:
    """Return the option that the last word is a value of; empty if there is none."""
    for word in reversed(words[2:-1]):
        if word.startswith("-"):
            return word
    return ""


def _recipe(words: Sequence[str]) -> Path:
    named = Path(words[2]) if words[1] == "run" and len(words) > 3 else Path()
    return named if (named / "run.py").is_file() else Path()


def _options(verb: str) -> list[str]:
    """Return the options that the help of a command lists."""
    from espnet3.cli.main import VERBS, main

    printed = io.StringIO()
    if verb in VERBS:
        with redirect_stdout(printed), suppress(SystemExit):
            if verb == "run":  # in a recipe, its own script would answer, which imports more
                from espnet3.cli.recipe import print_help

                print_help()
            else:
                main([verb, "--help"])
    return re.findall(r"(?<![\w-])--?[a-z][\w-]*", printed.getvalue())


def _stages(recipe: Path) -> Iterator[str]:
    """Yield the stages that every system knows, and those that the recipe's modules define."""
    from espnet3.systems.base.stages import STAGES

    yield "all"
    yield from (stage.name for stage in STAGES)
    for path in [recipe / "run.py", *sorted(recipe.glob("src/*.py"))]:
        with suppress(OSError, SyntaxError, ValueError):
            if path.stat().st_size < _MOST_BYTES:
                yield from _own_stages(ast.parse(path.read_bytes()))


def _own_stages(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            calls = [each.func for each in node.decorator_list if isinstance(each, ast.Call)]
            names = [getattr(call, "id", getattr(call, "attr", "")) for call in calls]
            if "stage" in names:
                yield node.name


def _configs(recipe: Path, option: str) -> list[str]:
    """Return the files in `conf/`: of an option for one kind, those of other kinds left out."""
    from espnet3.systems.base.stages import KINDS

    kind = option.strip("-").replace("-", "_").removesuffix("_config")
    found = sorted(path.relative_to(recipe).as_posix() for path in recipe.glob("conf/*.y*ml"))
    if kind not in KINDS:
        return found
    others = [other[:5] for other in KINDS if other != kind]
    return [name for name in found if not Path(name).name.startswith(tuple(others))]


def _paths(current: str) -> Iterator[str]:
    for path in glob.iglob(glob.escape(os.path.expanduser(current)) + "*"):
        if not any(letter.isspace() for letter in path):
            yield f"{path}/" if os.path.isdir(path) else path


def _overrides(current: str) -> Iterator[str]:
    """Yield keys with =, and for some keys their values; blocks end in a dot."""
    from espnet3.config.known_keys import ENVS, OWN

    values = {"parallel.env": ENVS, "parallel.mode": ("sync", "async"),
              "runner.on_error": ("raise", "skip"), "runner.resume": ("true", "false")}  # fmt: skip
    key, equals, _ = current.partition("=")
    if equals:
        yield from (f"{key}={value}" for value in values.get(key, ()))
        return
    block = current.rpartition(".")[0]
    blocks = {name for name in OWN if name}
    for name in OWN.get(block, ()):
        path = f"{block}.{name}" if block else name
        yield f"{path}." if path in blocks else f"{path}="
    if not block:
        yield from (f"{name}=" for name in ("exp_tag", "exp_dir", "data_dir", "seed"))
