from espnet3.errors import ConfigError, EspnetError
from espnet3.findings import Finding, has_problem, never_raises


def test_the_advice_of_an_error_is_its_fix():
    error = ConfigError("parallel.options.hosts is not set. Write: options: {hosts: [a, b]}")
    finding = Finding.of("hosts", error)
    assert finding.level == "problem"
    assert finding.told == "parallel.options.hosts is not set."
    assert finding.fix == "Write: options: {hosts: [a, b]}"


def test_a_suggestion_is_not_drowned_in_the_list_of_all():
    error = ConfigError("parallel.options.quue is no option. Did you mean 'queue'? It takes: a, b.")
    assert Finding.of("options", error).fix == "Did you mean 'queue'?"


def test_an_error_without_advice_is_told_whole():
    assert Finding.of("x", EspnetError("It broke.")) == Finding("problem", "x", "It broke.")


def test_a_check_that_fails_is_a_line_like_others():
    @never_raises("disk")
    def refuse() -> list[Finding]:
        raise ConfigError("It is full. Make room")

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
