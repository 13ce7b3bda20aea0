"""A small training for tests of checkpoints, with all that a resume can get wrong."""

import random
import warnings

import lightning.pytorch as pl
import numpy as np
import torch

from espnet3.trainer.checkpointing.checkpoints import CheckpointKeeper
from espnet3.trainer.checkpointing.resume import RandomStates
from espnet3.trainer.config import CheckpointConfig, Criterion
from espnet3.trainer.trainer import AtomicCheckpointIO

torch.set_num_threads(1)
warnings.filterwarnings("ignore", module="lightning")

LOSS = Criterion("valid/loss", 2, "min")


class Net(torch.nn.Module):
    """A model with dropout, a batch norm (an integer buffer) and tied weights."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.dropout = torch.nn.Dropout(0.3)
        self.second = torch.nn.Linear(width, 1)
        self.tied = torch.nn.Linear(width, 1, bias=False)
        self.tied.weight = self.second.weight

    def forward(self, x, y):
        hidden = self.dropout(torch.tanh(self.norm(self.first(x))))
        return torch.nn.functional.mse_loss(self.second(hidden) + self.tied(hidden), y)


class Module(pl.LightningModule):
    """Trains `Net` by hand and notes what happens in `events`."""

    def __init__(self, n_accumulate: int = 1) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = Net()
        self.n_accumulate = n_accumulate
        self.n_summed = 0
        self.events: list[tuple] = []
        self.valid_losses: list[float] | None = None  # to be logged instead of the real ones

    def configure_optimizers(self):
        _ = self.trainer.estimated_stepping_batches  # as a schedule needs it; sets the loader up
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]

    def training_step(self, batch, batch_idx):
        self.events.append(("batch", self.trainer.current_epoch, batch_idx, batch["id"]))
        noise = random.random() + float(np.random.rand())
        loss = self.model(batch["x"] + noise, batch["y"])
        self.manual_backward(loss / self.n_accumulate)
        self.n_summed += 1
        if self.n_summed == self.n_accumulate or self.trainer.is_last_batch:
            self.optimizers().step()
            self.optimizers().zero_grad(set_to_none=True)
            self.n_summed = 0
        self.log("train/loss", loss)

    def validation_step(self, batch, batch_idx):
        loss = self.model(batch["x"], batch["y"])
        if not self.trainer.sanity_checking:
            if batch_idx == 0:
                self.events.append(("valid", self.trainer.global_step))
            if self.valid_losses is not None:
                n_done = len([event for event in self.events if event[0] == "valid"])
                loss = torch.tensor(self.valid_losses[n_done - 1])
        self.log("valid/loss", loss)

    def on_validation_model_zero_grad(self):
        """Keep the gradients of a window that goes on, as our own module does."""

    def on_train_epoch_start(self):
        self.events.append(("epoch start", self.trainer.current_epoch))

    def on_train_epoch_end(self):
        self.events.append(("epoch end", self.trainer.current_epoch))
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()


class Loader:
    """Batches in an order of their own in each epoch; goes on where it was."""

    def __init__(self, n_batches: int = 4) -> None:
        self.sampler = self
        self.n_batches = n_batches
        self.epoch = self.n_done = 0

    def set_epoch(self, epoch):
        if epoch != self.epoch:
            self.epoch, self.n_done = epoch, 0

    def __len__(self):
        return self.n_batches

    def __iter__(self):
        return self._batches()

    def _batches(self):
        generator = np.random.default_rng(self.epoch)
        order = generator.permutation(self.n_batches).tolist()
        if not self.resumed:
            self.n_done = 0
        self.resumed = False
        while self.n_done < self.n_batches:
            number = order[self.n_done]
            x = torch.from_numpy(np.random.default_rng(number).normal(size=(5, 3))).float()
            self.n_done += 1
            yield {"id": number, "x": x, "y": x.sum(1, keepdim=True)}

    resumed = False
    batch_sampler = None  # Lightning asks a validation loader for it

    def state_dict(self):
        return {"epoch": self.epoch, "n_done": self.n_done}

    def load_state_dict(self, state):
        self.epoch, self.n_done = state["epoch"], state["n_done"]
        self.resumed = True


def run(exp_dir, *, criteria=(LOSS,), config=None, ckpt_path=None, callbacks=(), **options):
    """Train in this process and return the module; `module` and `loader` may be given."""
    pl.seed_everything(7, verbose=False)
    module = options.pop("module", None) or Module()
    loader = options.pop("loader", None) or Loader()
    valid = options.pop("valid", None)
    keeper = CheckpointKeeper(exp_dir, criteria, config or CheckpointConfig())
    settings = {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "use_distributed_sampler": False, "max_epochs": 3,
        "num_sanity_val_steps": 1,
    }  # fmt: skip
    trainer = pl.Trainer(
        **{**settings, **options},
        callbacks=[RandomStates(), keeper, *callbacks],
        plugins=[AtomicCheckpointIO()],
        default_root_dir=exp_dir,
    )
    trainer.fit(module, loader, Loader(2) if valid else None, ckpt_path=ckpt_path)
    return module
