"""Loaders of two real ranks: each sample exactly once, equal steps, and a resume by Lightning."""

import contextlib
import json
import os
import subprocess
import sys

import pytest

N_SAMPLES = 1003
PROGRAM = '''
import json, logging, sys
import numpy as np
import torch
from espnet3.components.data.loader import build_loader
from espnet3.components.data.loader_config import LoaderConfig

torch.set_num_threads(1)
warnings = []

class Notes(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage())

logging.getLogger("espnet3").addHandler(Notes(logging.WARNING))

class Speech:
    def __init__(self, n):
        lengths = np.random.default_rng(0).lognormal(2.2, 0.6, n)
        self.seconds = np.clip(lengths, 0.8, 35.0).round(2)

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, index):
        seconds = self.seconds[index]
        return {"index": index, "speech": np.zeros(round(seconds * 100)), "sample_rate": 100}

    def durations(self):
        return self.seconds

class Pairs:
    """Uneven batches in an order of torch's global generator, which differs between the ranks."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        order = torch.randperm(len(self.dataset)).tolist()
        while order:
            n = int(torch.randint(1, 6, ()))
            yield order[:n]
            order = order[n:]

def run(name, config, n=%(n)d, split="train"):
    data = Speech(n)
    if config.get("batch_sampler"):
        config = {"batch_sampler": Pairs(data)}
    loader = build_loader(data, LoaderConfig(**config), collate_fn=list, seed=1, split=split)
    epochs = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        batches, padding = [], []
        warnings.clear()
        for batch in loader:
            batches.append([sample["index"] for sample in batch])
            assert tuple(batches[-1]) == loader.last_batch.indices
            padding.append(1 - loader.last_batch.seconds / loader.last_batch.padded_seconds)
        epochs.append({
            "batches": batches, "padding": max(padding), "length": len(loader),
            "warnings": list(warnings),
        })
    return epochs

if __name__ == "__main__":
    folder, rank, table = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", world_size=2, rank=rank
    )
    torch.manual_seed(rank)
    found = {name: run(name, **arguments) for name, arguments in table.items()}
    try:
        run("one", {"batch_size": 4}, n=1)
    except Exception as error:
        found["one sample"] = f"{type(error).__name__}: {error}"
    json.dump(found, open(f"{folder}/{rank}.json", "w"))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
'''
TABLE = {
    "count": {"config": {"batch_size": 16}},
    "count, drop_last": {"config": {"batch_size": 16, "drop_last": True}},
    "count, odd number of full batches": {"config": {"batch_size": 59}},
    "single samples": {"config": {"batch_size": 1}, "n": N_SAMPLES - 1},
    "seconds": {"config": {"batch_seconds": 100.0}},
    "seconds, drop_last": {"config": {"batch_seconds": 100.0, "drop_last": True}},
    "seconds and count": {"config": {"batch_seconds": 200.0, "batch_size": 7}},
    "own batch sampler": {"config": {"batch_sampler": True}},
    "validation": {"config": {"batch_seconds": 60.0}, "split": "valid"},
    "workers": {"config": {"batch_seconds": 100.0, "num_workers": 1}},
    "three samples": {"config": {"batch_size": 16}, "n": 3},
}
ODD = {"single samples, odd": {"config": {"batch_size": 1}}}


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes of one group saw in two epochs, for each line of the table."""
    folder = tmp_path_factory.mktemp("ranks")
    program = folder / "ranks.py"
    program.write_text(PROGRAM % {"n": N_SAMPLES})
    processes = [
        subprocess.Popen(
            [sys.executable, program, folder, str(rank), json.dumps(TABLE | ODD)],
            env=environment(), stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", TABLE)
def test_two_ranks_see_each_sample_once_in_equal_steps(found, name):
    n_samples = TABLE[name].get("n", N_SAMPLES)
    drops = TABLE[name]["config"].get("drop_last", False)
    for ranks in zip(*(rank[name] for rank in found), strict=True):  # epochs
        steps = [len(rank["batches"]) for rank in ranks]
        assert steps[0] == steps[1] == ranks[0]["length"] == ranks[1]["length"] > 0
        seen = [index for rank in ranks for batch in rank["batches"] for index in batch]
        assert len(seen) == len(set(seen))
        if drops:
            assert n_samples - 2 * 16 < len(seen) <= n_samples
        else:
            assert sorted(seen) == list(range(n_samples))
        if "seconds" in name:
            assert max(rank["padding"] for rank in ranks) <= 0.08


def test_a_single_sample_that_fits_no_step_is_left_out_with_a_warning(found):
    first, second = zip(*(rank["single samples, odd"] for rank in found), strict=True)
    for ranks in (first, second):
        batches = [batch for rank in ranks for batch in rank["batches"]]
        assert [len(rank["batches"]) for rank in ranks] == [N_SAMPLES // 2] * 2
        assert len({index for (index,) in batches}) == N_SAMPLES - 1
    for rank in first:
        (line,) = rank["warnings"]
        assert f"1 of {N_SAMPLES} samples are left out" in line
    assert not any(rank["warnings"] for rank in second)


@pytest.mark.parametrize("name", ["count", "seconds", "own batch sampler"])
def test_epochs_are_dealt_anew(found, name):
    first, second = (epoch["batches"] for epoch in found[0][name])
    assert first != second


def test_fewer_samples_than_ranks_is_an_error_on_both(found):
    for rank in found:
        assert rank["one sample"].startswith("ConfigError: dataloader.train: There are 2 ranks")


@pytest.fixture
def train(tmp_path):
    """Return a function that trains with Lightning on 60 samples, and returns what was seen."""
    import lightning.pytorch as pl
    import numpy as np
    import torch

    from espnet3.components.data.loader import build_loader
    from espnet3.components.data.loader_config import LoaderConfig
    from espnet3.trainer.checkpointing.checkpoints import CheckpointKeeper

    torch.set_num_threads(1)
    seconds = np.random.default_rng(0).uniform(1, 10, 60)

    class Stopped(Exception):
        pass

    class Model(pl.LightningModule):
        def __init__(self, stop_after):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen, self.stop_after, self.n_validations = [], stop_after, 0

        def training_step(self, batch, batch_idx):
            self.seen.append((self.current_epoch, batch.tolist()))
            return self.layer(torch.ones(1, 1)).sum()

        def validation_step(self, batch, batch_idx):
            self.log("valid/n", float(len(batch)), batch_size=len(batch))

        def on_validation_end(self):
            self.n_validations += not self.trainer.sanity_checking

        def on_train_batch_end(self, *_):
            if len(self.seen) == self.stop_after:
                self.trainer.save_checkpoint(tmp_path / "stopped.ckpt", weights_only=False)
                raise Stopped

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    def run(stop_after=None, n_workers=0, checkpoint=None, sampler=None, **options):
        made = {"batch_sampler": sampler} if sampler else {"batch_seconds": 30.0}
        train, valid = (
            build_loader(
                range(60), LoaderConfig(num_workers=n, **sizes), seed=1, split=split,
                collate_fn=torch.tensor, lengths=seconds,
            )
            for split, n, sizes in (
                ("train", n_workers, made), ("valid", 0, {"batch_seconds": 30.0}),
            )
        )  # fmt: skip
        model = Model(stop_after)
        trainer = pl.Trainer(
            accelerator="cpu", max_epochs=3, logger=False,
            enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
            num_sanity_val_steps=1, default_root_dir=tmp_path,
            callbacks=CheckpointKeeper(tmp_path / "exp"), **options,
        )  # fmt: skip
        with contextlib.suppress(Stopped):
            trainer.fit(model, train, valid, ckpt_path=checkpoint, weights_only=True)
        return model, len(train)

    return run


@pytest.mark.parametrize(("stop_after", "n_workers"), [(5, 0), (17, 1)])
def test_lightning_restores_the_position_in_an_epoch(tmp_path, train, stop_after, n_workers):
    more = {"val_check_interval": 0.5, "n_workers": n_workers}
    whole, n_steps = train(**more)
    stopped, _ = train(stop_after, **more)
    rest, _ = train(checkpoint=tmp_path / "stopped.ckpt", **more)
    assert len(stopped.seen) == stop_after
    assert stopped.seen + rest.seen == whole.seen
    assert len(whole.seen) == 3 * n_steps
    assert stopped.n_validations + rest.n_validations == whole.n_validations == 6
    for epoch in range(3):
        seen = sorted(index for number, batch in whole.seen if number == epoch for index in batch)
        assert seen == list(range(60))


def test_lightning_goes_on_after_a_change_of_the_number_of_ranks(tmp_path, train):
    """As if the first three steps had been done by four ranks, of which one is left."""
    import torch

    whole, n_steps = train()
    train(3)
    file = tmp_path / "stopped.ckpt"
    checkpoint = torch.load(file, weights_only=True)
    state = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]
    assert state["done"] == [[1, 3]]
    state["done"] = [[4, 3]]
    torch.save(checkpoint, file)
    rest, _ = train(checkpoint=file)
    assert rest.seen == whole.seen[12:]
    assert rest.n_validations == 3
    assert len(rest.seen) == 3 * n_steps - 12


def test_lightning_follows_epochs_of_different_lengths(train):
    class Growing:
        def set_epoch(self, epoch):
            self.n_batches = 2 + 2 * epoch

        def __iter__(self):
            return iter([[i] for i in range(self.n_batches)])

    found, _ = train(sampler=Growing(), val_check_interval=0.5)
    assert [epoch for epoch, _ in found.seen] == [0] * 2 + [1] * 4 + [2] * 6
    assert found.n_validations == 6


def test_too_little_for_a_step_of_more_ranks_ends_the_epoch(train, tmp_path, monkeypatch):
    """As if all but the last batch had been done by one rank, and thirty go on."""
    from espnet3.components.data import batch_sampler

    n_steps = train()[1]
    train(n_steps - 1)
    monkeypatch.setattr(batch_sampler, "world", lambda: (30, 0))
    rest, _ = train(checkpoint=tmp_path / "stopped.ckpt")
    assert [epoch for epoch, _ in rest.seen] == [1, 2]
    assert rest.n_validations == 2  # the first epoch ends without its own
