"""What is trained, and where the time until the first step goes."""

import re

import torch

from espnet3.trainer.reporting import summary
from espnet3.trainer.reporting.history import read_history
from espnet3.trainer.reporting.loggers import History
from espnet3.trainer.reporting.summary import ModelSize, StartupTimes, describe_parts
from tests.helpers.report_parts import Module, fit


def test_a_model_is_described_by_its_top_level_modules():
    model = torch.nn.Module()
    model.frontend = torch.nn.Linear(10, 100)
    model.frontend.requires_grad_(False)
    model.encoder = torch.nn.Sequential(torch.nn.Linear(100, 1000), torch.nn.Linear(1000, 10))
    model.encoder[1].requires_grad_(False)
    model.activation = torch.nn.ReLU()
    assert str(ModelSize.of(model)) == "112 k parameters (101 k trainable), 448 kB"
    assert describe_parts(model) == [
        "  frontend  Linear      1.1 k  1.0%  frozen",
        "  encoder   Sequential  111 k   99%  10 k frozen",
    ]


def test_tied_weights_count_once_and_lazy_ones_not_at_all():
    model = torch.nn.Module()
    model.embedding = torch.nn.Embedding(7, 3)
    model.output = torch.nn.Linear(3, 7, bias=False)
    model.output.weight = model.embedding.weight
    model.lazy = torch.nn.LazyLinear(5)
    assert ModelSize.of(model) == ModelSize(21, 21, 84)
    assert "lazy" in "".join(describe_parts(model))


def test_a_model_without_weights_has_no_table():
    assert str(ModelSize.of(torch.nn.ReLU())) == "0 parameters (all trainable), 0 B"
    assert not describe_parts(torch.nn.ReLU())


def test_the_time_to_the_first_step_is_told_by_part(tmp_path, monkeypatch, caplog):
    now = [1000.0]
    monkeypatch.setattr(summary, "monotonic", lambda: now[0])
    caplog.set_level("INFO", "espnet3")

    class Slow(Module):
        def validation_step(self, batch, batch_idx):
            now[0] += 2

        def training_step(self, batch, batch_idx):
            now[0] += 0.5
            super().training_step(batch, batch_idx)

    times = StartupTimes(begin=990.0)
    times.add("imports", 8)
    for _ in range(2):
        with times.part("datasets"):
            now[0] += 1.5
    with times.part("trainer"):
        callback = times.callback()
        now[0] += 1
    fit(tmp_path, [callback, History(tmp_path)], module=Slow(), max_epochs=2)
    said = [r.getMessage() for r in caplog.records if r.name == summary.__name__]
    assert said == [
        "First step after 18 s: imports 8.0 s, datasets 3.0 s, trainer 1.0 s, sanity check 4.0 s, "
        "first step 0.50 s, other 2.0 s"
    ]
    entry = read_history(tmp_path)[0]
    assert entry.step == 1
    assert entry.values["startup/total"] == 18.5
    assert entry.values["startup/sanity_check"] == 4.0
    assert entry.values["startup/process_group"] == 0.0


def test_without_a_sanity_check_there_is_none_in_the_report(tmp_path, caplog):
    caplog.set_level("INFO", "espnet3")
    times = StartupTimes()
    fit(tmp_path, [times.callback()], num_sanity_val_steps=0, max_epochs=1)
    [line] = [r.getMessage() for r in caplog.records if r.name == summary.__name__]
    assert re.match(r"First step after [\d.]+ s: ", line)
    assert "sanity" not in line
    assert list(times.parts) == ["process group", "setup", "first batch", "first step"]
