import pickle

import pytest

from espnet3.errors import ConfigError, EspnetError, Note
from espnet3.findings import Finding, has_problem, never_raises


def test_the_advice_of_an_error_is_its_fix():
    error = ConfigError(key="options.hosts", problem="is not set", fix="Write: hosts: [a, b]")
    finding = Finding.of("hosts", error)
    assert finding.level == "problem"
    assert finding.told == "options.hosts is not set."
    assert finding.fix == "Write: hosts: [a, b]"


def test_a_note_of_a_log_has_its_fix_apart_as_well():
    note = Note("One GPU stays idle.", fix="Write: n_workers: 2")
    finding = Finding("warning", "options", "One GPU stays idle.", "Write: n_workers: 2")
    assert Finding.of("options", note, "warning") == finding
    assert Finding.of("options", EspnetError(note), "warning") == finding


@pytest.mark.parametrize(
    "error",
    [
        EspnetError("It broke.", fix="Mend it"),
        ConfigError("It broke.", fix="Mend it"),
        ConfigError(key="It", problem="broke", fix=lambda config: " Mend it"),
    ],
)
def test_the_fix_survives_the_trip_from_a_worker(error):
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.fix) == ("It broke. Mend it", "Mend it")


def test_an_error_without_advice_is_told_whole():
    assert Finding.of("x", EspnetError("It broke.")) == Finding("problem", "x", "It broke.")


def test_a_check_that_fails_is_a_line_like_others():
    @never_raises("disk")
    def refuse() -> list[Finding]:
        raise EspnetError("It is full.", fix="Make room")

    @never_raises("disk")
    def break_down() -> list[Finding]:
        raise KeyError("x")

    assert refuse() == [Finding("problem", "disk", "It is full.", "Make room")]
    (broken,) = break_down()
    assert broken.level == "warning"
    assert broken.told == "could not be checked: KeyError: 'x'"


def test_only_problems_count():
    assert not has_problem([Finding("ok", "a", ""), Finding("warning", "b", "")])
    assert has_problem([Finding("ok", "a", ""), Finding("problem", "b", "")])
