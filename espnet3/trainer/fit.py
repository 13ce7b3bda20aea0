"""One training, from its config to the last checkpoint: resume, callbacks, signals, seeds."""

import inspect
import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from espnet3.config.sources import names_places, place_of, set_in
from espnet3.errors import ConfigError, suggest
from espnet3.text import count
from espnet3.trainer.checkpointing.checkpoints import CheckpointKeeper
from espnet3.trainer.checkpointing.resume import (
    RandomStates,
    ResumePoint,
    find_resume_point,
    prepare_folder,
    report_resume,
)
from espnet3.trainer.config import (
    TrainingConfig,
    blamed_argument,
    has_goal,
    load_training_config,
)
from espnet3.trainer.fine_tuning import Frozen, check_files, freeze, load_initial_weights
from espnet3.trainer.launching.process_rank import LAUNCHED, process_rank
from espnet3.trainer.module import TrainingModule
from espnet3.trainer.optimization.optimization_config import OptimizationConfig, check_optimizers
from espnet3.trainer.ranks.preemption import Preemption
from espnet3.trainer.ranks.rank_watch import RankWatch
from espnet3.trainer.reporting.loggers import History
from espnet3.trainer.reporting.monitors import EarlyStops, MonitorCheck, configured_monitors
from espnet3.trainer.reporting.progress import TrainingProgress
from espnet3.trainer.reporting.summary import StartupTimes, ThroughputMonitor
from espnet3.trainer.trainer import quiet_lightning, trainer_for
from espnet3.trainer.trainer_block import count_cores

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

# `_fit` passes them itself; a datamodule would contradict the loaders.
_NOT_FOR_USERS = ("self", "model", "train_dataloaders", "val_dataloaders", "datamodule")
_FEW_CORES = 4


@dataclass(frozen=True)
class TrainingParts:
    """Model and data loaders."""

    model: torch.nn.Module
    train_loader: Any
    valid_loader: Any = None


@dataclass(frozen=True)
class Fit:
    """One training, from its config to the last checkpoint.

    Args:
        config: what it reads of the training config.
        optimization: optimizers and schedulers.
        build: builds model and loaders; called when it is known that there is something to train.
        times: measures what the start takes.
        on_start: called in the first process when all is built and nothing but training is left,
            with the checkpoint to resume from; until then an earlier training in the folder stays
            as it was.
        on_finished: called there instead if there is nothing left to train.
        changed_since: returns the keys of the config that changed after a checkpoint of some step
            was written, so that what it restores must give way.
    """

    config: TrainingConfig
    optimization: OptimizationConfig
    build: Callable[[], TrainingParts]
    times: StartupTimes
    on_start: Callable[[ResumePoint | None], None] = lambda point: None
    on_finished: Callable[[ResumePoint | None], None] = lambda point: None
    changed_since: Callable[[int], Sequence[str]] = lambda step: ()

    def run(self) -> bool:
        """Train to the end.

        Returns:
            False if an earlier run has done so already.

        Raises:
            ConfigError: a setting is wrong.
            RunInterrupted: a signal came; a checkpoint was written.
        """
        config, block = self.config, self.config.trainer
        # A trial keeps nothing, so it leaves the folder of a real training alone.
        if process_rank().is_first and not config.is_trial:
            prepare_folder(config.exp_dir)
        limits = block.get("max_epochs"), block.get("max_steps")
        # Without the model, which takes long to build: there may be nothing left to train.
        point = self._resume_point()
        # By its name: the callbacks are not built yet.
        stops_early = "EarlyStopping" in str(block.get("callbacks"))
        if report_resume(point, *limits, stops_early=stops_early):
            if process_rank().is_first:
                self.on_finished(point)
            return False
        # A resume takes the weights from its checkpoint; the files of `init` may be gone by then.
        if point is None:
            check_files(config.init)
        if not has_goal(block):
            logger.warning(
                "trainer%s does not say when training ends; Lightning ends it after 1,000 epochs. "
                "Write: max_epochs: 20",
                place_of("trainer"),
            )
        self._set_threads()
        with RankWatch() as watch, quiet_lightning():
            self._train(watch)
        return True

    def _resume_point(self, model: torch.nn.Module | None = None) -> ResumePoint | None:
        config = self.config
        if config.is_trial:
            return None
        ckpt_path = config.fit.get("ckpt_path")
        return find_resume_point(config.exp_dir, config.resume, ckpt_path=ckpt_path, model=model)

    def _wants_bar(self) -> bool | None:
        block = self.config.trainer
        if "ProgressBar" in str(block.get("callbacks")):  # one of the user's own
            return False
        wants: bool | None = block.get("enable_progress_bar")
        return wants

    def _set_threads(self) -> None:
        devices = self.config.trainer.get("devices")
        n_devices = len(devices) if isinstance(devices, list) else devices
        # With torchrun and srun the processes exist already, and `devices` may be auto.
        launched = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE")
        n_processes = launched if launched and launched.isdigit() else n_devices
        n_here = int(str(n_processes)) if str(n_processes).isdigit() else 1
        set_threads(self.config.num_threads, n_here, self.config.n_loader_workers)

    def _train(self, watch: RankWatch) -> None:
        seed_all(self.config.seed)  # the same weights on all ranks
        parts = self.build()
        # Now with the model: a checkpoint of another one is refused.
        point = self._resume_point(parts.model)
        if point is None:
            load_initial_weights(parts.model, self.config.init)
        frozen = freeze(parts.model, self.config.freeze)
        try:
            self._fit(watch, parts, point, frozen)
        finally:
            frozen.release()  # the model may be an object that the caller uses afterwards

    def _fit(
        self, watch: RankWatch, parts: TrainingParts, point: ResumePoint | None, frozen: Frozen
    ) -> None:
        config = self.config
        if process_rank().is_first and not config.is_trial:
            # The old training is put aside only now: a model that fails to build must not cost it.
            prepare_folder(config.exp_dir, config.resume)
            self.on_start(point)
        with self.times.part("trainer"):
            module = TrainingModule(
                parts.model,
                self.optimization,
                self.changed_since(point.position.step) if point else (),
                frozen,
            )
            keeper = CheckpointKeeper(
                config.exp_dir, config.best_model_criterion, config.checkpoint
            )
            preemption = Preemption(keeper.save_last)
            trainer = self._build_trainer([watch, preemption, keeper])
        # `ckpt_path` last: the point is the file that was found, and checked against the model.
        arguments = {"weights_only": True, **config.fit, "ckpt_path": point and str(point.path)}
        loaders = (parts.train_loader, parts.valid_loader)
        with _closing(loaders), preemption.handling(), _launching("train"), self._naming_keys():
            trainer.fit(module, *loaders, **arguments)

    @contextmanager
    def _naming_keys(self) -> Iterator[None]:
        """Say which line is meant where Lightning refuses an argument after all is built."""
        try:
            yield
        except (ValueError, MisconfigurationException) as error:
            block = self.config.trainer
            name = blamed_argument(block, error)
            # Only a name in backticks will do: any other text may come from the user's own code.
            if name is not None and f"`{name}`" in str(error):
                key = f"trainer.{name}"
                # A note keeps type and traceback of an error that was only guessed at.
                error.add_note(f"{key} is {block[name]!r}{place_of(key)}.")
            raise

    def _build_trainer(self, callbacks: list[pl.Callback]) -> pl.Trainer:
        config = self.config
        modes = {c.monitor: c.mode for c in config.best_model_criterion}
        ours = [
            *callbacks,
            MonitorCheck(configured_monitors(config, self.optimization)),
            self.times.callback(),
            SeedRanks(config.seed),
            RandomStates(),
            ThroughputMonitor(),
            *([] if config.is_trial else [History(config.exp_dir)]),
            EarlyStops(config.exp_dir),
            TrainingProgress(modes or None, bar=self._wants_bar()),
        ]
        return trainer_for(config.trainer, ours, exp_dir=config.exp_dir)


@names_places
def check_fit(loaded: "LoadedConfig") -> TrainingConfig:
    """Check the keys that a training reads beside its blocks of data and model.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    config = load_training_config(loaded)
    check_optimizers(OptimizationConfig.from_config(loaded), loaded.is_typed)
    known = [n for n in inspect.signature(pl.Trainer.fit).parameters if n not in _NOT_FOR_USERS]
    for name in config.fit:
        if name not in known:
            raise ConfigError(
                key=f"fit.{name}",
                problem=f"is no argument of Trainer.fit.{suggest(name, known)} "
                f"It takes: {', '.join(known)}.",
            )
    _check_resume(config)
    return config


def _check_resume(config: TrainingConfig) -> None:
    path = config.fit.get("ckpt_path")
    if path is None:
        return
    if not isinstance(path, str) or not Path(path).exists():
        raise ConfigError(
            key="fit.ckpt_path",
            value=path,
            problem="which does not exist",
            fix="Give a checkpoint, or delete the line: training resumes from "
            f"{Path(config.exp_dir) / 'last.ckpt'} by itself.",
        )
    if config.resume == "never" and Path(path).resolve().parent == Path(config.exp_dir).resolve():
        raise ConfigError(
            key="fit.ckpt_path",
            value=path,
            problem=f"but the checkpoints of {config.exp_dir} are to be put aside",
            fix=lambda loaded: (
                f"resume is 'never'{set_in('resume', loaded)}. Delete fit.ckpt_path to start from "
                "scratch, or write: resume: auto"
            ),
        )


@contextmanager
def _closing(loaders: Iterable[Any]) -> Iterator[None]:
    """End the processes of loaders that have any, rather than leave them idle until we exit."""
    try:
        yield
    finally:
        for loader in loaders:
            # A loader of the user's own may have none.
            if callable(close := getattr(loader, "close", None)):
                close()


@contextmanager
def _launching(stage: str) -> Iterator[None]:
    """Set the stage for the processes that Lightning starts; later stages see nothing of it.

    Lightning leaves its own variables, such as LOCAL_RANK, in the environment as well.
    """
    before = dict(os.environ)
    # In a rank that Lightning started, it names the stage already.
    os.environ[LAUNCHED] = before.get(LAUNCHED, stage)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def seed_all(seed: int, rank: int = 0) -> None:
    """Seed Python, NumPy and torch from a seed and a rank."""
    value = seed if rank == 0 else _mixed(seed, rank)
    random.seed(value)
    # NumPy takes 32 bits, torch 64.
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def _mixed(seed: int, rank: int) -> int:
    # Not seed + rank, with which rank 1 of seed 0 would draw the numbers of seed 1.
    return int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])


class SeedRanks(pl.Callback):
    """Gives each rank a stream of its own, so that dropout differs, once the model is built.

    A checkpoint that is restored afterwards wins.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> Any:
        seed_all(self._seed, trainer.global_rank)


def choose_threads(n_cores: int, n_processes: int, n_loader_workers: int) -> int:
    """Return the number of threads for one of the training processes of a machine.

    Threads of torch wait for each other by spinning. On few cores, which the loader's workers and
    other people share, one that is late holds up all: two threads on two cores were 3 to 4 times
    slower than one. On many, each process gets its share, less what its loader needs.

    Args:
        n_cores: that this process may use.
        n_processes: that train on this machine.
        n_loader_workers: of each process.
    """
    share = n_cores // max(1, n_processes) - n_loader_workers
    return share if share > _FEW_CORES else 1


def set_threads(num_threads: int | None, n_processes: int, n_loader_workers: int) -> int:
    """Set the number of threads of this process, unless `OMP_NUM_THREADS` says it.

    Args:
        num_threads: what the config says; None to choose.
        n_processes: that train on this machine.
        n_loader_workers: of each process.

    Returns:
        The number in force.
    """
    if num_threads is None and "OMP_NUM_THREADS" not in os.environ:
        num_threads = choose_threads(count_cores(), n_processes, n_loader_workers)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
        # Lightning would set its own number in processes that it starts, and so would libraries.
        os.environ["OMP_NUM_THREADS"] = str(num_threads)
    logger.debug("torch uses %s", count(torch.get_num_threads(), "thread"))
    return torch.get_num_threads()
