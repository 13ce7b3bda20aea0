"""What `test_module_ranks.py` runs in two processes: `python module_ranks_job.py OUTPUT_FOLDER`."""

import copy
import json
import logging
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import FSDPStrategy
from lightning.pytorch.strategies import fsdp as fsdp_module
from torch import nn

from espnet3.errors import TrainingError
from espnet3.trainer.checkpointing.checkpoints import CheckpointKeeper
from espnet3.trainer.lightning_internals import use_lean_loop
from espnet3.trainer.module import TrainingModule
from espnet3.trainer.optimization.optimization_config import OptimizationConfig
from espnet3.trainer.trainer import AtomicCheckpointIO

torch.set_num_threads(1)

SGD = {"_target_": "torch.optim.SGD", "lr": 0.1, "momentum": 0.9}
N_STEPS = 5


class Net(nn.Module):
    """Has buffers that follow the batches of its rank."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.layer = nn.Linear(3, 1)
        self.seen = []

    def forward(self, x, y, with_extra=False, **kwargs):
        self.seen.append(self.norm.running_mean.tolist())
        self.norm(x)  # for its running statistics only
        loss = (self.layer(x).squeeze(-1) - y).square().mean() + 0 * self.norm.weight.sum()
        loss = loss + 0 * self.norm.bias.sum()
        stats = {"extra": float(with_extra)} if with_extra else {}
        return loss, {**stats, "mean": self.norm.running_mean.sum()}, len(x)


class Gan(nn.Module):
    def __init__(self, lazy):
        super().__init__()
        self.generator = nn.Linear(2, 2)
        self.discriminator = nn.Linear(2, 1)
        self.lazy = lazy

    def forward(self, x):
        steps = {"discriminator": lambda: self.judge(x), "generator": lambda: self.fool(x)}
        return steps if self.lazy else {name: step() for name, step in steps.items()}

    def judge(self, x):
        fake = self.generator(x).detach()
        return {"loss": self.discriminator(x).square().mean() + self.discriminator(fake).mean()}

    def fool(self, x):
        return {"loss": -self.discriminator(self.generator(x)).mean()}


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x, y):
        return {"loss": (self.last(self.first(x).tanh()).squeeze(-1) - y).square().mean()}


class Loader:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)

    def __len__(self):
        return len(self.items)


def batches(n, dim=3):
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "x": torch.randn(4, dim, generator=generator),
            "y": torch.randn(4, generator=generator),
            "utt_id": [f"utt{i}"],
        }
        for i in range(n)
    ]


def make(model, **config):
    config = config if "optimizers" in config else {"optimizer": SGD, **config}
    return TrainingModule(model, OptimizationConfig.from_config(config))


def seeded(kind, *args):
    torch.manual_seed(0)
    return kind(*args)


class Curve(pl.Callback):
    def __init__(self):
        self.losses = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(float(trainer.callback_metrics["train/loss"]))


def fit(module, train, valid=None, n_ranks=2, strategy="ddp", **arguments):
    many = {"strategy": strategy, "devices": n_ranks} if n_ranks > 1 else {"devices": 1}
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
        use_distributed_sampler=False, **many, **arguments,
    )  # fmt: skip
    use_lean_loop(trainer)  # as `train` does
    trainer.fit(module, Loader(train), Loader(valid) if valid else None)
    return trainer


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()]).tolist()


def accumulation(rank):
    """All batches in turn, one per rank and step, clipped."""
    curve = Curve()
    module = make(seeded(Net), trainer={"gradient_clip_val": 0.5})
    fit(module, batches(2 * N_STEPS)[rank::2], callbacks=[curve])
    return {"weights": weights(module), "losses": curve.losses, "buffers": module.model.seen}


def accumulation_alone():
    """The same on one rank, two batches per step."""
    trainer = {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2}
    module, curve = make(seeded(Net), trainer=trainer), Curve()
    fit(module, batches(2 * N_STEPS), n_ranks=1, callbacks=[curve])
    pairs = zip(curve.losses[::2], curve.losses[1::2], strict=True)
    return {"weights": weights(module), "losses": [sum(pair) / 2 for pair in pairs]}


def long_windows(rank):
    """Two batches per rank and step; the last window has one."""
    module = make(seeded(Net), trainer={"accumulate_grad_batches": 2})
    fit(module, batches(2 * N_STEPS)[rank::2])
    return {"weights": weights(module)}


def long_windows_alone():
    module = make(seeded(Net), trainer={"accumulate_grad_batches": 4})
    fit(module, batches(2 * N_STEPS), n_ranks=1)
    return {"weights": weights(module)}


def nonfinite(rank):
    """A bad batch on rank 1: in the middle of a window, and at the end of the next."""
    data = batches(8)[rank::2]
    for step in (0, 3) if rank == 1 else ():
        data[step]["y"][0] = float("nan")
    module = make(seeded(Net), trainer={"accumulate_grad_batches": 2})
    trainer = fit(module, data)
    return {
        "weights": weights(module),
        "n_bad": module.n_bad_batches,
        "n_steps": trainer.global_step,
        "loss": float(trainer.callback_metrics["train/loss"]),
    }


def nonfinite_alone():
    """The same without the bad batches and their companions."""
    module = make(seeded(Net), trainer={"accumulate_grad_batches": 2})
    fit(module, batches(8)[2:6], n_ranks=1)
    return {"weights": weights(module)}


def always_nonfinite(rank):
    data = batches(6)
    for batch in data if rank == 1 else ():
        batch["y"][:] = float("nan")
    try:
        fit(make(seeded(Net), max_nonfinite_batches=2), data)
    except TrainingError as error:
        return {"error": str(error)}
    return {"error": None}


def validation(rank):
    """Rank 0 has three batches, rank 1 has one, and only one reports a statistic."""
    data = batches(4)
    data[1]["with_extra"] = True
    module = make(seeded(Net))
    trainer = fit(module, batches(4)[rank::2], data[:3] if rank == 0 else data[3:])
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {"metrics": metrics, "buffers": module.model.norm.running_mean.tolist()}


def gan(rank, lazy=True):
    part = {"optimizer": SGD, "gradient_clip_val": 0.1}
    optimizers = {name: {**part, "params": name} for name in ("discriminator", "generator")}
    module = make(seeded(Gan, lazy), optimizers=optimizers)
    data = [{"x": batch["x"]} for batch in batches(2 * N_STEPS, dim=2)]
    fit(module, data[rank::2])
    return {"weights": weights(module)}


def gan_computed(rank):
    return gan(rank, lazy=False)


def gan_by_hand(lazy=True):
    model = seeded(Gan, lazy)
    parts = {"judge": model.discriminator, "fool": model.generator}
    optimizers = {
        name: torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9)
        for name, part in parts.items()
    }
    data = [batch["x"] for batch in batches(2 * N_STEPS, dim=2)]
    for pair in zip(data[::2], data[1::2], strict=True):
        before = copy.deepcopy(model)
        for name, part in parts.items():
            losses = [getattr(model if lazy else before, name)(x)["loss"] for x in pair]
            source = (
                part if lazy else (before.discriminator if name == "judge" else before.generator)
            )
            gradients = torch.autograd.grad(sum(losses) / 2, list(source.parameters()))
            for parameter, gradient in zip(part.parameters(), gradients, strict=True):
                parameter.grad = gradient
            torch.nn.utils.clip_grad_norm_(part.parameters(), 0.1)
            optimizers[name].step()
    return {"weights": weights(model)}


class CpuFSDP(FSDPStrategy):
    """FSDP as Lightning sets it up, but for the CPU, which it refuses as a rule."""

    def __init__(self, **options):
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        super().__init__(auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), **options)

    @contextmanager
    def model_sharded_context(self):
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import enable_wrap

        options = {"sharding_strategy": self.sharding_strategy, "device_id": torch.device("cpu")}
        with enable_wrap(wrapper_cls=FullyShardedDataParallel, **options, **self.kwargs):
            yield


def _clipped(n_accumulated):
    return {"gradient_clip_val": 0.2, "accumulate_grad_batches": n_accumulated}


def fsdp(rank):
    """A bad batch on rank 1 in the second of three windows."""
    from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType

    data = batches(2 * N_STEPS)[rank::2]
    if rank == 1:
        data[2]["y"][0] = float("nan")
    module = make(seeded(Deep), trainer=_clipped(2))
    fit(module, data, batches(1), strategy=CpuFSDP())
    whole = FullStateDictConfig(offload_to_cpu=False)
    with FullyShardedDataParallel.state_dict_type(module, StateDictType.FULL_STATE_DICT, whole):
        state = module.state_dict()
    values = torch.cat([value.flatten() for value in state.values()]).tolist()
    return {"weights": values, "names": list(state), "n_bad": module.n_bad_batches}


def fsdp_by_hand():
    model, data = seeded(Deep), batches(2 * N_STEPS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for window in (data[:4], data[6:8], data[8:]):
        optimizer.zero_grad()
        (sum(model(b["x"], b["y"])["loss"] for b in window) / len(window)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()
    return {"weights": weights(model)}


def fsdp_resumed(rank):
    """Two epochs, once in one go and once in two, with each kind of checkpoint."""
    # Lightning lets FSDP copy whole weights to the CPU, which copies nothing if they are there:
    # what FSDP then frees is still in use.
    fsdp_module._get_full_state_dict_context = _whole_weights
    ends = {}
    for kind in ("sharded", "full"):
        folder = Path(sys.argv[1]) / kind
        ends[kind] = [
            _train_fsdp(rank, kind, folder / "whole", 2),
            _train_fsdp(rank, kind, folder / "parts", 1),
            _train_fsdp(rank, kind, folder / "parts", 2, folder / "parts" / "last.ckpt"),
        ]
    whole = torch.load(folder / "parts" / "last.ckpt", weights_only=True)
    return {**ends, "names": list(whole["state_dict"])}


def _whole_weights(module, world_size, rank0_only=True):
    from torch.distributed import fsdp

    only = {"offload_to_cpu": False, "rank0_only": rank0_only}
    return fsdp.FullyShardedDataParallel.state_dict_type(
        module,
        fsdp.StateDictType.FULL_STATE_DICT,
        fsdp.FullStateDictConfig(**only),
        fsdp.FullOptimStateDictConfig(**only),
    )


def _train_fsdp(rank, kind, folder, n_epochs, ckpt_path=None):
    module = make(seeded(Deep), trainer=_clipped(2))
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy=CpuFSDP(state_dict_type=kind), logger=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        callbacks=[CheckpointKeeper(folder)], plugins=[AtomicCheckpointIO()],
        max_epochs=n_epochs, default_root_dir=folder,
    )  # fmt: skip
    use_lean_loop(trainer)
    data = Loader(batches(2 * N_STEPS)[rank::2])
    trainer.fit(module, data, ckpt_path=ckpt_path, weights_only=True)
    return weights(module)  # those that are on this rank


JOBS = (
    accumulation, long_windows, nonfinite, always_nonfinite, validation, gan, gan_computed, fsdp,
    fsdp_resumed,
)  # fmt: skip


def main(folder):
    rank = int(os.environ["RANK"])
    logging.basicConfig(level=logging.WARNING, filename=folder / f"log.{rank}")
    results = {job.__name__: job(rank) for job in JOBS}
    (folder / f"results.{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
