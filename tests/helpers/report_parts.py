"""A model, a loader and a trainer that are small, for tests of what a training reports."""

from dataclasses import dataclass

import lightning.pytorch as pl
import torch

from espnet3.trainer.lightning_internals import is_log_point
from espnet3.trainer.trainer import quiet_lightning


@dataclass(frozen=True)
class Info:
    """What our loaders tell of a batch."""

    n_samples: int = 4
    seconds: float | None = 20.0
    padded_seconds: float | None = 25.0
    wait_seconds: float = 0.0
    indices: tuple[int, ...] = ()


class Loader:
    """Batches of four, with what our loaders tell of them."""

    def __init__(self, n_batches: int = 6, info: Info | None = None) -> None:
        self.n_batches = n_batches
        self.last_batch = info or Info()
        self.dataset = range(4 * n_batches)

    def __len__(self) -> int:
        return self.n_batches

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        for _ in range(self.n_batches):
            yield {"utt_id": ["a"] * 4, "x": torch.randn(4, 3, generator=generator)}


class Module(pl.LightningModule):
    """Logs as our module does: a mean at each log point, and one for each validation."""

    def __init__(self, optimizers: tuple[str, ...] = ("optimizer",), stats=("loss", "acc")) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = torch.nn.Sequential()
        self.model.add_module("encoder", torch.nn.Linear(3, 2))
        self.model.add_module("head", torch.nn.Linear(2, 1))
        self.last_gradient_norms = dict.fromkeys(optimizers, 1.5)
        self.stats = stats
        self.valid_losses = [3.0, 2.0, 2.5, 2.25]
        self.n_validations = 0

    def configure_optimizers(self):
        parameters = list(self.model.parameters())
        return [torch.optim.SGD(parameters, lr=0.1) for _ in self.last_gradient_norms]

    def training_step(self, batch, batch_idx):
        loss = self.model(batch["x"]).square().mean()
        optimizers = self.optimizers()
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            optimizer.zero_grad()
        self.manual_backward(loss)
        (optimizers[0] if isinstance(optimizers, list) else optimizers).step()
        if is_log_point(self.trainer):
            self.log_dict({f"train/{name}": loss.detach() for name in self.stats})

    def validation_step(self, batch, batch_idx):
        self.model(batch["x"])

    def on_validation_epoch_end(self):
        value = self.valid_losses[self.n_validations % len(self.valid_losses)]
        self.n_validations += not self.trainer.sanity_checking
        self.log_dict({f"valid/{name}": value for name in self.stats})


def make_trainer(folder, callbacks, **arguments) -> pl.Trainer:
    """Return a trainer that writes and says nothing of its own."""
    torch.set_num_threads(1)
    defaults = {
        "max_epochs": 2,
        "log_every_n_steps": 2,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "use_distributed_sampler": False,
    }
    with quiet_lightning():
        return pl.Trainer(default_root_dir=folder, callbacks=callbacks, **(defaults | arguments))


def fit(folder, callbacks, *, module=None, train=None, valid=None, ckpt_path=None, **arguments):
    """Train, and return the trainer."""
    trainer = make_trainer(folder, callbacks, **arguments)
    loaders = (train or Loader(), Loader(2) if valid is None else valid or None)
    with quiet_lightning():
        trainer.fit(module or Module(), *loaders, ckpt_path=ckpt_path, weights_only=True)
    return trainer
