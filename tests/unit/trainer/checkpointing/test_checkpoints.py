import json
import math

import lightning.pytorch as pl
import pytest
import torch

from espnet3.config.schema import validate
from espnet3.errors import ConfigError
from espnet3.trainer.checkpointing.best_checkpoints import BestCheckpoints, read_index
from espnet3.trainer.checkpointing.checkpoint_io import read_checkpoint
from espnet3.trainer.checkpointing.checkpoints import CheckpointKeeper
from espnet3.trainer.config import CheckpointConfig, Criterion
from tests.helpers.checkpoint_parts import LOSS, Loader, Module, run

FAST = {"valid": True, "max_epochs": 5}


def module_with(losses):
    module = Module()
    module.valid_losses = losses
    return module


def best_files(folder):
    return sorted(path.name for path in folder.glob("epoch*.ckpt"))


def test_the_best_k_and_the_last_are_on_the_disk(tmp_path):
    run(tmp_path, module=module_with([3.0, 1.0, 4.0, 2.0, 5.0]), **FAST)
    assert best_files(tmp_path) == ["epoch2_step8.ckpt", "epoch4_step16.ckpt"]
    saved = read_index(tmp_path)[LOSS]
    assert [(one.file, one.value) for one in saved] == [
        ("epoch2_step8.ckpt", 1.0),
        ("epoch4_step16.ckpt", 2.0),
    ]
    assert read_checkpoint(tmp_path / "last.ckpt")["global_step"] == 20
    assert {path.name for path in tmp_path.iterdir()} == {
        "best.json", "last.ckpt", *best_files(tmp_path),
    }  # fmt: skip


def test_a_checkpoint_of_two_criteria_is_written_once(tmp_path):
    criteria = [LOSS, Criterion("train/loss", 5, "max")]
    run(tmp_path, criteria=criteria, module=module_with([5.0, 4.0, 3.0, 2.0, 1.0]), **FAST)
    lists = read_index(tmp_path)
    assert len(lists[LOSS]) == 2
    assert len(lists[criteria[1]]) == 5
    last, newest = (tmp_path / name for name in ("last.ckpt", "epoch5_step20.ckpt"))
    assert last.stat().st_ino == newest.stat().st_ino


def test_nan_and_infinity_are_never_among_the_best(tmp_path):
    losses = [math.nan, 2.0, math.inf, -math.inf, math.nan]
    run(tmp_path, module=module_with(losses), **FAST)
    assert best_files(tmp_path) == ["epoch2_step8.ckpt"]
    assert read_checkpoint(tmp_path / "last.ckpt")["global_step"] == 20


def test_validation_values_of_an_earlier_epoch_are_not_used_again(tmp_path):
    run(
        tmp_path, module=module_with([3.0, 2.0]), valid=True, max_epochs=5,
        check_val_every_n_epoch=2, criteria=[Criterion("valid/loss", 9, "min")],
    )  # fmt: skip
    assert best_files(tmp_path) == ["epoch2_step8.ckpt", "epoch4_step16.ckpt"]
    assert read_checkpoint(tmp_path / "last.ckpt")["global_step"] == 20


def test_without_validation_a_training_metric_decides(tmp_path):
    run(tmp_path, criteria=[Criterion("train/loss", 1, "min"), LOSS], max_epochs=2)
    assert len(best_files(tmp_path)) == 1
    assert read_index(tmp_path)[LOSS] == []


class Steps(pl.Callback):
    """Notes the step of `last.ckpt` after each batch."""

    def __init__(self, folder):
        self.path, self.steps = folder / "last.ckpt", []

    def on_train_batch_start(self, *args):
        found = read_checkpoint(self.path)["global_step"] if self.path.exists() else 0
        self.steps.append(found)


@pytest.mark.parametrize(
    ("n_accumulate", "expected"), [(1, [0, 0, 0, 3, 4, 4, 6, 6]), (2, [0, 0, 0, 0, 2, 2, 3, 3])]
)
def test_the_last_is_written_every_n_steps(tmp_path, n_accumulate, expected):
    steps = Steps(tmp_path)
    config = CheckpointConfig(every_n_steps=3, every_minutes=None)
    module = Module(n_accumulate)
    run(tmp_path, config=config, callbacks=[steps], max_epochs=2, module=module)
    assert steps.steps == expected


class Stop(pl.Callback):
    """Ends the training after its n-th batch, as `max_time` does."""

    def __init__(self, n: int) -> None:
        self.n = n

    def on_train_batch_end(self, trainer, *args):
        trainer.should_stop = trainer.fit_loop.total_batch_idx + 1 >= self.n


@pytest.mark.parametrize(
    ("n_accumulate", "valid", "step"),
    [(1, False, 7), (1, True, 7), (2, False, 3), (2, True, 3)],
    ids=["plain", "with validation", "in a window", "in a window with validation"],
)
def test_a_training_that_a_callback_ends_in_mid_epoch_is_saved(tmp_path, n_accumulate, valid, step):
    module = run(tmp_path, callbacks=[Stop(7)], module=Module(n_accumulate), valid=valid)
    last = read_checkpoint(tmp_path / "last.ckpt")
    assert last["global_step"] == step
    assert torch.equal(last["state_dict"]["model.first.weight"], module.model.first.weight)
    resumed = run(tmp_path, module=Module(n_accumulate), ckpt_path=tmp_path / "last.ckpt")
    assert next(event[1:3] for event in resumed.events if event[0] == "batch") == (1, 3)


def test_files_that_fall_out_stay_until_the_list_without_them_is_in_the_last(tmp_path):
    # Each epoch: a validation in the middle of a window, which then ends with the epoch.
    seen = []

    class Look(pl.Callback):
        def on_train_batch_start(self, *args):
            if (tmp_path / "last.ckpt").exists():
                state = read_checkpoint(tmp_path / "last.ckpt")["callbacks"]["CheckpointKeeper"]
                listed = [one["file"] for one in state["criteria"][0]["checkpoints"]]
                seen.append([(tmp_path / name).exists() for name in listed])

    module = module_with([3.0, 2.0, 1.0, 0.5, 0.4, 0.3])
    module.n_accumulate = 4
    one = Criterion("valid/loss", 1, "min")
    options = {"valid": True, "val_check_interval": 2, "module": module, "criteria": [one]}
    run(tmp_path, callbacks=[Look()], **options)
    assert seen == [[True]] * 8
    assert best_files(tmp_path) == ["epoch3_step3.ckpt"]


def test_the_last_is_written_by_the_clock(tmp_path):
    now = iter(range(0, 10**6, 20))  # each look at the clock is 20 seconds later
    keeper = CheckpointKeeper(
        tmp_path, (), CheckpointConfig(every_minutes=1), clock=lambda: next(now)
    )
    steps = Steps(tmp_path)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, max_epochs=1,
        enable_model_summary=False, callbacks=[steps, keeper], default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Module(), Loader(9))
    assert steps.steps == [0, 0, 0, 3, 3, 3, 6, 6, 6]


def test_by_default_the_last_is_at_most_a_minute_old_where_saving_is_cheap(tmp_path):
    now = iter(range(0, 10**6, 20))

    class Clock:
        """Stands still while a checkpoint is written, so that it costs nothing."""

        saving = False

        def __call__(self):
            return self.last if self.saving else self.look()

        def look(self):
            self.last = next(now)
            return self.last

    clock = Clock()

    class Cheap(CheckpointKeeper):
        def _publish(self, *args):
            clock.saving = True
            super()._publish(*args)
            clock.last += 0.1

    keeper = Cheap(tmp_path, clock=clock)
    restart = keeper._timer.restart

    def start_anew():
        clock.saving = False
        restart()

    keeper._timer.restart = start_anew
    steps = Steps(tmp_path)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, max_epochs=1,
        enable_model_summary=False, callbacks=[steps, keeper], default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Module(), Loader(9))
    assert steps.steps == [0, 0, 0, 3, 3, 3, 6, 6, 6]


def test_a_resumed_run_keeps_the_lists_and_removes_leftovers(tmp_path):
    run(tmp_path, module=module_with([3.0, 1.0]), valid=True, max_epochs=2)
    leftover = tmp_path / "epoch3_step12.ckpt"
    leftover.write_bytes(b"written, but the run was killed before last.ckpt")
    killed = tmp_path / "..saving.ckpt.tmp-123-0badcafe"
    killed.write_bytes(b"half of a checkpoint")
    mine = tmp_path / "epoch1_mine.ckpt"
    mine.write_bytes(b"the user's")
    run(
        tmp_path, module=module_with([2.0]), valid=True, max_epochs=3,
        ckpt_path=tmp_path / "last.ckpt",
    )  # fmt: skip
    assert best_files(tmp_path) == ["epoch1_mine.ckpt", "epoch2_step8.ckpt", "epoch3_step12.ckpt"]
    assert read_checkpoint(leftover)["global_step"] == 12
    assert not killed.exists()


def test_files_of_criteria_that_are_gone_are_not_removed(tmp_path):
    run(tmp_path, module=module_with([3.0, 1.0]), valid=True, max_epochs=2)
    other = [Criterion("valid/loss", 1, "max")]
    for n_epochs in (3, 4):
        run(
            tmp_path, criteria=other, module=module_with([9.0 + n_epochs]), valid=True,
            max_epochs=n_epochs, ckpt_path=tmp_path / "last.ckpt",
        )  # fmt: skip
    assert best_files(tmp_path) == ["epoch1_step4.ckpt", "epoch2_step8.ckpt", "epoch4_step16.ckpt"]


def test_the_index_is_read_from_the_last_checkpoint_when_it_is_gone(tmp_path):
    run(tmp_path, module=module_with([3.0, 1.0]), valid=True, max_epochs=2)
    before = read_index(tmp_path)
    (tmp_path / "best.json").unlink()
    assert read_index(tmp_path) == before


def test_nothing_is_written_by_a_development_run(tmp_path):
    run(tmp_path, valid=True, fast_dev_run=True)
    assert list(tmp_path.iterdir()) == []


def test_lists_survive_json_and_count_a_file_once():
    best = BestCheckpoints([LOSS, Criterion("valid/acc", 1, "max")])
    assert best.add("a", {"valid/loss": 1.0, "valid/acc": 0.5}, 1, 10) == list(best.lists)
    assert best.add("b", {"valid/loss": 1.0, "valid/acc": 0.5}, 2, 20) == [LOSS]
    assert best.add("c", {"valid/loss": 1.0}, 3, 30) == []  # of equal ones the older stay
    assert best.add("b", {"valid/loss": 0.5}, 2, 20) == [LOSS]
    assert [one.file for one in best.lists[LOSS]] == ["b", "a"]
    again = BestCheckpoints(best.lists)
    again.load_state_dict(json.loads(json.dumps(best.state_dict())))
    assert again.lists == best.lists
    assert again.files() == {"a", "b"}


def test_fewer_places_keep_the_files_that_lose_theirs():
    best = BestCheckpoints([LOSS])
    best.add("a", {"valid/loss": 1.0}, 1, 10)
    best.add("b", {"valid/loss": 2.0}, 2, 20)
    fewer = BestCheckpoints([Criterion("valid/loss", 1, "min")])
    fewer.load_state_dict(best.state_dict())
    assert [one.file for saved in fewer.lists.values() for one in saved] == ["a"]
    assert fewer.files() == {"a", "b"}


def test_the_block_is_checked():
    config = validate(CheckpointConfig, {"every_n_steps": 100}, prefix="checkpoint")
    assert (config.every_n_steps, config.every_minutes) == (100, "auto")
    with pytest.raises(ConfigError, match="Did you mean 'every_n_steps'"):
        validate(CheckpointConfig, {"every_n_step": 100}, prefix="checkpoint")
    for wrong in ("soon", -1, 0):
        with pytest.raises(ConfigError, match=r"checkpoint\.every_minutes"):
            validate(CheckpointConfig, {"every_minutes": wrong}, prefix="checkpoint")


def test_the_weights_in_a_best_file_are_those_of_its_moment(tmp_path):
    seen = {}

    class Look(pl.Callback):
        def on_validation_end(self, trainer, pl_module):
            seen[trainer.global_step] = pl_module.model.first.weight.detach().clone()

    run(tmp_path, module=module_with([3.0, 1.0, 4.0]), valid=True, callbacks=[Look()])
    stored = read_checkpoint(tmp_path / "epoch2_step8.ckpt")["state_dict"]
    assert torch.equal(stored["model.first.weight"], seen[8])
