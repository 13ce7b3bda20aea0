"""Loggers: those of `trainer.logger`, TensorBoard by default, and `history.jsonl`."""

import inspect
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from time import time
from typing import IO, Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from typing_extensions import override

from espnet3.config.instantiate import instantiate
from espnet3.config.resolve import resolved
from espnet3.config.sources import join_key
from espnet3.config.targets import RESERVED, BadTarget, locate, package_of
from espnet3.errors import ConfigError, MissingExtraError, suggest
from espnet3.io.atomic import StrPath, write_text
from espnet3.trainer.lightning_internals import logged_step
from espnet3.trainer.reporting.history import FILE_NAME, HistoryEntry, read_history

logger = logging.getLogger(__name__)

_KEY = "trainer.logger"
_FOLDER = "tensorboard"
_EXAMPLE = (
    "logger: [{_target_: lightning.pytorch.loggers.TensorBoardLogger, "
    "save_dir: '${exp_dir}/tensorboard'}]"
)


def build_loggers(value: Any, exp_dir: StrPath) -> list[Logger]:
    """Build what `trainer.logger` asks for.

    Args:
        value: the value in the config: None or true for TensorBoard in `exp_dir/tensorboard`, false
            for nothing, a mapping with `_target_`, or a list of such.
        exp_dir: of the experiment.

    Raises:
        ConfigError: the value is none of these, or a logger cannot be built.
        MissingExtraError: the package of a logger is not installed.
    """
    if value is False:
        return []
    if value is None or value is True:
        return [_default(exp_dir)]
    nodes = resolved(value, prefix=_KEY)
    if isinstance(nodes, Mapping):
        return [_build(nodes, Path(exp_dir), _KEY)]
    if not isinstance(nodes, list):
        raise ConfigError(
            key=_KEY,
            value=value,
            problem="but must be true, false, or a list of loggers",
            fix=f"Write: {_EXAMPLE}",
        )
    return [_build(node, Path(exp_dir), f"{_KEY}.{i}") for i, node in enumerate(nodes)]


def hide_lost_steps(trainer: Trainer) -> None:
    """Let TensorBoard forget what a run that was stopped logged beyond its last checkpoint.

    To be called at the first batch: before it, Lightning has not restored its count of batches,
    which is what TensorBoard has for steps.
    """
    from tensorboard.compat.proto.event_pb2 import (  # type: ignore[import-untyped]
        Event,
        SessionLog,
    )

    step = logged_step(trainer)
    for sink in trainer.loggers:
        if isinstance(sink, TensorBoardLogger):
            # What `purge_step` of torch's SummaryWriter does, which was made too early for it.
            writer = sink.experiment._get_file_writer()
            writer.add_event(Event(step=step, file_version="brain.Event:2"))
            start = SessionLog(status=SessionLog.START)
            writer.add_event(Event(step=step, session_log=start))


def _default(exp_dir: StrPath) -> TensorBoardLogger:
    # Lightning puts it into lightning_logs/version_N, and a new N for each resume.
    return _TensorBoard(str(exp_dir), name=_FOLDER, version="")


class _TensorBoard(TensorBoardLogger):
    """Writes no `hparams.yaml`, which would be empty: `config.yaml` has all settings."""

    @override
    def save(self) -> None:
        if self.hparams:
            super().save()
        else:
            self.experiment.flush()


def _build(node: Any, exp_dir: Path, key: str) -> Logger:
    if isinstance(node, Logger):
        return node
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise ConfigError(
            f"{key} is {node!r:.80}",
            key=key,
            problem="but must be a mapping with the class of a logger as _target_",
            fix=f"Write: {_EXAMPLE}",
        )
    if str(node["_target_"]).endswith(".TensorBoardLogger"):
        _check_names(node, key)
    try:
        built = instantiate(node, key=key, **_defaults(node, exp_dir))
    except ModuleNotFoundError as error:
        raise _missing_package(node, key, error) from error
    if not isinstance(built, Logger):
        raise ConfigError(
            key=join_key(key, "_target_"),
            value=node["_target_"],
            problem=f"which is no logger of Lightning but a {type(built).__name__}",
            fix=f"Write: {_EXAMPLE}",
        )
    return built


def _defaults(node: Mapping[str, Any], exp_dir: Path) -> dict[str, Any]:
    """Return arguments that keep a logger out of `lightning_logs/`, where the user gave none."""
    try:
        target = locate(str(node["_target_"]))
        parameters = inspect.signature(target).parameters
    except (BadTarget, ImportError, TypeError, ValueError):
        return {}  # `instantiate` has the right words
    added = dict[str, Any]()
    name = parameters.get("name")
    if name is not None and name.default == "lightning_logs":
        added["name"] = ""
    if target is TensorBoardLogger:
        added |= {"version": "", "save_dir": str(exp_dir / _FOLDER)}
    elif target is CSVLogger:
        # In a folder of its own for each resume: it empties a file that it finds.
        added["save_dir"] = str(exp_dir / "csv")
    elif "save_dir" in parameters:  # such as ./mlruns, beside whatever program was started
        added["save_dir"] = str(exp_dir / Path(str(parameters["save_dir"].default or "")).name)
    return {name: value for name, value in added.items() if name not in node}


def _check_names(node: Mapping[str, Any], key: str) -> None:
    """Refuse a misspelt argument, which would fail at the first log point only."""
    from torch.utils.tensorboard import SummaryWriter  # takes what the logger does not know

    known = {*RESERVED, *inspect.signature(TensorBoardLogger).parameters}
    known |= inspect.signature(SummaryWriter).parameters.keys()
    for name in sorted(set(node) - known):
        raise ConfigError(
            key=join_key(key, name),
            problem=f"is no argument of TensorBoardLogger.{suggest(name, known - {*RESERVED})}",
            fix="Delete the line, or write: save_dir: FOLDER",
        )


def _missing_package(
    node: Mapping[str, Any], key: str, error: ModuleNotFoundError
) -> MissingExtraError:
    # Lightning says "Requirement 'wandb>=0.12.10' not met", Python "No module named 'wandb'".
    quoted = re.search(r"'([A-Za-z][\w.-]*)", str(error))
    package = quoted[1] if quoted else "PACKAGE"
    return MissingExtraError(
        f"{key} is {node['_target_']}",
        key=key,
        problem=f"which needs the package {package!r}, and that is not installed",
        fix=f"Install it: pip install {package_of(package)}",
    )


class LogListener(Logger):
    """A logger that passes each set of metrics to a function, whatever other loggers there are.

    A callback that reads `trainer.logged_metrics` instead depends on its place in the list, and
    cannot tell what is new.
    """

    def __init__(self, receive: Callable[[Mapping[str, float]], None]) -> None:
        super().__init__()
        self._receive = receive

    def attach(self, trainer: Trainer) -> None:
        """Listen to a trainer, also to one without loggers; on all ranks, to keep them alike."""
        if self not in trainer.loggers:
            trainer.loggers = [*trainer.loggers, self]

    def detach(self, trainer: Trainer) -> None:
        """Stop listening."""
        trainer.loggers = [logger for logger in trainer.loggers if logger is not self]

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        values = {
            name: number for name in metrics if (number := _number(metrics[name])) is not None
        }
        # Lightning adds the epoch, which the listeners know better.
        values.pop("epoch", None)
        if values:
            self._receive(values)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Ignore them: the config is saved beside the outputs."""

    @property
    def name(self) -> str:
        """Of no folder: a checkpoint callback without one makes no `None/` from it."""
        return ""

    @property
    def version(self) -> str:
        return ""

    @property
    def experiment(self) -> "_Nothing":
        """Something that swallows `add_audio` and the like, where the user has no logger."""
        return _Nothing()


class _Nothing:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # text, or a tensor of several numbers
        return None


class History(Callback):
    """Writes `exp_dir/history.jsonl` on rank 0, whatever the loggers are.

    When a run resumes from a checkpoint, lines beyond its batch are dropped, for those batches come
    again; TensorBoard hides them.
    """

    def __init__(self, exp_dir: StrPath) -> None:
        self.path = Path(exp_dir) / FILE_NAME
        self._listener = LogListener(self._receive)
        self._trainer: Trainer | None = None
        self._file: IO[str] | None = None
        self._is_at_start = True

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._listener.attach(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self._trainer = trainer
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _keep_until(self.path, _n_batches(trainer))
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            self._give_up(error)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._is_at_start and trainer.is_global_zero:
            hide_lost_steps(trainer)
        self._is_at_start = False

    def _receive(self, values: Mapping[str, float]) -> None:
        if self._trainer is None or self._file is None:
            return
        trainer = self._trainer
        step, epoch, now = trainer.global_step, trainer.current_epoch + 1, round(time(), 3)
        entry = HistoryEntry(step, epoch, now, values, _n_batches(trainer))
        try:
            self._file.write(entry.to_line() + "\n")
            # A killed training must not take its last points along.
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        # A full disk must not end a training; checkpoints have their own errors.
        logger.warning("%s is not written any more: %s", self.path, error)
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                logger.debug("the last line of %s is lost", self.path)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._listener.detach(trainer)
        self._close()
        self._trainer, self._is_at_start = None, True


def _n_batches(trainer: Trainer) -> int:
    # Not the step, which stays the same while gradients are accumulated.
    return trainer.fit_loop.epoch_loop.batch_progress.total.ready


def _keep_until(path: Path, batch: int) -> None:
    """Rewrite a history without lines beyond a batch, and without unfinished ones."""
    if path.exists():
        kept = [entry for entry in read_history(path) if entry.batch <= batch]
        write_text(path, "".join(f"{entry.to_line()}\n" for entry in kept))
