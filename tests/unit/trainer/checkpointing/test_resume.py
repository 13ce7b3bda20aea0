import logging

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping

from espnet3.errors import ConfigError, RunFolderError
from espnet3.trainer.checkpointing.best_checkpoints import average
from espnet3.trainer.checkpointing.resume import find_resume_point, prepare_folder, report_resume
from tests.helpers.checkpoint_parts import LOSS, Module, Net, run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exp")
    run(folder, valid=True, max_epochs=2)
    return folder


def test_auto_goes_on_from_the_last_and_says_so(trained, caplog):
    point = find_resume_point(trained, model=Net())
    assert point.path == trained / "last.ckpt"
    assert (point.position.n_epochs, point.position.step) == (2, 8)
    with caplog.at_level(logging.INFO):
        assert not report_resume(point, max_epochs=3)
    assert f"Resuming from {trained}/last.ckpt (epoch 2, step 8, saved 20" in caplog.text


def test_a_finished_training_is_told(trained, caplog):
    point = find_resume_point(trained)
    with caplog.at_level(logging.INFO):
        assert report_resume(point, max_epochs=2)
    assert "raise trainer.max_epochs" in caplog.text
    assert point.way_on(max_epochs=-1, max_steps=8)
    assert not point.way_on(max_epochs=3, max_steps=-1)
    assert not point.way_on(max_epochs=3, max_steps=9)
    assert not report_resume(None, max_epochs=0)


def test_a_training_that_stopped_early_is_finished(tmp_path):
    stop = EarlyStopping("valid/loss", patience=1, mode="min")
    module = Module()
    module.valid_losses = [1.0, 2.0, 3.0]
    run(tmp_path, valid=True, max_epochs=9, module=module, callbacks=[stop])
    point = find_resume_point(tmp_path)
    assert point.position.n_epochs == 2
    assert "EarlyStopping" in point.way_on(max_epochs=9)
    assert point.way_on(max_epochs=9, stops_early=False) is None


def test_patience_that_is_over_before_the_least_number_of_epochs_ends_nothing(tmp_path):
    module = Module()
    module.valid_losses = [1.0, 2.0, 3.0, 0.5]
    stop = EarlyStopping("valid/loss", patience=1, mode="min")
    run(
        tmp_path, valid=True, max_epochs=3, min_epochs=4, module=module, callbacks=[stop],
    )  # fmt: skip
    assert find_resume_point(tmp_path).way_on(max_epochs=9) is None


def test_early_stopping_by_a_limit_is_an_end(tmp_path):
    module = Module()
    module.valid_losses = [1.0, 0.9, 0.1, 0.05]
    stop = EarlyStopping("valid/loss", patience=9, mode="min", stopping_threshold=0.2)
    run(tmp_path, valid=True, max_epochs=9, module=module, callbacks=[stop])
    point = find_resume_point(tmp_path)
    assert point.position.n_epochs == 3
    assert "EarlyStopping" in point.way_on(max_epochs=9)


def test_what_a_module_keeps_beside_its_weights_is_no_other_model(tmp_path):
    class Counting(Net):
        def get_extra_state(self):
            return {"n_calls": 3}

        def set_extra_state(self, state):
            self.n_calls = state["n_calls"]

    module = Module()
    module.model = Counting()
    run(tmp_path, module=module, max_epochs=1)
    assert find_resume_point(tmp_path, model=Counting()) is not None
    with pytest.raises(ConfigError, match="only in it: _extra_state"):
        find_resume_point(tmp_path, model=Net())


def test_a_finished_training_goes_on_when_there_is_more_to_do(tmp_path):
    whole = run(tmp_path / "whole", valid=True, max_epochs=3)
    run(tmp_path / "short", valid=True, max_epochs=2)
    longer = run(
        tmp_path / "short", valid=True, max_epochs=3, ckpt_path=tmp_path / "short" / "last.ckpt"
    )
    assert longer.events == [event for event in whole.events if event in longer.events]
    assert torch.equal(whole.model.first.weight, longer.model.first.weight)


def test_the_number_of_epochs_in_each_checkpoint(tmp_path):
    found = []

    class Save(pl.Callback):
        def note(self, trainer):
            trainer.save_checkpoint(tmp_path / "now.ckpt")
            point = find_resume_point(tmp_path, ckpt_path=tmp_path / "now.ckpt")
            found.append((point.position.n_epochs, point.way_on(max_epochs=1) is not None))

        def on_train_batch_end(self, trainer, *args):
            self.note(trainer)

        def on_validation_end(self, trainer, *args):
            if not trainer.sanity_checking:
                self.note(trainer)

        def on_train_epoch_end(self, trainer, *args):
            self.note(trainer)

    run(tmp_path, valid=True, max_epochs=1, callbacks=[Save()])
    assert found == [(0, False)] * 4 + [(1, True)] * 2


def test_never_puts_the_old_training_aside(tmp_path, caplog):
    run(tmp_path, valid=True, max_epochs=1)
    average(tmp_path, LOSS)
    (tmp_path / "config.yaml").write_text("a: 1\n")
    (tmp_path / "train.log").write_text("a line\n")
    (tmp_path / "history.jsonl").write_text("{}\n")
    (tmp_path / "infer" / "test").mkdir(parents=True)
    before = (tmp_path / "last.ckpt").read_bytes()
    with caplog.at_level(logging.INFO):
        moved = prepare_folder(tmp_path, "never")
    assert moved == tmp_path / "previous.1"
    assert str(moved) in caplog.text
    assert (moved / "last.ckpt").read_bytes() == before
    assert {path.name for path in moved.iterdir()} == {
        "config.yaml", "last.ckpt", "best.json", "epoch1_step4.ckpt", "history.jsonl",
        "valid.loss.ave_2best.ckpt", "valid.loss.ave_2best.json",
        "valid.loss.ave_2best.safetensors",
    }  # fmt: skip
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"config.yaml", "train.log", "infer", "previous.1"}
    assert find_resume_point(tmp_path) is None
    assert prepare_folder(tmp_path, "never") is None
    (tmp_path / "last.ckpt").write_bytes(b"second")
    assert prepare_folder(tmp_path, "never") == tmp_path / "previous.2"


def test_auto_starts_anew_in_an_empty_folder(tmp_path):
    assert prepare_folder(tmp_path / "new" / "exp", "auto") is None
    assert find_resume_point(tmp_path / "new" / "exp") is None


def test_never_does_not_look_at_the_last(trained):
    assert find_resume_point(trained, "never") is None


def test_a_checkpoint_of_another_model_is_told_and_not_touched(trained):
    before = (trained / "last.ckpt").read_bytes()

    class Other(Net):
        def __init__(self):
            super().__init__(width=5)
            del self.tied
            self.extra = torch.nn.Linear(2, 2)

    with pytest.raises(ConfigError) as caught:
        find_resume_point(trained, model=Other())
    text = str(caught.value)
    assert f"{trained}/last.ckpt is a checkpoint of another model" in text
    assert "missing in it: extra.weight, extra.bias" in text
    assert "only in it: tied.weight" in text
    assert "first.weight ([4, 3] there, [5, 3] here)" in text
    assert "exp_tag=NEW_NAME" in text
    assert "resume=never" in text
    assert (trained / "last.ckpt").read_bytes() == before


def test_ckpt_path_wins(trained, tmp_path):
    best = next(trained.glob("epoch1*.ckpt"))
    point = find_resume_point(tmp_path, "never", ckpt_path=best)
    assert (point.path, point.position.n_epochs) == (best, 1)
    with pytest.raises(ConfigError, match=r"fit.ckpt_path is no.ckpt.*or delete the line"):
        find_resume_point(tmp_path, ckpt_path="no.ckpt")


def test_weights_alone_are_for_init(trained):
    averaged = average(trained, LOSS)
    with pytest.raises(ConfigError, match=r"weights only.*init: \{path: .*ave_2best.ckpt\}"):
        find_resume_point(trained, ckpt_path=averaged.checkpoint)


def test_a_damaged_last_is_told(tmp_path):
    (tmp_path / "last.ckpt").write_bytes(b"half")
    with pytest.raises(RunFolderError, match=r"damaged or cut off.*fit.ckpt_path"):
        find_resume_point(tmp_path)


def test_a_folder_that_was_being_replaced_comes_back(tmp_path):
    (tmp_path / ".old-last.ckpt").mkdir()
    (tmp_path / ".old-last.ckpt" / "meta.pt").write_bytes(b"x")
    prepare_folder(tmp_path)
    assert (tmp_path / "last.ckpt" / "meta.pt").exists()


def test_early_stopping_goes_on_counting(tmp_path):
    losses = [3.0, 2.0, 2.5, 2.6, 1.0]
    ends = []
    for folder in ("whole", "stopped"):
        paths = [None] if folder == "whole" else [None, tmp_path / folder / "last.ckpt"]
        for path in paths:
            module = Module()
            module.valid_losses = losses if path is None else losses[3:]
            is_first = folder == "stopped" and path is None
            run(
                tmp_path / folder, valid=True, max_epochs=3 if is_first else 5, module=module,
                callbacks=[EarlyStopping("valid/loss", patience=2)], ckpt_path=path,
            )  # fmt: skip
        ends.append(find_resume_point(tmp_path / folder).position.step)
    assert ends == [16, 16]
