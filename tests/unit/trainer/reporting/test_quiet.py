"""What Lightning says, and what is left of it."""

import logging
import sys
import warnings

from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from espnet3.trainer.trainer import quiet_lightning
from tests.helpers.report_parts import fit


def test_adverts_and_banners_are_gone(tmp_path, caplog, capfd):
    caplog.set_level("INFO")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(tmp_path, [], enable_checkpointing=False, limit_val_batches=1.0, log_every_n_steps=50)
    assert [r.getMessage() for r in caplog.records if r.name.startswith("lightning")] == []
    assert [str(w.message) for w in caught] == []
    assert capfd.readouterr() == ("", "")


def test_what_matters_is_kept(tmp_path, caplog):
    caplog.set_level("INFO")
    stopping = EarlyStopping("valid/loss", patience=0, verbose=True, mode="max")
    fit(tmp_path, [stopping], max_epochs=9)
    assert "valid/loss did not improve" in caplog.text
    with quiet_lightning(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rank_zero_warn("something is wrong")
    assert [str(w.message) for w in caught] == ["something is wrong"]


def test_what_is_kept_is_said_once(capfd, caplog):
    caplog.set_level("INFO")
    logger = logging.getLogger("lightning.pytorch.callbacks.timer")
    printing = logging.StreamHandler(sys.stderr)  # as Lightning's own on the parent of all
    logging.getLogger("lightning").addHandler(printing)
    try:
        with quiet_lightning():
            logger.info("Time limit reached.")
    finally:
        logging.getLogger("lightning").removeHandler(printing)
    assert [record.getMessage() for record in caplog.records] == ["Time limit reached."]
    assert capfd.readouterr() == ("", "")


def test_a_warning_that_is_logged_is_kept_whatever_its_words(caplog):
    with quiet_lightning():
        logging.getLogger("lightning.pytorch").warning("GPU available, but broken")
    assert "broken" in caplog.text


def test_everything_is_as_before_afterwards(caplog):
    caplog.set_level("INFO")
    logger = logging.getLogger("lightning.pytorch")
    handler = logging.NullHandler()
    logger.addHandler(handler)
    before = logger.propagate
    logger.propagate = False
    try:
        with quiet_lightning():
            assert logger.handlers == []
            assert logger.propagate  # so that train.log has it
        assert handler in logger.handlers
        assert not logger.propagate
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
    logger.propagate = True
    rank_zero_info("GPU available: False")
    logger.propagate = before
    assert "GPU available" in caplog.text
