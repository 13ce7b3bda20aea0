"""A training of two ranks that can be disturbed; started by `test_rank_death.py`.

Usage: rank_job.py FOLDER SETTINGS, where SETTINGS is JSON, or rank_job.py serve.
"""

import json
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed as dist

from espnet3.trainer.checkpointing.checkpoints import CheckpointKeeper
from espnet3.trainer.config import CheckpointConfig
from espnet3.trainer.ranks.preemption import Preemption
from espnet3.trainer.ranks.rank_watch import RankWatch


@dataclass
class Settings:
    """What may happen."""

    devices: int = 2
    n_batches: int = 200
    n_valid: int = 2
    n_epochs: int = 1
    slow: float = 0.0
    """Seconds of a step, spent in C without the GIL."""
    slow_validation: float = 0.0
    slow_end: dict[str, float] = field(default_factory=dict)
    """Seconds by rank, between the training and the end."""
    fail: tuple[str, int, int] = ("", -1, -1)
    """How (`raise`, `exit`, `kill`, `load`, `hang`), on which rank, after how many steps."""
    silence: float = 3.0
    tick: float = 0.2


class Batches:
    """A loader whose state is the number of batches given."""

    def __init__(self, n: int) -> None:
        self.n, self.done, self.begin = n, 0, 0

    def __len__(self) -> int:
        return self.n

    def __iter__(self):
        rank = dist.get_rank() if dist.is_initialized() else 0
        begin, self.begin = self.begin, 0
        for i in range(begin, self.n):
            self.done = (i + 1) % self.n
            yield torch.full((2, 4), float(i + rank) / self.n)

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.begin = state["done"]


class Module(pl.LightningModule):
    def __init__(self, folder: Path, settings: Settings) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = torch.nn.Linear(4, 1)
        self.folder, self.settings = folder, settings

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

    def training_step(self, batch, batch_idx):
        self.fail(self.global_step)
        time.sleep(self.settings.slow)
        loss = self.model(batch).square().mean()
        self.manual_backward(loss)
        optimizer = self.optimizers()
        optimizer.step()
        optimizer.zero_grad()
        self.note("step", self.global_step)

    def validation_step(self, batch, batch_idx):
        time.sleep(self.settings.slow_validation)
        self.note("valid", self.global_step)

    def note(self, what: str, step: int) -> None:
        with (self.folder / f"steps.{self.global_rank}").open("a") as file:
            file.write(f"{what} {step} {os.getpid()}\n")

    def fail(self, step: int) -> None:
        how, rank, at = self.settings.fail
        if (rank, at) != (self.global_rank, step):
            return
        if how == "raise":
            raise KeyError("the vocabulary has no such token")
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGSTOP if how == "hang" else signal.SIGKILL)


def main(folder: Path, settings: Settings) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    keeper = CheckpointKeeper(folder, config=CheckpointConfig(every_minutes=None))
    preemption = Preemption(keeper.save_last)
    with RankWatch(settings.silence, settings.tick) as watch, preemption.handling():
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        if tuple(settings.fail[:2]) == ("load", local_rank):
            raise FileNotFoundError("no such corpus")
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=settings.devices,
            strategy="ddp" if settings.devices > 1 else "auto",
            max_epochs=settings.n_epochs,
            callbacks=[watch, preemption, keeper],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            default_root_dir=folder,
            num_sanity_val_steps=0,
        )
        module = Module(folder, settings)
        last = folder / "last.ckpt"
        loaders = Batches(settings.n_batches), Batches(settings.n_valid)
        trainer.fit(module, *loaders, ckpt_path=last if last.exists() else None, weights_only=True)
        time.sleep(settings.slow_end.get(str(trainer.global_rank), 0))
    (folder / f"weights.{trainer.global_rank}").write_text(repr(module.model.weight.tolist()))


def serve() -> None:
    """Fork ranks on demand: imports, which take seconds, are done once.

    A request is a line of JSON: {"env", "arguments", "log"} starts a process and is answered with
    its number; {"pid"} is answered with its exit code, negative for a signal, null if it lives.
    """
    for line in sys.stdin:
        request = json.loads(line)
        if "pid" in request:
            pid, status = os.waitpid(request["pid"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork() or _become_rank(request)
        print(json.dumps(answer), flush=True)


def _become_rank(request: dict) -> None:
    os.environ.update(request["env"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    folder, settings = request["arguments"]
    sys.argv = [__file__, folder, json.dumps(settings)]  # what Lightning starts other ranks with
    code = 1
    try:
        main(Path(folder), Settings(**settings))
        code = 0
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        main(Path(sys.argv[1]), Settings(**json.loads(sys.argv[2])))
