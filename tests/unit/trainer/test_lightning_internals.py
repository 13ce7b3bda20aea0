import ast
import re
from pathlib import Path

import lightning.pytorch as pl
import torch

import espnet3.trainer
from espnet3.trainer.lightning_internals import LowOverheadModule

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
