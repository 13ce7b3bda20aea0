"""What is said of a rank that failed."""

import json

import pytest

from espnet3.errors import ConfigError, RunInterrupted
from espnet3.trainer.ranks.rank_link import RankFailure, advice, lost_server, silence_of
from espnet3.trainer.ranks.rank_watch import failure_of, is_communication_error, tell_torchrun


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_the_traceback_comes_last_and_survives_the_trip():
    failure = RankFailure.from_json(failure_of(raised(KeyError("token")), 3).to_json().encode())
    text = failure.in_full()
    assert text.startswith("Rank 3 (")
    assert text.splitlines()[-1] == "KeyError: 'token'"
    assert "in raised\n    raise error" in text
    assert failure.is_mine
    assert failure.exit_code == 1


def test_a_line_has_no_traceback():
    line = failure_of(raised(KeyError("token")), 3).in_a_line(5)
    assert line.startswith("Rank 5 ends, because rank 3 (")
    assert "\n" not in line


def test_our_own_errors_say_all_themselves():
    text = failure_of(raised(ConfigError("batch_size is 0. Set batch_size: 8")), 1).in_full()
    assert text.endswith("failed: batch_size is 0. Set batch_size: 8")
    assert "Traceback" not in text


def test_a_long_traceback_keeps_its_end():
    failure = failure_of(raised(ValueError("x" * 100_000 + " the end")), 0)
    assert len(failure.to_json()) < 25_000
    assert failure.in_full().endswith("the end")


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (RunInterrupted(75), 75)])
def test_an_interrupt_keeps_its_exit_code(error, code):
    failure = failure_of(raised(error), 0)
    assert failure.exit_code == code
    assert "Traceback" not in failure.in_full()


def test_silence_says_where_since_when_and_what_to_look_at(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    text = silence_of(2, ("node7", 4711), 45.0).in_full()
    assert "Rank 2 (node7, process 4711) has given no sign of life for 45 s, since " in text
    assert "on node7" in text
    assert "sacct -j 17" in text
    assert "same command resumes" in text


def test_without_slurm_nothing_is_said_of_it(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "sacct" not in advice("here")


@pytest.mark.parametrize(("is_torchrun", "whose"), [(True, "torchrun's store"), (False, "its")])
def test_a_lost_store(is_torchrun, whose):
    text = lost_server("has closed.", ("node1", 0), is_torchrun).in_full()
    assert text.startswith(f"Rank 0 (node1) is out of reach: {whose}")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[/gloo/transport/tcp/pair.cc:1] Connection closed by peer"), True),
        (RuntimeError("NCCL communicator was aborted"), True),
        (RuntimeError("The size of tensor a (3) must match"), False),
        (ValueError("gloo"), False),
        (KeyError("x"), False),
    ],
)
def test_errors_that_follow_from_the_end_of_another(error, expected):
    assert is_communication_error(error) is expected


def test_the_cause_of_an_error_counts_as_well():
    error = ValueError("in a callback")
    error.__cause__ = RuntimeError("gloo: Connection closed by peer")
    assert is_communication_error(error)
    error.__cause__.__cause__ = error  # a circle does not hang
    assert not is_communication_error(_circle())


def _circle() -> BaseException:
    one, two = KeyError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def test_torchrun_finds_the_traceback(tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    tell_torchrun(raised(KeyError("first")))
    tell_torchrun(raised(KeyError("second")))
    message = json.loads(path.read_text())["message"]
    assert message["message"] == "KeyError: 'first'"
    assert "raise error" in message["extraInfo"]["py_callstack"]


def test_an_error_file_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "no" / "folder"))
    tell_torchrun(raised(KeyError("x")))
    assert not list(tmp_path.iterdir())
