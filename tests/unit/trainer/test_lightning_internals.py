import ast
import copy
import re
import sys
from collections import namedtuple
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.profilers import PassThroughProfiler

import espnet3.trainer
from espnet3.trainer.lightning_internals import (
    LowOverheadModule,
    _moved,
    is_log_point,
    use_lean_loop,
)
from espnet3.trainer.module import TrainingModule
from espnet3.trainer.optimization.optimization_config import OptimizationConfig
from tests.helpers import linear_training
from tests.helpers.linear_training import SGD, Linear, batches, make

torch.set_num_threads(1)
N_BATCHES = 3


class Line(LowOverheadModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Counter(pl.Callback):
    def __init__(self):
        self.calls = []

    def on_after_backward(self, trainer, pl_module):
        self.calls.append("after")

    def on_train_batch_end(self, *arguments):
        self.calls.append("end")


def fit(*callbacks, **more):
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=list(callbacks), **more,
    )  # fmt: skip
    use_lean_loop(trainer)
    trainer.fit(Line(), torch.utils.data.DataLoader(torch.ones(N_BATCHES, 1)))
    return trainer


def test_hooks_that_do_something_are_called_and_empty_ones_are_not():
    counter = Counter()
    fit(counter)
    assert counter.calls == ["after", "end"] * N_BATCHES
    assert counter.on_before_backward is None


def test_hooks_of_a_parent_or_of_the_object_itself_count():
    class Child(Counter):
        pass

    child, patched = Child(), pl.Callback()
    seen = []
    patched.on_before_backward = lambda *arguments: seen.append(arguments)
    fit(child, patched)
    assert child.calls == ["after", "end"] * N_BATCHES
    assert len(seen) == N_BATCHES


def test_a_profiler_that_was_asked_for_stays():
    trainer = fit(profiler="simple")
    assert trainer.profiler.recorded_durations["run_training_batch"]


def test_a_trainer_without_profiler_still_names_hooks_for_the_log():
    names = []

    class Namer(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, *arguments):
            names.append(pl_module._current_fx_name)

    fit(Namer())
    assert names == ["on_train_batch_end"] * N_BATCHES


def test_no_other_module_touches_private_attributes_of_lightning():
    readers = set()
    for path in Path(espnet3.trainer.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_private = isinstance(node, ast.Attribute) and node.attr.startswith("_")
            if is_private and re.search(r"(trainer|loop|strategy)\._", ast.unparse(node)):
                readers.add(path.name)
    readers.discard("lightning_internals.py")
    assert not readers


class Unmeasured(PassThroughProfiler):
    """A profiler of the user's own, with which Lightning's loop does every batch."""


class Recorder(pl.Callback):
    """Notes each hook, its arguments, and what can be seen of the training in it."""

    def __init__(self, logs=()):
        self.seen = []
        self.logs = logs

    def note(self, name, trainer, module, *args, **more):
        if name in self.logs:
            module.log(f"mine/{name}", float(trainer.global_step), on_step=True, on_epoch=True)
        loop = trainer.fit_loop.epoch_loop
        metrics = trainer.callback_metrics, trainer.logged_metrics
        self.seen.append(
            (
                name, *map(plain, args), more, module._current_fx_name, trainer.global_step,
                trainer.is_last_batch, trainer.should_stop, plain(metrics),
                # What a checkpoint written here would hold.
                plain(loop.state_dict()),
                is_log_point(trainer) == trainer._logger_connector.should_update_logs
                or not trainer.training,
            )
        )  # fmt: skip


def _noting(name):
    return lambda self, trainer, module, *args, **more: self.note(
        name, trainer, module, *args, **more
    )


HOOKS = [n for n in dir(pl.Callback) if n.startswith("on_") and "checkpoint" not in n]
for _name in HOOKS:
    setattr(Recorder, _name, _noting(_name))


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if isinstance(value, str | int | float | None) else type(value).__name__


class Recording(TrainingModule):
    """Our module; some of its hooks are noted as well."""

    def __init__(self, recorder, *args):
        super().__init__(*args)
        self.recorder = [recorder]  # in a list, as a callback is no part of a module

    def on_after_backward(self):
        self.recorder[0].note("module.on_after_backward", self.trainer, self)

    def on_train_batch_end(self, *args):
        self.recorder[0].note("module.on_train_batch_end", self.trainer, self, *args)


class Adder(pl.Callback):
    """Adds another callback in the middle of an epoch, and ends the training early."""

    def __init__(self, other, stops):
        self.other, self.stops = other, stops

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 2 and self.other is not None:
            trainer.callbacks.append(self.other)
        trainer.should_stop = self.stops and batch_idx == 4


class Two(Linear):
    """A step for each of two optimizers, the second of which is computed after the first."""

    def forward(self, x, y):
        forward = super().forward
        return {"weight": forward(x, y), "bias": lambda: forward(x, y)}


TWO = {
    name: {"optimizer": SGD, "params": [f"layer.{name}"], "step_every_n_iters": n}
    for name, n in (("weight", 1), ("bias", 2))
}


class Stream:
    """A loader that does not know its length."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


STEPS = {"_target_": "torch.optim.lr_scheduler.ExponentialLR", "gamma": 0.9}
VALID = batches(2, seed=1)
CASES = {
    "plain": {},
    "accumulation": {"trainer": {"accumulate_grad_batches": 4, "gradient_clip_val": 0.1}},
    "schedule": {"scheduler": STEPS, "scheduler_interval": "epoch"},
    "log points": {"log_every_n_steps": 4},
    "no log points": {"log_every_n_steps": 0},
    "callbacks that log": {"logs": ["on_after_backward", "on_train_batch_end"]},
    "two optimizers": {"optimizers": TWO},
    "a stream": {"stream": Stream, "valid": VALID},
    "a part of a stream": {"stream": Stream, "limit_train_batches": 4, "valid": VALID},
    "validation": {"valid": VALID, "num_sanity_val_steps": 1, "logs": ["on_validation_batch_end"]},
    "validation by batch": {"valid": VALID, "val_check_interval": 2},
    "validation by share": {"valid": VALID, "val_check_interval": 0.5, "log_every_n_steps": 5},
    "validation across epochs": {
        "valid": VALID, "val_check_interval": 4, "check_val_every_n_epoch": None,
    },
    "every second epoch": {"valid": VALID, "check_val_every_n_epoch": 2, "max_epochs": 3},
    "limits": {"limit_train_batches": 4, "valid": VALID, "limit_val_batches": 1},
    "steps": {"max_steps": 9, "max_epochs": -1},
    "bf16": {"precision": "bf16-mixed"},
    "64": {"precision": "64-true"},
    "trial": {"fast_dev_run": 3, "valid": VALID},
    "early": {"valid": VALID, "more": [(EarlyStopping, "valid/loss")], "max_epochs": 4},
    "asked to stop": {"stops": True, "valid": VALID},
    "added": {"adds": True},
    "an empty batch": {"holes": [2]},
}  # fmt: skip


def run(case, *, is_lean, ckpt_path=None):
    """Train, and return what was seen, the weights and the trainer."""
    case = dict(case)
    data, valid = batches(6), case.pop("valid", None)
    for place in case.pop("holes", ()):
        data[place] = None
    recorder, other = Recorder(case.pop("logs", ())), Recorder()
    callbacks = [recorder, *(kind(monitor) for kind, monitor in case.pop("more", ()))]
    adds, stops = case.pop("adds", False), case.pop("stops", False)
    callbacks += [Adder(other if adds else None, stops)] if adds or stops else []
    names = ("trainer", "scheduler", "scheduler_interval", "optimizers")
    config = {name: case.pop(name) for name in names if name in case}
    model = Two() if "optimizers" in config else Linear()
    config |= {} if "optimizers" in config else {"optimizer": SGD}
    torch.manual_seed(0)
    model.load_state_dict(Linear().state_dict())
    module = Recording(recorder, model, OptimizationConfig.from_config(config))
    arguments = {"max_epochs": 2, "callbacks": callbacks, **case}
    stream = arguments.pop("stream", list)
    if not is_lean:
        arguments["profiler"] = Unmeasured()
    trainer = linear_training.fit(module, stream(data), valid, ckpt_path, **arguments)
    assert trainer.fit_loop.epoch_loop._is_lean == is_lean
    return recorder.seen + other.seen, plain(module.state_dict()), trainer


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_both_loops_call_the_same_hooks_in_the_same_state(case):
    ours, weights, _ = run(case, is_lean=True)
    theirs, expected, _ = run(case, is_lean=False)
    assert [one[0] for one in ours] == [one[0] for one in theirs]
    for own, other in zip(ours, theirs, strict=True):
        assert own == other
    assert weights == expected
    assert len([one for one in ours if one[0] == "on_train_batch_start"]) > 1


def test_both_loops_continue_alike_in_the_middle_of_an_epoch(tmp_path):
    path, block = tmp_path / "at four.ckpt", {"accumulate_grad_batches": 2}
    case = {"trainer": block, "valid": VALID, "val_check_interval": 2, "logger": False}
    for is_lean in (True, False):
        run({**case, "max_steps": 2}, is_lean=is_lean)[2].save_checkpoint(path)
        ours, weights, _ = run(case, is_lean=True, ckpt_path=path)
        theirs, expected, _ = run(case, is_lean=False, ckpt_path=path)
        assert ours == theirs
        assert weights == expected
        assert 0 < len([one for one in ours if one[0] == "on_train_batch_start"]) < 12


def test_a_batch_is_moved_as_lightning_moves_it():
    pair = namedtuple("pair", "x y")
    tensor = torch.ones(2)
    batch = {"x": tensor, "ids": ["a", "b"], "y": (tensor, [1, None]), "z": pair(tensor, 0.5)}
    own, device = _moved(batch, torch.device("cpu")), torch.device("cpu")
    assert own == move_data_to_device(batch, device) == batch
    assert own is not batch
    assert own["ids"] is not batch["ids"]
    assert _moved(batch, torch.device("meta"))["z"].x.device.type == "meta"


def test_a_copy_of_the_module_has_none_of_the_callbacks():
    recorder = Recorder()
    module = make()
    linear_training.fit(module, batches(2), callbacks=[recorder])
    assert module._callbacks_seen
    assert copy.deepcopy(module)._callbacks_seen == []


def test_modules_with_automatic_optimization_use_lightnings_own_loop():
    assert not fit().fit_loop.epoch_loop._is_lean


class CallCounter(pl.Callback):
    """Counts calls of Python functions from the end of one batch to that of another."""

    def __init__(self):
        self.n_calls = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 1:
            sys.setprofile(self.count)
        elif batch_idx == 3:
            sys.setprofile(None)

    def count(self, frame, event, argument):
        self.n_calls += event == "call"


def calls_per_batch(**arguments):
    counter = CallCounter()
    linear_training.fit(make(), batches(6), callbacks=[counter], log_every_n_steps=6, **arguments)
    return counter.n_calls / 2


def test_a_batch_of_the_lean_loop_takes_half_as_many_calls():
    assert 0 < calls_per_batch() < 0.5 * calls_per_batch(profiler=Unmeasured())
