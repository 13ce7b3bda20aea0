import json
import logging
import os
import stat

import lightning.pytorch as pl
import pytest
import torch

from espnet3.errors import ConfigError, RunFolderError
from espnet3.trainer.checkpointing.best_checkpoints import (
    average,
    average_all,
    mean_weights,
    sha256,
)
from espnet3.trainer.checkpointing.checkpoint_io import load_weights
from espnet3.trainer.config import Criterion
from tests.helpers.checkpoint_parts import LOSS, Loader, Module, Net, run

THREE = Criterion("valid/loss", 3, "min")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exp")
    run(folder, criteria=[THREE], valid=True, max_epochs=4)
    return folder


@pytest.fixture
def exp_dir(trained, tmp_path):
    import shutil

    return shutil.copytree(trained, tmp_path / "exp")


def validation_loss(model):
    model.eval()
    with torch.no_grad():
        losses = [model(batch["x"], batch["y"]) for batch in Loader(2)]
    return torch.stack(losses).mean()


def test_the_average_loads_strictly_and_has_the_loss_of_the_mean_weights(exp_dir):
    averaged = average(exp_dir, THREE)
    assert averaged.safetensors == exp_dir / "valid.loss.ave_3best.safetensors"
    assert len(averaged.sources) == 3
    states = [
        torch.load(exp_dir / one.file, weights_only=True)["state_dict"] for one in averaged.sources
    ]
    by_hand = Net()
    with torch.no_grad():
        for name, parameter in by_hand.state_dict().items():
            values = torch.stack([state[f"model.{name}"].double() for state in states])
            parameter.copy_(values.mean(0) if parameter.is_floating_point() else values.max())
    net = Net()
    net.load_state_dict(load_weights(averaged.safetensors), strict=True)
    assert validation_loss(net) == validation_loss(by_hand)
    others = []
    for state in states:
        one = Net()
        one.load_state_dict({k.removeprefix("model."): v for k, v in state.items()})
        others.append(validation_loss(one))
    assert validation_loss(net) not in others
    assert net.norm.num_batches_tracked > 0


def test_a_group_may_read_what_its_umask_lets_it(exp_dir):
    before = os.umask(0o027)
    try:
        averaged = average(exp_dir, THREE)
    finally:
        os.umask(before)
    files = averaged.safetensors, averaged.checkpoint, averaged.record
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o640] * 3


def test_the_checkpoint_is_one_for_lightning(exp_dir):
    averaged = average(exp_dir, THREE)
    module = Module()
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        default_root_dir=exp_dir,
    )  # fmt: skip
    results = trainer.validate(module, Loader(2), ckpt_path=averaged.checkpoint, verbose=False)
    net = Net()
    net.load_state_dict(load_weights(averaged.checkpoint), strict=True)
    assert results[0]["valid/loss"] == pytest.approx(validation_loss(net).item())
    assert set(load_weights(averaged.safetensors)) == set(net.state_dict())


def test_the_record_says_what_was_averaged(exp_dir):
    (averaged,) = average_all(exp_dir, [THREE])
    record = json.loads(averaged.record.read_text())
    assert record["criterion"] == {"monitor": "valid/loss", "k": 3, "mode": "min"}
    assert record["n_averaged"] == 3
    values = [one["value"] for one in record["averaged"]]
    assert values == sorted(values)
    for one in record["averaged"]:
        assert one["sha256"] == sha256(exp_dir / one["file"])
        assert one["file"] == f"epoch{one['epoch']}_step{one['step']}.ckpt"
    assert record["files"]["valid.loss.ave_3best.ckpt"] == sha256(averaged.checkpoint)
    assert record["date"].startswith("20")


def test_fewer_are_averaged_with_a_warning_that_names_what_is_gone(exp_dir, caplog):
    best = json.loads((exp_dir / "best.json").read_text())["criteria"][0]["checkpoints"]
    (exp_dir / best[0]["file"]).unlink()
    with caplog.at_level(logging.WARNING):
        averaged = average(exp_dir, THREE)
    assert len(averaged.sources) == 2
    assert "Averaging 2 checkpoints of valid/loss instead of 3" in caplog.text
    assert best[0]["file"] in caplog.text
    assert json.loads(averaged.record.read_text())["missing"] == [best[0]]


def test_a_smaller_number_takes_the_best_ones(exp_dir):
    averaged = average(exp_dir, LOSS)
    assert averaged.safetensors.name == "valid.loss.ave_2best.safetensors"
    assert len(averaged.sources) == 2


def test_nothing_to_average_is_told(exp_dir, tmp_path):
    for path in exp_dir.glob("epoch*.ckpt"):
        path.unlink()
    with pytest.raises(RunFolderError, match=r"No checkpoint is left.*Train again"):
        average(exp_dir, THREE)
    with pytest.raises(RunFolderError, match=r"Train first: python run.py --stages train"):
        average(tmp_path / "nowhere", THREE)


def test_a_metric_that_was_not_kept_is_told(exp_dir):
    with pytest.raises(
        ConfigError, match=r"kept \[valid/loss, 3, min\].*Did you mean 'valid/loss'"
    ):
        average(exp_dir, Criterion("valid/lost", 3, "min"))


def test_different_models_are_not_averaged(exp_dir):
    first = sorted(exp_dir.glob("epoch*.ckpt"))[-1]
    checkpoint = torch.load(first, weights_only=True)
    checkpoint["state_dict"]["model.first.weight"] = torch.zeros(9, 9)
    del checkpoint["state_dict"]["model.first.bias"]
    torch.save(checkpoint, first)
    with pytest.raises(RunFolderError, match=r"first.bias, first.weight.*resume: never"):
        average(exp_dir, THREE)


def test_the_mean_is_taken_in_double_precision(tmp_path):
    paths = []
    for index in range(3):
        values = {
            "half": torch.tensor([1 + index / 128], dtype=torch.bfloat16),
            "complex": torch.tensor([index + 1j]),
            "count": torch.tensor(index),
            "flag": torch.tensor(index == 0),
            "large": torch.tensor([2.0**24 + index * 4]),
        }
        paths.append(tmp_path / f"{index}.ckpt")
        torch.save({"state_dict": {f"model.{k}": v for k, v in values.items()}}, paths[-1])
    mean = mean_weights(paths)
    assert mean["half"].dtype == torch.bfloat16
    assert mean["half"].item() == 1 + 1 / 128
    assert mean["complex"].item() == 1 + 1j
    assert mean["count"].item() == 2
    assert mean["flag"].item() is False
    assert mean["large"].item() == 2.0**24 + 4


def test_weights_of_other_programs_keep_their_names(tmp_path):
    torch.save({"model.a": torch.ones(1)}, tmp_path / "bare.pt")
    assert set(load_weights(tmp_path / "bare.pt")) == {"model.a"}
    torch.save(
        {"state_dict": {"model.a": torch.ones(1), "ema.a": torch.ones(1)}}, tmp_path / "b.pt"
    )
    assert set(load_weights(tmp_path / "b.pt")) == {"model.a", "ema.a"}


def test_files_without_weights_are_told(tmp_path):
    torch.save({"epoch": 1}, tmp_path / "a.pt")
    with pytest.raises(RunFolderError, match=r"holds no weights, but epoch. Give a"):
        load_weights(tmp_path / "a.pt")
    (tmp_path / "a.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RunFolderError, match=r"damaged or no safetensors.*stage 5"):
        load_weights(tmp_path / "a.safetensors")
    with pytest.raises(RunFolderError, match=r"do not exist. Check the path"):
        load_weights(tmp_path / "b.safetensors")
    (tmp_path / "sharded").mkdir()
    torch.save({"epoch": 1}, tmp_path / "sharded" / "meta.pt")
    with pytest.raises(RunFolderError, match=r"lightning.pytorch.utilities.consolidate_checkpoint"):
        load_weights(tmp_path / "sharded")
