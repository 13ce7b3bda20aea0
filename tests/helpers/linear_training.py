"""A training of one linear layer, in this process."""

import lightning.pytorch as pl
import torch
from torch import nn

from espnet3.trainer.lightning_internals import use_lean_loop
from espnet3.trainer.module import TrainingModule
from espnet3.trainer.optimization.optimization_config import OptimizationConfig

SGD = {"_target_": "torch.optim.SGD", "lr": 0.1}
QUIET = {
    "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
    "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
}  # fmt: skip


class Linear(nn.Module):
    """Squared error of a linear layer; NaN where the target is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x, y):
        loss = (self.layer(x).squeeze(-1) - y).square().mean()
        return loss, {"loss": loss.detach(), "error": loss.detach().sqrt()}, len(x)


def batches(n=6, size=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "x": torch.randn(size, 3, generator=generator),
            "y": torch.randn(size, generator=generator),
            "utt_id": [f"utt{i}_{j}" for j in range(size)],
        }
        for i in range(n)
    ]


def make(model=None, seed=0, **config):
    torch.manual_seed(seed)
    config = config if "optimizers" in config else {"optimizer": SGD, **config}
    return TrainingModule(model or Linear(), OptimizationConfig.from_config(config))


class Loader:
    """As our own: no DataLoader of torch, so that Lightning leaves it alone."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)

    def __len__(self):
        return len(self.items)


def fit(module, train, valid=None, ckpt_path=None, **arguments):
    trainer = pl.Trainer(**{**QUIET, "max_epochs": 1, **arguments})
    use_lean_loop(trainer)  # as `train` does
    valid = Loader(valid) if valid else None
    loader = Loader(train) if isinstance(train, list) else train
    trainer.fit(module, loader, valid, ckpt_path=ckpt_path)
    return trainer
