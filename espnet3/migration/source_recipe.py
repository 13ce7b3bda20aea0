"""Read a recipe of ESPnet2: the options of its `run.sh`, its configs, and how it submits jobs."""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from espnet3.errors import EspnetError
from espnet3.migration.jobs import JobCommand, JobConf, read_command, read_conf, split_words
from espnet3.migration.journal import Journal, Origin
from espnet3.migration.shell_commands import Call, ScriptReader, base_name
from espnet3.migration.shell_values import Field, Unknown

TASKS = (
    "asr", "asr2", "asvspoof", "avsr", "cls", "codec", "diar", "enh", "enh_asr", "enh_diar",
    "enh_st", "hubert", "lid", "lm", "mt", "s2st", "s2t", "slu", "speechlm", "spk", "ssl", "st",
    "svs", "svs2", "tse", "tts", "tts2", "uasr", "vc",
)  # fmt: skip
"""Those of ESPnet2, each with a script `TASK.sh` that a recipe's `run.sh` calls."""
DEFAULTS = {
    "token_type": "bpe", "nbpe": "30", "bpemode": "unigram", "bpe_char_cover": "1.0",
    "use_lm": "true", "ngpu": "1", "num_nodes": "1", "nj": "32", "inference_nj": "32",
    "gpu_inference": "false", "fs": "16k", "feats_type": "raw", "feats_normalize": "global_mvn",
    "min_wav_duration": "0.1", "max_wav_duration": "20", "speed_perturb_factors": "",
    "asr_speech_fold_length": "800", "asr_text_fold_length": "150", "lang": "noinfo",
    "inference_asr_model": "valid.acc.ave.pth", "inference_lm": "valid.loss.ave.pth",
    "dumpdir": "dump", "expdir": "exp",
}  # fmt: skip
"""Defaults of `asr.sh`, where `run.sh` sets nothing else."""
_TASK_DEFAULTS = {
    "tts": {"token_type": "phn", "inference_model": "train.loss.ave.pth", "inference_nj": "32",
            "feats_extract": "fbank", "cleaner": "tacotron", "g2p": "g2p_en"},
    "enh": {"inference_model": "valid.loss.ave.pth", "spk_num": "2", "dereverb_ref_num": "1",
            "noise_type_num": "1"},
    "spk": {"inference_model": "valid.eer.best.pth", "feats_normalize": "utterance_mvn"},
    "st": {"inference_st_model": "valid.acc.ave.pth"},
    "mt": {"inference_mt_model": "valid.acc.ave.pth"},
    "slu": {"inference_slu_model": "valid.acc.ave.pth"},
    "asr2": {"inference_asr_model": "valid.acc.ave.pth"},
    "s2t": {"inference_s2t_model": "valid.acc.ave.pth"},
    "lid": {"inference_model": "valid.accuracy.best.pth", "feats_normalize": "utterance_mvn"},
}  # fmt: skip
"""Where the script of another task does something else."""
_NOT_SOURCED = {"path.sh", "parse_options.sh", "cmd.sh"}
_STAGES = {"stage", "stop_stage"}
_MOST_BYTES = 1 << 20
_NONE = ("none", "null", "nil")
"""Texts that ESPnet2 takes for no value."""
_JOB_COMMANDS = ("train_cmd", "cuda_cmd", "decode_cmd")


class MigrationError(EspnetError):
    """The given folder cannot be migrated."""


@dataclass(frozen=True)
class Option:
    """An option of `asr.sh`."""

    name: str
    """With underscores."""
    value: str
    origin: Origin


@dataclass
class ConfigFile:
    """A YAML file of ESPnet2."""

    file: str
    values: dict[str, Any]
    """By names with underscores, as far as the top level goes."""
    origins: dict[str, Origin] = field(default_factory=dict)

    def origin(self, key: str) -> Origin:
        """Return where a key of the top level is set."""
        return self.origins.get(key, Origin(self.file))

    def with_arguments(self, option: Option | None, journal: Journal) -> "ConfigFile":
        """Return the config after arguments such as `--max_epoch 5 --optim_conf lr=0.1`."""
        if option is None or not option.value.strip():
            return self
        values, origins = dict(self.values), dict(self.origins)
        name, given = "", set[str]()
        for word in split_words(option.value):
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
                name = name.replace("-", "_")
                given.discard(name)
                origins[name] = option.origin
                if equals:
                    values[name] = _parsed(as_value(value))
                else:
                    values.setdefault(name, True)
                continue
            key, equals, value = word.partition("=")
            if not name:
                journal.changes(option.origin, f"--{option.name}", word, "it is no `--key value`")
            elif equals and name.endswith("_conf"):
                block = values.get(name)
                values[name] = {**(block if isinstance(block, dict) else {}), key: as_value(value)}
            elif name in given:  # several words, such as those of --init_param
                before = values[name] if isinstance(values[name], list) else [values[name]]
                values[name] = [*before, as_value(word)]
            else:
                values[name] = _parsed(as_value(word))
                given.add(name)
        became = "the keys below, from this line"
        journal.taken(option.origin, f"--{option.name}", option.value, "", became)
        return ConfigFile(self.file, values, origins)


@dataclass
class SourceRecipe:
    """A recipe of ESPnet2, as far as it was read."""

    folder: Path
    script: str
    task: str
    options: dict[str, Option]
    journal: Journal
    stages: str = ""
    commands: dict[str, tuple[JobCommand, Origin]] = field(default_factory=dict)
    confs: dict[str, JobConf] = field(default_factory=dict)

    def get(self, name: str) -> str:
        """Return the value of an option, or what `asr.sh` takes without it."""
        option = self.options.get(name)
        own = _TASK_DEFAULTS.get(self.task, {})
        return option.value if option else own.get(name, DEFAULTS.get(name, ""))

    def is_on(self, name: str) -> bool:
        """Tell whether a switch is on."""
        return self.get(name).lower() == "true"

    def number(self, name: str) -> float:
        """Return the value of an option that is a number, else that of `asr.sh`."""
        text = self.get(name)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if 0 <= value < math.inf:
            return value
        self.journal.changes(self.origin(name), f"--{name}", text, "it is not a number")
        return float(DEFAULTS[name])

    def origin(self, name: str) -> Origin:
        """Return where an option is set; `asr.sh` where it is not."""
        option = self.options.get(name)
        return option.origin if option else Origin(f"{self.task}.sh")

    @property
    def sample_rate(self) -> int:
        """Of `--fs`, in Hz."""
        text = self.get("fs").lower().replace("hz", "")
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(k?)", text)
        if not found or not float(found[1]):
            self.journal.changes(self.origin("fs"), "--fs", text, "it is not a rate; 16 kHz taken")
            return 16000
        return round(float(found[1]) * (1000 if found[2] else 1))

    def config(self, option: str) -> ConfigFile | None:
        """Return the config that an option names, None if it names none.

        Raises:
            MigrationError: There is no such file, or it is no mapping in YAML.
        """
        found = self.options.get(option)
        if found is None or not found.value:
            return None
        return read_config(self.folder, found.value, f"{found.origin}: --{option} {found.value}")


def as_value(text: str) -> Any:
    """Return what YAML makes of a word; numbers such as 1e-3 too."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return as_number(value)


def _parsed(value: Any) -> Any:
    """Return the value of a key as ESPnet2's parser of arguments makes it of a text."""
    if isinstance(value, str):
        if value.lower() in _NONE:
            return None
        if re.fullmatch(r"[-+]?\d+(\.\d*)?", value):
            return float(value) if "." in value else int(value)
    return as_number(value)


def as_number(value: Any) -> Any:
    """Return numbers for texts such as `1e-3`, which YAML takes for a word, in all of a value."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return float(value)
    if isinstance(value, dict):
        return {str(name): as_number(one) for name, one in value.items()}
    if isinstance(value, list):
        return [as_number(one) for one in value]
    return value


def read_config(folder: Path, name: str, asked_by: str) -> ConfigFile:
    """Read a YAML file of a recipe.

    Args:
        folder: Of the recipe.
        name: Of the file, below it.
        asked_by: What names the file, for errors.

    Raises:
        MigrationError: There is no such file, or it is no mapping in YAML.
    """
    path = folder / name
    if not path.is_file():
        kind = "a link to a file that is not there" if path.is_symlink() else "not there"
        link = f" ({os.readlink(path)})" if path.is_symlink() else ""
        raise MigrationError(
            f"{asked_by}: {path} is {kind}{link}.",
            fix="Give a recipe with all its files: links of egs2 lead to other folders of ESPnet, "
            "so clone all of it",
        )
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise MigrationError(
            f"{path}{line} is no YAML: {problem}.", fix="Correct the file; nothing was written."
        ) from error
    if not isinstance(values, dict | None):
        raise MigrationError(
            f"{path} is a {type(values).__name__}, not keys and values.",
            fix="Give a config of ESPnet2, such as conf/train_asr.yaml",
        )
    origins = {}
    for key, _ in getattr(root, "value", None) or []:
        plain = str(key.value).replace("-", "_")
        origins[plain] = Origin(name, key.start_mark.line + 1)
    plain_values = {str(key).replace("-", "_"): _parsed(v) for key, v in (values or {}).items()}
    return ConfigFile(name, plain_values, origins)


def read_recipe(folder: Path, script: str = "run.sh") -> SourceRecipe:
    """Read a recipe of ESPnet2; nothing of it is run or changed.

    Raises:
        MigrationError: It is none, or its `run.sh` calls nothing that is known.
        ShellError: Its `run.sh` cannot be parsed.
    """
    text = _script_text(folder, script)
    journal = Journal()
    reader = ScriptReader(lambda path: _sourced(folder, path, journal))
    reader.read(text, script)
    calls = [call for call in reader.calls if _task_of(call.program)]
    if not calls:
        raise _no_call(folder, script, reader.calls)
    task = _task_of(calls[0].program)
    recipe = SourceRecipe(folder, script, task, {}, journal)
    _take_calls(recipe, calls)
    for remark in reader.remarks:
        journal.left_out(Origin(remark.file, remark.line), "shell", "", f"{remark.text}")
    _list_other_commands(recipe, [call for call in reader.calls if call not in calls])
    _read_jobs(recipe)
    return recipe


def _script_text(folder: Path, script: str) -> str:
    if not folder.is_dir():
        raise MigrationError(
            f"{folder} is no folder.",
            fix="Give the folder of a recipe: espnet3 migrate egs2/an4/asr1 an4/asr",
        )
    path = folder / script
    if not path.is_file():
        if (folder / "run.py").is_file() and (folder / "conf").is_dir():
            raise MigrationError(
                f"{folder} has a run.py that uses no TEMPLATE, and no {script}: it is a recipe of "
                "ESPnet3 already.",
                fix=f"See whether it runs as it is: espnet3 run {folder} --list-stages",
            )
        inside = sorted(one.parent.name for one in folder.glob(f"*/{script}"))
        hint = f" Perhaps you mean {folder / inside[0]}." if inside else ""
        raise MigrationError(
            f"{folder} is no recipe of ESPnet2: it has no {script}.{hint}",
            fix="Give the folder that has one: espnet3 migrate egs2/an4/asr1 an4/asr",
        )
    return path.read_text(encoding="utf-8", errors="replace")


def _sourced(folder: Path, path: str, journal: Journal) -> tuple[str, str] | None:
    """Return the text of a file that run.sh sources, if it sets variables."""
    name = base_name(path)
    if name in _NOT_SOURCED:
        return None
    file = folder / path
    if not file.is_file() or file.stat().st_size > _MOST_BYTES:
        journal.left_out(Origin(path), "sourced", "", "it is not there, so it was not read")
        return None
    journal.taken(Origin(path), "sourced", "", "", "its variables are used below")
    return file.read_text(encoding="utf-8", errors="replace"), os.path.normpath(path)


def _task_of(program: str) -> str:
    """Return `asr` for `./asr.sh`; empty for other commands."""
    name = base_name(program).removesuffix(".sh")
    is_own = "/" not in program.removeprefix("./") or program.startswith("../")
    return name if is_own and program.endswith(".sh") and name in TASKS else ""


def _no_call(folder: Path, script: str, calls: list[Call]) -> MigrationError:
    others = [call.program for call in calls if base_name(call.program).startswith("run")]
    if others:
        inner = others[0].removeprefix("./")
        fix = f"Migrate the one that it starts: espnet3 migrate {folder} TARGET --script {inner}"
    else:
        fix = "A recipe ends with a call such as: ./asr.sh --train_set train --valid_set dev"
    return MigrationError(
        f"{folder / script} calls no script of ESPnet2's tasks (asr.sh, tts.sh, ...), so it is "
        "half a recipe, or none.",
        fix=fix,
    )


def _take_calls(recipe: SourceRecipe, calls: list[Call]) -> None:
    journal = recipe.journal
    recipe.options = _options_of(calls[0], journal)
    for call in calls[1:]:
        options = _options_of(call, Journal())
        new = {name for name in options if name not in recipe.options}
        differing = sorted(
            name
            for name, option in options.items()
            if name in recipe.options and recipe.options[name].value != option.value
        )
        origin = Origin(call.file, call.line)
        shown = " ".join(str(getattr(w.value, "text", w.value)) for w in call.words)
        if not (call.is_certain and calls[0].is_certain):
            differing = sorted({*differing, *(options.keys() ^ recipe.options.keys())})
        if set(differing) <= _STAGES:
            recipe.options.update({name: options[name] for name in new - _STAGES})
            note = "a further call, with the options of the first one"
            journal.taken(origin, call.program, shown, "", note)
        else:
            note = f"a further call that differs in {', '.join(differing)}; the first was taken"
            journal.changes(origin, call.program, shown, note)
    if not calls[0].is_certain:
        origin = Origin(calls[0].file, calls[0].line)
        note = "the call stands in a condition or loop that was not decided; taken as it is"
        journal.left_out(origin, calls[0].program, "", note)


def _options_of(call: Call, journal: Journal) -> dict[str, Option]:
    """Return the options of a call; of one that is given twice the last counts."""
    options: dict[str, Option] = {}
    words, index = list(call.words), 0
    while index < len(words):
        word = words[index]
        origin = Origin(call.file, word.line)
        index += 1
        if isinstance(word.value, Unknown):
            note = f"may hold options, but is not known: {word.value.reason}"
            journal.changes(origin, word.value.text, "", note)
            continue
        name = word.value[2:].replace("-", "_")
        if not word.value.startswith("--") or not name:
            note = "is no option; asr.sh takes options only"
            journal.left_out(origin, word.value or '""', "", note)
            continue
        if index == len(words):
            journal.changes(origin, word.value, "", "has no value")
            continue
        index += 1
        _add_option(options, name, words[index - 1], origin, journal)
        following = words[index - 1].value
        if isinstance(following, str) and re.fullmatch(r"--[\w-]+", following):
            note = f"its value is {following}: perhaps a variable that is empty, or a word too few"
            journal.changes(origin, word.value, following, note)
    return options


def _add_option(
    options: dict[str, Option], name: str, word: Field, origin: Origin, journal: Journal
) -> None:
    if name in options:
        before = options.pop(name)
        note = f"given again at {origin}, which counts"
        journal.unneeded(before.origin, f"--{name}", before.value, note)
    if isinstance(word.value, Unknown):
        note = f"the value is not known: {word.value.reason}; write it into the recipe"
        journal.changes(origin, f"--{name}", word.value.text, note)
    else:
        value = " ".join(word.value.split())  # lists may go over several lines
        options[name] = Option(name, value, origin)


def _list_other_commands(recipe: SourceRecipe, calls: list[Call]) -> None:
    for call in calls:
        shown = " ".join(str(getattr(word.value, "text", word.value)) for word in call.words)
        origin = Origin(call.file, call.line)
        note = "a command of run.sh, which was not run; see whether data or results need it"
        if call.file == recipe.script and call.is_certain:
            recipe.journal.changes(origin, call.program, shown, note)
        else:
            recipe.journal.left_out(origin, call.program, shown, note)


def _read_jobs(recipe: SourceRecipe) -> None:
    """Read `cmd.sh` and the files that its commands name."""
    path = recipe.folder / "cmd.sh"
    if path.is_file():
        reader = ScriptReader()
        reader.read(path.read_text(encoding="utf-8", errors="replace"), "cmd.sh")
        for name in _JOB_COMMANDS:
            value = reader.variables.get(name)
            if isinstance(value, str) and value.strip():
                origin = Origin("cmd.sh", reader.set_at[name])
                recipe.commands[name] = (read_command(value), origin)
            else:
                why = value.reason if isinstance(value, Unknown) else "it is not set"
                note = f"not known: {why}; workers run on this machine"
                recipe.journal.left_out(Origin("cmd.sh"), name, "", note)
    for name in ("slurm", "pbs", "queue"):
        _read_conf(recipe, f"conf/{name}.conf")
    for command, _ in recipe.commands.values():
        _read_conf(recipe, command.options.get("config", ""))


def _read_conf(recipe: SourceRecipe, name: str) -> None:
    path = recipe.folder / name
    if name and name not in recipe.confs and path.is_file():
        conf = read_conf(path.read_text(encoding="utf-8", errors="replace"), name)
        recipe.confs[name] = conf
        for line, text in conf.bad_lines:
            note = "is neither command, option nor default"
            recipe.journal.left_out(Origin(name, line), "line", text, note)


def flatten(block: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by their dotted keys."""
    found: dict[str, Any] = {}
    for name, value in block.items():
        if isinstance(value, Mapping) and value:
            found.update(flatten(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found
