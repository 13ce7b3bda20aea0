"""Spell the settings of a made-up recipe in the shell of ESPnet2's `run.sh`, habit by habit."""

import random
from collections.abc import Callable
from typing import Any

from tests.helpers.census_settings import Settings

HEAD = """#!/usr/bin/env bash
# Set bash to 'debug' mode, it will exit on :
# -e 'error', -u 'undefined variable', -o ... 'error in pipeline', -x 'print commands',
set -e
set -u
set -o pipefail

"""
PARSE = """. utils/parse_options.sh

"""


class Speller:
    """Writes `run.sh`: each option by a habit that is drawn for it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.random = random.Random(104729 * settings.number + 5)
        self.above: list[str] = []
        """Lines before the call."""
        self.files: dict[str, str] = {}
        """Further files that run.sh sources."""
        self.habits: set[str] = set()
        self.n_variables = 0

    def script(self) -> str:
        words = [(name, self.value(name, text)) for name, text in self.settings.options.items()]
        call = self.call(words)
        commands = "".join(f"{line}\n" for line in self.settings.commands)
        return HEAD + "".join(self.above) + "\n" + commands + call

    # --- Values --------------------------------------------------------------------------------

    def value(self, name: str, text: str) -> str:
        """Return the word of an option, after the lines that it needs."""
        habits: list[tuple[int, Callable[[str, str], str]]] = [
            (20, self.plain), (40, self.variable), (12, self.inside_a_word), (8, self.from_another),
            (6, self.in_an_if), (4, self.with_a_comment), (2, self.with_a_default),
            (2, self.exported), (1, self.sourced), (1, self.by_a_case), (1, self.cut),
        ]  # fmt: skip
        if " " in text:
            habits += [(4, self.by_a_loop), (3, self.over_lines), (2, self.by_an_array)]
        if name in ("inference_nj", "nbpe", "lang", "nj", "max_wav_duration"):
            habits.append((2, self.substituted))
        chosen = self.random.choices([h for _, h in habits], [n for n, _ in habits])[0]
        self.habits.add(chosen.__name__)
        return chosen(name, text)

    def quoted(self, text: str) -> str:
        if text and self.random.random() < 0.5 and not set(text) & set(" ,<>${}()*&|;'\""):
            return text
        return f"'{text}'" if self.random.random() < 0.2 else f'"{text}"'

    def used(self, variable: str) -> str:
        return self.random.choice([f'"${{{variable}}}"', f'"${variable}"', f'"${{{variable}}}"'])

    def new_variable(self, name: str) -> str:
        self.n_variables += 1
        return self.random.choice([name, name, f"my_{name}", f"{name}{self.n_variables}"])

    def plain(self, name: str, text: str) -> str:
        return self.quoted(text)

    def variable(self, name: str, text: str) -> str:
        variable = self.new_variable(name)
        self.above.append(f"{variable}={self.quoted(text)}\n")
        return self.used(variable)

    def exported(self, name: str, text: str) -> str:
        self.above.append(f"export {name}_env={self.quoted(text)}\n")
        return self.used(f"{name}_env")

    def inside_a_word(self, name: str, text: str) -> str:
        """A part of the word is a variable: `data/${lang}/text`."""
        if len(text) < 4:
            return self.variable(name, text)
        first = self.random.randrange(1, len(text) - 2)
        last = self.random.randrange(first + 1, len(text) - 1)
        variable = self.new_variable(f"part_of_{name}")
        self.above.append(f'{variable}="{text[first:last]}"\n')
        return f'"{text[:first]}${{{variable}}}{text[last:]}"'

    def from_another(self, name: str, text: str) -> str:
        variable = self.new_variable(f"base_{name}")
        if len(text) < 2:
            self.above.append(f"{variable}={self.quoted(text)}\n{name}_of={self.used(variable)}\n")
        else:
            self.above.append(f'{variable}="{text[:1]}"\n{name}_of="${{{variable}}}{text[1:]}"\n')
        return self.used(f"{name}_of")

    def in_an_if(self, name: str, text: str) -> str:
        test = self.random.choice([
            '[ "${kind}" = small ]', '[[ ${kind} == small ]]', '[ "$kind" != large ]',
            '[ -n "${kind}" ] && [ ! "${kind}" = huge ]', '[[ ${kind} == *mal* ]]',
            '${is_small}', '[ ${size} -gt 2 ]', '[ "${size}" -le 3 -a "${kind}" = small ]',
        ])  # fmt: skip
        variable = self.new_variable(name)
        other = "0" if text.isdigit() else "other"
        self.above.append(
            f"kind=small\nis_small=true\nsize=3\n{variable}={other}\n"
            f'if {test}; then\n    {variable}="{text}"\nelse\n    {variable}="{other}"\nfi\n'
        )
        return self.used(variable)

    def by_a_case(self, name: str, text: str) -> str:
        variable = self.new_variable(name)
        self.above.append(
            f'model_size=base\ncase "${{model_size}}" in\n    tiny|small) {variable}=other ;;\n'
            f'    ba*) {variable}="{text}" ;;\n    *) {variable}=none ;;\nesac\n'
        )
        return self.used(variable)

    def with_a_comment(self, name: str, text: str) -> str:
        variable = self.new_variable(name)
        comment = '# it\'s ("the") value; $of --something'
        self.above.append(f"{variable}={self.quoted(text)}  {comment}\n")
        return self.used(variable)

    def with_a_default(self, name: str, text: str) -> str:
        return f'"${{{name}_unset:-{text}}}"'

    def cut(self, name: str, text: str) -> str:
        variable = self.new_variable(f"long_{name}")
        self.above.append(f'{variable}="{text}_cut"\n')
        return f'"${{{variable}%_cut}}"'

    def sourced(self, name: str, text: str) -> str:
        file = f"conf/{name}.conf.sh"
        self.files[file] = f'# settings\n{name}_there="{text}"\n'
        self.above.append(f". ./{file}\n")
        return self.used(f"{name}_there")

    def by_a_loop(self, name: str, text: str) -> str:
        variable = self.new_variable(f"{name}_list")
        words = " ".join(f'"{word}"' for word in text.split())
        self.above.append(
            f'{variable}=""\nfor one in {words}; do\n    {variable}+="${{one}} "\ndone\n'
        )
        return self.used(variable)

    def by_an_array(self, name: str, text: str) -> str:
        words = " ".join(f'"{word}"' for word in text.split())
        self.above.append(f"{name}_array=({words})\n")
        return f'"${{{name}_array[*]}}"'

    def over_lines(self, name: str, text: str) -> str:
        variable = self.new_variable(name)
        lines = self.random.choice(["\n    ", " \\\n    "]).join(text.split())
        self.above.append(f'{variable}="{lines}"\n')
        return self.used(variable)

    def substituted(self, name: str, text: str) -> str:
        self.settings.unknown.add(name)
        self.above.append(f"{name}_found=$(wc -l < data/{name}.txt)\n")
        return self.used(f"{name}_found")

    # --- The call ------------------------------------------------------------------------------

    def call(self, words: list[tuple[str, str]]) -> str:
        rng, lines = self.random, list[str]()
        words, before = self.whole_options(list(words))
        for name, value in words:
            shown = name.replace("_", "-") if rng.random() < 0.02 else name
            lines.append(f"--{shown} {value}")
        if lines and rng.random() < 3 / 142:
            name, _ = words[-1]
            lines.insert(0, f"--{name} other")
            self.habits.add("option twice")
        if rng.random() < 12 / 142:
            lines = [" ".join(lines[i : i + 2]) for i in range(0, len(lines), 2)]
            self.habits.add("several options on a line")
        place = len(lines) if rng.random() > 10 / 142 else rng.randrange(len(lines) + 1)
        if rng.random() > 0.05:
            lines.insert(place, rng.choice(['"$@"', '"$@"', "$@", '"${@}"']))
        glue = "\\\n" if rng.random() < 30 / 142 else " \\\n"
        call = f"{glue}    ".join(["./asr.sh", *before, *lines])
        shape = rng.choices(["plain", "function", "if", "twice", "log"], [120, 2, 4, 3, 13])[0]
        self.habits.add(f"call: {shape}")
        return before_call(shape) + wrapped(shape, call)

    def whole_options(
        self, words: list[tuple[str, Any]]
    ) -> tuple[list[tuple[str, Any]], list[str]]:
        """Put some options into a variable or an array that holds them as a whole."""
        draw = self.random.random()
        if draw > 0.06 or len(words) < 3:
            return words, []
        kept, (name, _) = words[:-1], words[-1]
        text = self.settings.options[name]
        self.settings.unknown.discard(name)
        if draw < 0.03 and text and " " not in text:
            self.above.append(f'opts="--{name} {text}"\n')
            self.habits.add("a variable of whole options")
            return kept, ["${opts}"]
        self.above.append(f'args=(--{name} "{text}")\n')
        self.habits.add("an array of options")
        return kept, ['"${args[@]}"']


def before_call(shape: str) -> str:
    if shape != "log":
        return ""
    return """log() {
    local fname=${BASH_SOURCE[1]##*/}
    echo -e "$(date '+%Y-%m-%dT%H:%M:%S') (${fname}:${BASH_LINENO[0]}:${FUNCNAME[1]}) $*"
}
log "start"
cat << EOF > /dev/null
it's not ./asr.sh --train_set wrong "
EOF

"""


def wrapped(shape: str, call: str) -> str:
    if shape == "function":
        return f'run_all() {{\n{call}\n}}\nrun_all "$@"\n'
    if shape == "if":
        return f'use_it=true\nif [ "${{use_it}}" = true ]; then\n{call}\nfi\n'
    if shape == "twice":
        return f"{call}\n\n./asr.sh --stage 12 --stop_stage 13\n"
    return f"{call}\n"


CMD = """# ====== About run.pl, queue.pl, slurm.pl, and ssh.pl ======
# Usage: <cmd>.pl [options] JOB=1:<nj> <log> <command...>

# Select the backend used by run.sh from "local", "sge", "slurm", or "ssh"
cmd_backend='{backend}'

# Local machine, without any Job scheduling system
if [ "${{cmd_backend}}" = local ]; then
    export train_cmd="run.pl"
    export cuda_cmd="run.pl"
    export decode_cmd="run.pl"
elif [ "${{cmd_backend}}" = sge ]; then
    export train_cmd="queue.pl --mem 3G"
    export cuda_cmd="queue.pl --mem 6G"
    export decode_cmd="queue.pl --mem 4G --max-jobs-run 10"
elif [ "${{cmd_backend}}" = slurm ]; then
    export train_cmd="slurm.pl --mem 3G"
    export cuda_cmd="slurm.pl --mem 6G --num_threads 4"
    export decode_cmd="slurm.pl --mem 4G --max-jobs-run 10"
elif [ "${{cmd_backend}}" = pbs ]; then
    export train_cmd="pbs.pl --mem 3G"
    export cuda_cmd="pbs.pl --mem 6G"
    export decode_cmd="pbs.pl --mem 4G --max-jobs-run 10"
elif [ "${{cmd_backend}}" = ssh ]; then
    export train_cmd="ssh.pl"
    export cuda_cmd="ssh.pl"
    export decode_cmd="ssh.pl"
else
    echo "$0: Error: Unknown cmd_backend=${{cmd_backend}}" 1>&2
    return 1
fi
"""
