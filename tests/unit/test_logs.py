import logging
import re
import threading
import warnings

import pytest

from espnet3 import logs
from espnet3.logs import open_stage_log, said_if_long


@pytest.fixture
def plain_logging(monkeypatch):
    """Return a function that makes logging as in a program that sets up none.

    It is called in the test itself: pytest adds handlers between set-up and test.
    """

    def make():
        for name in (None, "espnet3"):
            monkeypatch.setattr(logging.getLogger(name), "handlers", [])
        logs.make_visible()

    level = logging.getLogger("espnet3").level
    yield make
    logging.getLogger("espnet3").setLevel(level)


def test_all_that_is_logged_is_appended_with_date_level_and_name(tmp_path, capsys, plain_logging):
    plain_logging()
    path = tmp_path / "infer it's.log"
    path.write_text("before\n")
    with open_stage_log(path):
        logging.getLogger("espnet3.parallel.driver").info("Starting %s", "é")
        logging.getLogger("src.inference").info("of the recipe")
        logging.getLogger("urllib3").warning("of another package")
        logging.getLogger("urllib3").info("too much")
        warnings.warn("of Python", stacklevel=1)
    logging.getLogger("espnet3").info("after")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "before"
    date = r"\d{4}-\d\d-\d\d [\d:,]+"
    assert re.fullmatch(date + " INFO espnet3.parallel.driver: Starting é", lines[1])
    assert lines[2].endswith(" INFO src.inference: of the recipe")
    assert lines[3].endswith(" WARNING urllib3: of another package")
    assert "UserWarning: of Python" in lines[4]
    assert "after" not in path.read_text()
    shown = capsys.readouterr().err
    for text in ("Starting é", "of the recipe", "of another package", "of Python", "after"):
        assert shown.count(f"{text}\n") == 1
    assert "too much" not in shown


def test_logging_is_as_it_was_afterwards(tmp_path, plain_logging):
    plain_logging()
    with open_stage_log(tmp_path / "log"):
        assert logging.getLogger("src").level == logging.INFO
    assert logging.getLogger().handlers == []
    assert logging.getLogger("src").level == logging.NOTSET
    assert warnings.showwarning.__module__ != "logging"


def test_logging_that_the_program_has_set_up_gets_no_second_handler(tmp_path, capsys):
    logging.getLogger().addHandler(logging.NullHandler())
    with open_stage_log(tmp_path / "log"):
        logging.getLogger("urllib3").warning("seen by the program's handler")
    assert "seen by" in (tmp_path / "log").read_text()
    assert "seen by" not in capsys.readouterr().err


def test_a_traceback_is_written_to_the_file_alone(tmp_path, capsys):
    with open_stage_log(tmp_path / "log") as log:
        try:
            raise ValueError("bad item")
        except ValueError as error:
            log.write_traceback("espnet3.cli", error)
    text = (tmp_path / "log").read_text()
    assert "Traceback (most recent call last)" in text
    assert "ValueError: bad item" in text
    assert capsys.readouterr().err == ""


def test_what_takes_long_is_said_and_what_is_quick_is_not(caplog):
    logger = logging.getLogger("espnet3.test")
    caplog.set_level(logging.INFO, logger="espnet3.test")
    said = threading.Event()
    logger.addFilter(lambda record: said.set() or True)

    with said_if_long(logger, "Loading a quick one ...", 60):
        pass
    with said_if_long(logger, "Loading a slow one ...", 0.01):
        assert said.wait(30)

    assert caplog.messages == ["Loading a slow one ..."]


def test_secrets_of_the_command_line_are_not_written(tmp_path):
    with open_stage_log(tmp_path / "log", {"hub.token=abc": "hub.token=<redacted>"}):
        logging.getLogger("espnet3").warning("run again: python run.py hub.token=abc")
    assert "run again: python run.py hub.token=<redacted>\n" in (tmp_path / "log").read_text()
