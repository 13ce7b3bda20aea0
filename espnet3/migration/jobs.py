"""Write `conf/parallel_*.yaml` and `conf/launch_*.yaml` for the jobs of an ESPnet2 recipe.

They are read from `cmd.sh`, and of Kaldi's little language of `conf/*.conf`.

A command such as `slurm.pl --config conf/slurm.conf --mem 8G --gpu 1` becomes the options of a
`parallel` or `launch` block.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from espnet3.config.value_translations import env_for
from espnet3.migration.journal import Journal, Origin
from espnet3.schedulers import scheduler_of

if TYPE_CHECKING:
    from espnet3.migration.source_recipe import SourceRecipe

_MEMORY = re.compile(r"(\d+)\s*([KMGT]?)i?B?", re.IGNORECASE)
_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")
# What the wrappers of Kaldi set for their own bookkeeping; here the run does that.
_OWN = {"--export", "-V", "-v", "-S", "-j", "-cwd", "-o", "-e", "-J", "--job-name", "-N",
        "--open-mode", "--ntasks-per-node", "-sync", "-shell", "-wd", "-d"}  # fmt: skip
_WITHOUT_VALUE = {"-V", "-cwd", "--exclusive", "--requeue", "--no-requeue", "-H"}


@dataclass(frozen=True)
class Rule:
    """A line `option name=value text`, where the value may be `*`."""

    name: str
    value: str
    text: str
    line: int


@dataclass
class JobConf:
    """A file in Kaldi's language: the command, the options and their defaults."""

    file: str
    command: str = ""
    rules: list[Rule] = field(default_factory=list)
    defaults: dict[str, str] = field(default_factory=dict)
    bad_lines: list[tuple[int, str]] = field(default_factory=list)

    def words_for(self, options: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """Return the words that the command gets, and the names of options without a rule."""
        text, unknown = self.command.partition(" ")[2], []
        for name, value in {**self.defaults, **options}.items():
            rules = [rule for rule in self.rules if rule.name == name]
            exact = next((rule for rule in rules if rule.value == value), None)
            rule = exact or next((rule for rule in rules if rule.value == "*"), None)
            if rule is None:
                unknown.append(name)
            else:
                text += f" {rule.text.replace('$0', value)}"
        return split_words(text), unknown


def read_conf(text: str, file: str) -> JobConf:
    """Read a file of Kaldi's language; lines that are none of it are kept as such.

    Example:
        >>> conf = read_conf("command sbatch\\noption mem=* --mem $0\\n", "slurm.conf")
        >>> conf.words_for({"mem": "8G"})
        (['--mem', '8G'], [])
    """
    conf = JobConf(file)
    for number, line in enumerate(text.splitlines(), 1):
        plain = re.sub(r"(^|\s)#.*", "", line).strip()
        word, _, rest = plain.partition(" ")
        setting = re.match(r"([\w-]+)=(\S*)\s*(.*)", rest.strip())
        if not plain:
            continue
        if word == "command" and rest:
            conf.command = rest.strip()
        elif word == "option" and setting:
            name = setting[1].replace("-", "_")
            conf.rules.append(Rule(name, setting[2], setting[3], number))
        elif word == "default" and setting:
            conf.defaults[setting[1].replace("-", "_")] = setting[2]
        else:
            conf.bad_lines.append((number, plain))
    return conf


@dataclass(frozen=True)
class JobCommand:
    """A command of `cmd.sh` such as `slurm.pl --mem 8G`."""

    program: str
    options: dict[str, str]
    """By their names with underscores."""
    rest: tuple[str, ...] = ()
    """Words that are no `--name value`, such as `-q all.q`."""

    @property
    def env(self) -> str:
        """The `parallel.env` for it; empty if there is none."""
        return env_for(self.program) or ""


def read_command(text: str) -> JobCommand:
    """Read a command of `cmd.sh`.

    Example:
        >>> command = read_command("slurm.pl --config conf/slurm.conf --max-jobs-run 20")
        >>> command.env, command.options["max_jobs_run"]
        ('slurm', '20')
    """
    words = split_words(text)
    options, rest = {}, []
    index = 1
    while index < len(words):
        word = words[index]
        # `--gres=gpu:1` is one word, for the scheduler.
        if word.startswith("--") and "=" not in word and index + 1 < len(words):
            options[word[2:].replace("-", "_")] = words[index + 1]
            index += 2
        else:
            rest.append(word)
            index += 1
    return JobCommand(words[0] if words else "", options, tuple(rest))


def split_words(text: str) -> list[str]:
    """Split a text at blanks, with quotes where these are closed."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


@dataclass
class JobOptions:
    """Resources of a job, independent of the scheduler."""

    queue: str = ""
    account: str = ""
    time: str = ""
    cores: int = 1
    gigabytes: int = 0
    directives: list[str] = field(default_factory=list)
    """All that has no field of its own, verbatim."""
    gpu_directives: list[str] = field(default_factory=list)

    def parallel(self, env: str) -> dict[str, object]:
        """Return `parallel.options`."""
        account = "project" if env == "sge" else "account"
        named = {"queue": self.queue, account: self.account, "walltime": self.time}
        extra = [*self.directives, *self.gpu_directives]
        return {
            **{name: value for name, value in named.items() if value},
            "cores": self.cores,
            "processes": 1,
            "memory": f"{self.gigabytes or 4}GB",
            **({"job_extra_directives": extra} if extra else {}),
        }

    def launch(self, env: str) -> dict[str, object]:
        """Return the `launch` block; its GPUs are those of the trainer."""
        named = {"queue": self.queue, "account": self.account, "time": self.time}
        pe = next((d.split()[1] for d in self.directives if d.startswith("-pe ")), "")
        others = [d for d in self.directives if not d.startswith("-pe ")]
        return {
            "scheduler": env,
            **{name: value for name, value in named.items() if value},
            "cpus_per_task": self.cores,
            **({"memory": f"{self.gigabytes}G"} if self.gigabytes and env != "sge" else {}),
            **({"parallel_environment": pe} if pe else {}),
            **({"directives": others} if others else {}),
        }


def gigabytes(text: str) -> int:
    """Return a size such as `8G` or `8000M` in whole gigabytes; 0 if it is none."""
    found = _MEMORY.fullmatch(text.strip())
    if not found:
        return 0
    size = int(found[1])
    factor = {"K": 1 / 1024**2, "M": 1 / 1024, "G": 1, "T": 1024, "": 1 / 1024}
    return max(1, round(size * factor[found[2].upper()])) if size else 0


def job_options(words: list[str], env: str) -> JobOptions:
    """Sort the words for a submit command."""
    job = JobOptions()
    per_core = False
    readers: dict[str, Callable[[str], object]] = {
        **dict.fromkeys(("-p", "--partition", "-q"), lambda v: setattr(job, "queue", v)),
        **dict.fromkeys(("-A", "--account", "-P"), lambda v: setattr(job, "account", v)),
        **dict.fromkeys(("-t", "--time"), lambda v: _set_time(job, v)),
        **dict.fromkeys(("-c", "--cpus-per-task"), lambda v: _set_cores(job, v)),
        "--mem": lambda v: setattr(job, "gigabytes", gigabytes(v)),
        "--mem-per-cpu": lambda v: setattr(job, "gigabytes", gigabytes(v)),
    }
    for flag, value in _pairs(words):
        if flag in _OWN:
            continue
        if flag == "-l":
            _resources(job, value, env)
        elif flag == "-pe":
            job.directives.append(f"-pe {value}")
            _set_cores(job, value.split()[-1])
        elif flag in readers:
            per_core = per_core or flag == "--mem-per-cpu"
            readers[flag](value)
        else:
            joined = f"{flag}={value}" if flag.startswith("--") and value else f"{flag} {value}"
            _directive(job, joined.strip(), env)
    if per_core:
        job.gigabytes *= job.cores
    return job


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    pairs, index = [], 0
    while index < len(words):
        flag, equals, value = words[index].partition("=")
        index += 1
        if not flag.startswith("-"):
            continue
        if not equals and flag not in _WITHOUT_VALUE:
            taken = 2 if flag == "-pe" else 1
            value = " ".join(words[index : index + taken])
            if not value.startswith("-"):
                index += taken
            else:
                value = ""
        pairs.append((flag, value if equals or flag not in _WITHOUT_VALUE else ""))
    return pairs


def _resources(job: JobOptions, text: str, env: str) -> None:
    """Read `-l mem=8gb,walltime=4:00:00`."""
    for resource in text.split(","):
        name, _, value = resource.partition("=")
        if name in ("walltime", "h_rt"):
            _set_time(job, value)
        elif name in ("mem", "mem_free", "ram_free", "h_vmem"):
            job.gigabytes = job.gigabytes or gigabytes(value)
            if env == "sge":
                job.directives.append(f"-l {resource}")
        elif name in ("ncpus", "ppn"):
            _set_cores(job, value)
        elif resource:
            _directive(job, f"-l {resource}", env)


def _directive(job: JobOptions, text: str, env: str) -> None:
    scheduler = scheduler_of(env)
    patterns = scheduler.gpu_options if scheduler else ()
    is_gpu = any(re.search(pattern, text) for pattern in patterns) or "gpu" in text
    (job.gpu_directives if is_gpu else job.directives).append(text)


def _set_cores(job: JobOptions, text: str) -> None:
    if text.isdigit() and int(text):
        job.cores = int(text)


def _set_time(job: JobOptions, text: str) -> None:
    found = _TIME.fullmatch(text)
    if found:
        hours = int(found[2]) + 24 * int(found[1] or 0)
        job.time = f"{hours:02d}:{found[3]}:{found[4]}"
    elif text.isdigit():  # minutes, as Slurm counts
        job.time = f"{int(text) // 60:02d}:{int(text) % 60:02d}:00"
    elif text:
        job.directives.append(f"--time={text}")


def jobs_of(
    command: JobCommand, conf: JobConf | None, origin: Origin, journal: Journal, **more: str
) -> JobOptions:
    """Return what a job of a command asks for.

    Args:
        command: Of `cmd.sh`.
        conf: The file that it names; None if there is none.
        origin: Of the command.
        journal: Gets a line for each option that the file does not know.
        more: Options that `asr.sh` adds, such as `gpu` and `num_threads`.
    """
    given = {**command.options, **more}
    for name in ("config", "max_jobs_run", "nj"):
        given.pop(name, None)
    if conf is None:
        flags = [f"--{k}" for k in given]
        words = [w for pair in zip(flags, given.values(), strict=True) for w in pair]
        return job_options([*words, *command.rest], command.env)
    words, unknown = conf.words_for(given)
    for name in unknown:
        if name in command.options:
            note = f"{conf.file} has no line `option {name}=*`, so the wrapper would refuse it"
            journal.left_out(origin, f"--{name}", given[name], note)
    return job_options([*words, *command.rest], command.env)


AddConfig = Callable[[str, str, dict[str, Any]], None]
"""Takes the name of a config, the comment at its top, and its values."""
_PURPOSES = {
    "train_cmd": "parallel of conf/training.yaml",
    "cuda_cmd": "espnet3 launch",
    "decode_cmd": "parallel of conf/inference.yaml",
}
_USUAL_CONFS = {"slurm": "conf/slurm.conf", "pbs": "conf/pbs.conf", "sge": "conf/queue.conf"}


def add_places(recipe: "SourceRecipe", add_config: AddConfig) -> list[tuple[str, str]]:
    """Add the configs of the places where a recipe runs: this machine, its GPUs, its cluster.

    Returns:
        Lines to type for the cluster, and what each does; empty without one.
    """
    local = {"parallel": {"env": "local", "n_workers": 2}}
    add_config("parallel_local", "After another file: two processes here.", local)
    if recipe.is_on("gpu_inference"):
        n_gpus = max(1, int(recipe.number("ngpu")))
        gpus = {"device": None, "parallel": {"env": "local_gpu", "n_workers": n_gpus}}
        comment = "After inference.yaml: a process for each GPU of this machine."
        add_config("parallel_gpu", comment, gpus)
    for name, (command, origin) in recipe.commands.items():
        _note_command(recipe, name, command, origin)
    default = (JobCommand("run.pl", {}), Origin("cmd.sh"))
    cuda, decode = (recipe.commands.get(name, default) for name in ("cuda_cmd", "decode_cmd"))
    if scheduler_of(decode[0].env) is None and "conf/slurm.conf" in recipe.confs:
        # A recipe that runs on this machine, with what it takes to run elsewhere.
        decode = cuda = (JobCommand("slurm.pl", {}), Origin("conf/slurm.conf"))
    if scheduler_of(decode[0].env) is None:
        return []
    return _add_cluster(recipe, add_config, decode, cuda)


def _note_command(recipe: "SourceRecipe", name: str, command: JobCommand, origin: Origin) -> None:
    options = (f"--{key} {value}" for key, value in command.options.items())
    spelled = " ".join([command.program, *options, *command.rest])
    if command.env == "ssh":
        note = "hosts are listed under parallel.options.hosts: docs/clusters/ssh.md"
        recipe.journal.left_out(origin, name, spelled, note)
    elif not command.env:
        note = "is no wrapper that is known; workers run on this machine"
        recipe.journal.left_out(origin, name, spelled, note)
    else:
        recipe.journal.taken(origin, name, spelled, _PURPOSES[name])


def _conf_of(recipe: "SourceRecipe", command: JobCommand) -> JobConf | None:
    name = command.options.get("config", _USUAL_CONFS.get(command.env, ""))
    return recipe.confs.get(name)


def _add_cluster(
    recipe: "SourceRecipe",
    add_config: AddConfig,
    decode: tuple[JobCommand, Origin],
    cuda: tuple[JobCommand, Origin],
) -> list[tuple[str, str]]:
    command, origin = decode
    env, conf = command.env, _conf_of(recipe, command)
    gpu = "1" if recipe.is_on("gpu_inference") else "0"
    job = jobs_of(command, conf, origin, recipe.journal, gpu=gpu)
    workers = max(1, int(recipe.number("inference_nj")))
    limit = command.options.get("max_jobs_run", "")
    if limit.isdigit() and int(limit):
        workers = min(workers, int(limit))
    if conf is not None:
        became = f"conf/parallel_{env}.yaml"
        recipe.journal.taken(Origin(conf.file), "job options", "", became)
    if not job.gigabytes:
        note = "no memory is asked for, but a worker must know its own: 4 GB taken"
        recipe.journal.left_out(origin, "--mem", "", note)
    comment = (
        "After training.yaml or inference.yaml: jobs of the cluster. See that queue, memory and\n"
        f"time are right: espnet3 doctor conf/parallel_{env}.yaml; --dry-run shows the job script."
    )
    block = {"env": env, "n_workers": workers, "options": job.parallel(env)}
    add_config(f"parallel_{env}", comment, {"parallel": block})
    if cuda[0].env != env:
        cuda = decode
    n_gpus = str(int(recipe.number("ngpu")))
    training = jobs_of(cuda[0], _conf_of(recipe, cuda[0]), cuda[1], recipe.journal, gpu=n_gpus)
    comment = "After training.yaml, for `espnet3 launch`: the training as one job."
    add_config(f"launch_{env}", comment, {"launch": training.launch(env)})
    launch = f"espnet3 launch conf/training.yaml conf/launch_{env}.yaml --dry-run"
    infer = (
        "python run.py --stages infer --training_config conf/training.yaml --inference_config "
        f"conf/inference.yaml conf/parallel_{env}.yaml --dry-run"
    )
    return [
        (launch, "the training as a job; without --dry-run it is submitted"),
        (infer, "decoding in jobs"),
    ]
