"""The stages of a system: their numbers, their order, the configs that they read, their records.

`<exp_dir>/config/<stage>.{yaml,json}` describe the run of a stage that made what is there: config,
source of each key, command, versions. A stage that has nothing to do, or is refused, leaves them as
they were.
"""

import json
import os
import platform
import shlex
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from espnet3 import __version__
from espnet3.errors import ConfigError, suggest
from espnet3.text import first_line

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


F = TypeVar("F", bound=Callable[..., Any])

KINDS = ("training", "inference", "metrics", "publication", "demo")
"""Of configs; each has an option on the command line, such as `--training_config`."""

_MARK = "_espnet3_stage"


@dataclass(frozen=True)
class Stage:
    """A step of a recipe, which is the method of this name of its system."""

    name: str
    number: int | None
    configs: tuple[str, ...]
    """Kinds of config that it can read; of those that were given, it gets the first."""
    help: str
    alternative_key: str = ""
    """A config of another kind than the first serves only if it has this key."""
    blocks: tuple[str, ...] | None = None
    """Top-level keys of the config of which it builds something; None for all."""
    reads: tuple[str, ...] = ()
    """Dotted keys of its config that it reads, each with all that is below it."""
    ignores: tuple[str, ...] = ()
    """What it leaves alone of these."""
    reads_of_inference: tuple[str, ...] = ()
    """Keys of the inference config that it reads beside its own, if there is one."""
    needs_any: tuple[str, ...] = ()
    """Where `all` or a range covers it, it is skipped if its config has none of these keys."""
    in_all: bool = True
    """Whether `--stages all` runs it."""
    is_distributed: bool = False
    """Whether it may run in many processes at once that srun or torchrun started."""
    can_detach: bool = False
    """Whether it supports detached workers."""
    uses_weights: bool = False
    """Whether it uses a trained model, so that it compares the training config with the one of
    the training."""
    is_defined: bool = False
    """Whether the system has a method for it."""
    is_ours: bool = True
    """Whether the method is ESPnet3's; one of a recipe may read any key."""

    def __str__(self) -> str:
        return self.name if self.number is None else f"{self.name} ({self.number})"


@dataclass(frozen=True)
class Skipped:
    """Result of a stage that had nothing to do, with the reason."""

    reason: str


@dataclass(frozen=True)
class Detached:
    """Result of a detached stage: its run folders."""

    run_dirs: tuple[Path, ...]


_TRAINING = ("training",)
_DATA = ("dataset", "create_dataset")
_MODEL = ("dataset", "dataloader", "model")
_TRAINER = ("trainer", "optimizer", "optimizers")
_INFERENCE = ("dataset", "model", "provider", "runner", "output_artifacts")

EVERYWHERE = ("recipe_dir", "exp_tag", "exp_dir", "vars")
"""Keys that no stage has to account for: where the experiment is, and a block for one's own
values, to which others refer as `${vars.NAME}`."""
_OF_TRAINING = (
    *_MODEL, *_TRAINER, "scheduler", "schedulers", "scheduler_interval", "scheduler_monitor",
    "fit", "best_model_criterion", "checkpoint", "init", "freeze", "num_threads",
    "max_nonfinite_batches", "resume", "accept_changes", "seed", "stats_dir", "tokenizer",
)  # fmt: skip
_OF_INFERENCE = (
    *_INFERENCE, "parallel", "device", "test_set", "inference_dir", "input_key", "output_fn",
    "output_keys", "idx_key", "hyp_key", "ref_key", "batch_size", "batch_seconds", "results",
)  # fmt: skip
_OF_MEASURING = ("metrics", "inference_dir", "test_set", "dataset")
_OF_RESULTS = (
    "dataset", "test_set", "inference_dir", "output_fn", "output_keys", "output_artifacts",
    "idx_key", "hyp_key", "ref_key", "input_key", "provider", "runner", "model",
)  # fmt: skip

STAGES = (
    Stage(
        "create_dataset", 1, ("training", "inference"), "Prepare the data",
        blocks=_DATA, reads=(*_DATA, "parallel", "data_dir", "dataset_dir", "seed"),
    ),
    Stage(
        "train_tokenizer", 2, _TRAINING, "Train the tokenizer",
        blocks=("dataset", "tokenizer"), needs_any=("tokenizer",),
        reads=("dataset", "tokenizer", "parallel", "data_dir"),
        ignores=("dataset.valid", "dataset.test"),
    ),
    Stage(
        "collect_stats", 3, _TRAINING, "Collect shapes and statistics of the features",
        blocks=_MODEL, needs_any=_TRAINER, ignores=("dataset.test",),
        reads=(
            "dataset", "dataloader.collate_fn", "model", "collect_stats", "parallel", "device",
            "stats_dir",
        ),
    ),
    Stage(
        "train", 4, _TRAINING, "Train the model",
        needs_any=_TRAINER, reads=_OF_TRAINING, ignores=("dataset.test",), is_distributed=True,
    ),
    Stage(
        "average", 5, _TRAINING, "Average the best checkpoints", blocks=(), needs_any=_TRAINER,
        reads=("best_model_criterion",), uses_weights=True,
    ),
    Stage(
        "infer", 6, ("inference",), "Run the model over the test sets",
        blocks=_INFERENCE, reads=_OF_INFERENCE, ignores=("dataset.train", "dataset.valid"),
        can_detach=True, uses_weights=True,
    ),
    Stage(
        "measure", 7, ("metrics", "inference"), "Score the results",
        alternative_key="metrics", blocks=("metrics",),
        reads=_OF_MEASURING, reads_of_inference=_OF_RESULTS,
        ignores=("dataset.train", "dataset.valid"), uses_weights=True,
    ),
    Stage(
        "report", 8, ("metrics", "inference"), "Write a report of the scores",
        blocks=(), reads=(*_OF_MEASURING, "report"), reads_of_inference=_OF_RESULTS,
        ignores=("dataset.train", "dataset.valid"), uses_weights=True,
    ),
    Stage(
        "pack_model", 9, ("publication",), "Pack the model for others",
        reads=("pack", "inference_dir"), uses_weights=True,
    ),
    Stage(
        "upload_model", 10, ("publication",), "Upload the packed model",
        needs_any=("upload",), reads=("pack", "upload"),
    ),
    Stage("pack_demo", None, ("demo",), "Pack a demo", in_all=False),
    Stage("upload_demo", None, ("demo",), "Upload the demo", in_all=False),
)  # fmt: skip
"""What every system knows by name, in the order in which they run."""


@dataclass(frozen=True)
class _Mark:
    config: str
    help: str
    after: str
    before: str
    is_distributed: bool


def stage(
    *,
    config: str,
    after: str = "",
    before: str = "",
    help: str = "",
    is_distributed: bool = False,
) -> Callable[[F], F]:
    """Make a method of a system a stage of its own, right after or right before another.

    A method that has the name of a known stage replaces that stage and needs no decorator.

    Args:
        config: the kind of config that it reads: training, inference, metrics, publication, demo.
        after: name of the stage that it follows.
        before: name of the stage that it precedes; give one of the two.
        help: one line for `--list-stages`; the first line of the docstring if left out.
        is_distributed: it trains, so srun or torchrun may start it in many processes at once.

    Example:
        >>> class MySystem:
        ...     @stage(config="inference", after="infer", help="Rescore with a language model")
        ...     def rescore(self): ...
        >>> [str(known) for known in stages_of(MySystem)][5:8]
        ['infer (6)', 'rescore', 'measure (7)']
    """

    def mark(method: F) -> F:
        text = help or first_line(method.__doc__ or "").rstrip(".")
        setattr(method, _MARK, _Mark(config, text, after, before, is_distributed))
        return method

    return mark


def stages_of(system: type) -> tuple[Stage, ...]:
    """Return the stages of a system, in the order in which they run.

    Raises:
        ConfigError: an added stage has no place, exists already, or reads an unknown config.
    """
    stages = list(STAGES)
    anchors: dict[str, str] = {}
    # From the base class on, so that a subclass can place its stages next to inherited ones.
    for cls in reversed(system.__mro__):
        for name, method in vars(cls).items():
            mark = getattr(method, _MARK, None)
            if mark is not None:
                _check_mark(cls, name, mark, [known.name for known in stages])
                stages.insert(_position(stages, mark, anchors), _added(name, mark))
                anchors[name] = mark.after
    return tuple(_as_defined(known, system) for known in stages)


def _as_defined(known: Stage, system: type) -> Stage:
    method = getattr(system, known.name, None)
    # One that a recipe wrote itself may read other keys.
    is_ours = getattr(method, "__module__", "").startswith("espnet3.")
    needs_any = known.needs_any if is_ours else ()
    return replace(known, is_defined=callable(method), is_ours=is_ours, needs_any=needs_any)


def _added(name: str, mark: _Mark) -> Stage:
    return Stage(name, None, (mark.config,), mark.help, is_distributed=mark.is_distributed)


def _position(stages: Sequence[Stage], mark: _Mark, anchors: dict[str, str]) -> int:
    names = [known.name for known in stages]
    if mark.before:
        return names.index(mark.before)
    position = names.index(mark.after) + 1
    # Two stages that follow the same one keep the order in which they are written.
    while position < len(names) and anchors.get(names[position]) == mark.after:
        position += 1
    return position


def _check_mark(cls: type, name: str, mark: _Mark, known: Sequence[str]) -> None:
    where = f"Stage {name!r} of {cls.__name__}"
    if name in known:
        raise ConfigError(
            f"{where} exists already and keeps its place and config.",
            fix=f"Remove @stage(...) above def {name}.",
        )
    if mark.config not in KINDS:
        raise ConfigError(
            f"{where} reads the config {mark.config!r}.{suggest(mark.config, KINDS)} Write: "
            f"@stage(config=...) with one of {', '.join(KINDS)}."
        )
    anchor = mark.after or mark.before
    if bool(mark.after) == bool(mark.before):
        raise ConfigError(
            f"{where} needs one place.",
            fix=f"Write either @stage(config={mark.config!r}, "
            f'after="infer") or @stage(config={mark.config!r}, before="infer").',
        )
    if anchor not in known:
        raise ConfigError(
            f"{where} is placed next to {anchor!r}, which is no stage.{suggest(anchor, known)} "
            f"Stages: {', '.join(known)}."
        )


class StageStep:
    """A step of a stage, as a method of a system: a function of a module that is imported late.

    Args:
        stage: name of the stage, whose config the function gets.
        module: dotted path.
        prefix: of the function's name: none for the stage itself, `check_` or `describe_`.
        gets_system: the function gets the system instead.
    """

    def __init__(self, stage: str, module: str, prefix: str, gets_system: bool) -> None:
        self._stage, self._module, self._name = stage, module, f"{prefix}{stage}"
        self._gets_system = gets_system
        self._is_check = prefix == "check_"

    def __get__(self, system: Any, owner: type | None = None) -> Any:
        # As a function does: on the class it is itself, on an object it is bound.
        return self if system is None else partial(self, system)

    def __call__(self, system: Any) -> Any:
        """Run the step; errors name the file and line of what is wrong in the config."""
        # Imported at the call, so that listing stages does not import torch.
        function = getattr(import_module(self._module), self._name)
        loaded = system.config_for(self._stage)
        with loaded.naming_places():
            found = function(system if self._gets_system else loaded)
        if self._is_check and find_stage(STAGES, self._stage).uses_weights:
            system.check_trained()
        return found


def steps_of(
    stage: str, module: str, *, gets_system: bool = False
) -> tuple[StageStep, StageStep, StageStep]:
    """Return what runs, checks and describes a stage, for a system to have as methods.

    Example:
        >>> class MySystem:
        ...     average, check_average, describe_average = steps_of("average", "my.training")
        >>> callable(MySystem().average)
        True
    """
    run, check, describe = (
        StageStep(stage, module, prefix, gets_system) for prefix in ("", "check_", "describe_")
    )
    return run, check, describe


def find_stage(stages: Iterable[Stage], name: str) -> Stage:
    """Return the stage of this name, which must exist."""
    return next(known for known in stages if known.name == name)


def find_config(configs: Any, stage: Stage) -> "LoadedConfig | None":
    """Return the config that a stage reads: the first that was given, and serves.

    Args:
        configs: a system or `Configs`, which have an attribute for each kind.
        stage: of the system.
    """
    for kind in stage.configs:
        loaded: LoadedConfig | None = getattr(configs, kind)
        needed = stage.alternative_key if kind != stage.configs[0] else ""
        if loaded is not None and (not needed or loaded.has(needed)):
            return loaded
    return None


def has_own(system: type, stage_name: str, companion: str) -> bool:
    """Tell whether a companion method, such as `describe_infer`, belongs to the stage as it is.

    One that was written for a stage that a subclass has replaced since does not.
    """
    owners = [
        next((i for i, cls in enumerate(system.__mro__) if name in vars(cls)), None)
        for name in (companion, stage_name)
    ]
    return owners[0] is not None and owners[1] is not None and owners[0] <= owners[1]


_PACKAGES = (
    "torch",
    "lightning",
    "numpy",
    "omegaconf",
    "hydra-core",
    "pydantic",
    "dask",
    "distributed",
    "dask-jobqueue",
    "rapidfuzz",
)
_KEPT_RUNS = 20
"""Times of earlier runs of a stage that its record keeps."""


@dataclass(frozen=True)
class Invocation:
    """Command line with which the recipe was called."""

    command: Sequence[str]
    """As it can be pasted into a shell, secrets included."""
    working_dir: str
    """The folder it was typed in, relative to the recipe's."""
    recipe_dir: Path

    def shown(self) -> str:
        """Return the command without secrets."""
        from espnet3.config.redact import redact_command

        return shlex.join(redact_command(list(self.command)))

    def hidden(self) -> dict[str, str]:
        """Return the words with a secret, each with what to show instead; also as quoted."""
        from espnet3.config.redact import redact_command

        shown = redact_command(list(self.command))
        pairs = [pair for pair in zip(self.command, shown, strict=True) if pair[0] != pair[1]]
        spellings: tuple[Callable[[str], str], ...] = (shlex.quote, str)
        return {spell(secret): spell(word) for spell in spellings for secret, word in pairs}


@dataclass
class StageRecord:
    """The record of one run of a stage.

    The first one is written when the stage begins; one that replaces another when it is known that
    there is something to do, which the stage reports with `publish`, and else at its end.
    """

    folder: Path
    stage: Stage
    loaded: "LoadedConfig"
    invocation: Invocation
    _values: dict[str, Any] = field(default_factory=dict)
    _begin: float = 0.0
    _is_published: bool = False

    def begin(self) -> None:
        """Note the config and what is known so far; write it, unless that would replace another."""
        self._begin = time.monotonic()
        self._values = {**self._describe(), "earlier": self._earlier()}
        if not any(file.exists() for file in self._files):
            self.publish()

    def publish(self) -> None:
        """Write it, as the stage has something to do."""
        from espnet3.io.atomic import write_text

        if not self._is_published:
            self._is_published = True
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self._files[0], self._yaml())
            self._write()

    def finish(self, state: str, *, changed_nothing: bool = False) -> None:
        """Add how and when it ended: done, skipped, failed, interrupted.

        Args:
            state: of these.
            changed_nothing: the stage was refused, or found all done: what was on record before
                stays.
        """
        if changed_nothing and not self._is_published:
            return
        self.publish()
        # monotonic, because the clock may be set during a stage that takes days.
        seconds = round(time.monotonic() - self._begin, 3)
        self._values.update(state=state, end=_now(), seconds=seconds)
        self._write()

    @property
    def _files(self) -> tuple[Path, Path]:
        return self.folder / f"{self.stage.name}.yaml", self.folder / f"{self.stage.name}.json"

    def _write(self) -> None:
        # What records need is imported late: a wrong key is told without.
        from espnet3.io.atomic import write_json

        write_json(self._files[1], self._values)

    def _describe(self) -> dict[str, Any]:
        from espnet3.shards.lease import start_time

        return {
            "stage": self.stage.name,
            "number": self.stage.number,
            "state": "running",
            "command": self.invocation.shown(),
            "working_dir": self.invocation.working_dir,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": start_time(os.getpid()),
            "versions": versions(),
            "git": git_state(self.invocation.recipe_dir),
            "start": _now(),
            "end": None,
            "seconds": None,
            "files": list(self.loaded.files),
            "sources": self._sources(),
        }

    def _earlier(self) -> list[dict[str, Any]]:
        """Return the runs before this one, oldest first; one that was killed has no end."""
        before = read_record(self._files[1])
        if not before:
            return []
        last = {key: before.get(key) for key in ("state", "start", "end", "seconds")}
        known = before.get("earlier")
        return [*(known if isinstance(known, list) else []), last][-_KEPT_RUNS:]

    def _sources(self) -> dict[str, str]:
        from espnet3.config.redact import redact_command

        # The source of an override is the override itself, with its value.
        begin = "command line: "
        sources = {key: str(source) for key, source in self.loaded.sources.items()}
        return {
            key: begin + redact_command([text.removeprefix(begin)])[0]
            if text.startswith(begin)
            else text
            for key, text in sources.items()
        }

    def _yaml(self) -> str:
        from omegaconf import OmegaConf

        from espnet3.config.redact import redact

        # A line break would end the comment, and the rest of the command would be YAML.
        command = self.invocation.shown().replace("\n", "\\n")
        head = f"# {command}\n# {self._values['start']}\n"
        return head + OmegaConf.to_yaml(OmegaConf.create(redact(self.loaded.resolved())))


def read_record(path: Path) -> dict[str, Any]:
    """Return a record of a stage; empty if there is none, or it is damaged."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        # It only costs the times of earlier runs, and must not stop a stage.
        return {}
    return values if isinstance(values, dict) else {}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results may depend on."""
    found = {"python": platform.python_version(), "espnet3": __version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


_SECONDS = 10.0
_OF_ANOTHER = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # set inside of a git hook


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit, branch, and what is changed in tracked files; None if git does not know it.

    The branch is None on a detached head. Files that git does not track, such as those of `exp/`,
    do not count.
    """
    # --verify: without it, a bare repository without commits answers "HEAD".
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "diff", "--shortstat", "HEAD")
    return {
        "commit": commit,
        "branch": _git(folder, "branch", "--show-current") or None,
        "dirty": None if changes is None else bool(changes),
        "changes": changes or None,
    }


def _git(folder: Path, *arguments: str) -> str | None:
    import subprocess

    # Reading must not take the lock of the index from a git command of the user's.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    for name in _OF_ANOTHER:
        environment.pop(name, None)
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=_SECONDS,
            env=environment,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip()
