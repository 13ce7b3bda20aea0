import itertools

import pytest

from espnet3.cli.main import main
from espnet3.parallel.detached.overview import failure_of, pause_after, wait_for


def test_a_complete_run_is_waited_for_in_no_time(complete, capsys):
    assert main(["wait", str(complete)]) == 0
    assert "is complete: 20 of 20 done (100.0 %), 2 failed." in capsys.readouterr().out


def test_a_failed_run_ends_with_1_and_the_reason(detached, capsys):
    detached.stop("failed", "Item 3 is broken")
    assert main(["wait", str(detached.root)]) == 1
    assert f"The run in {detached.root} failed: Item 3 is broken" in capsys.readouterr().err


def test_a_cancelled_run_ends_with_1_and_the_way_on(detached, capsys):
    detached.stop("cancelled", "cancelled by me@login1")
    assert main(["wait", str(detached.root)]) == 1
    error = capsys.readouterr().err
    assert "was cancelled by me@login1, with 17 of 20 items done" in error
    assert f"espnet3 resume {detached.root}" in error


def test_a_timeout_ends_with_124_and_leaves_the_run_alone(detached, capsys):
    detached.worker("10")
    assert main(["wait", "--timeout", "0.2", str(detached.root)]) == 124
    assert "is running after 0.2 s of waiting" in capsys.readouterr().err


def test_a_job_in_the_queue_is_waited_for(detached, squeue):
    detached.job("12")
    squeue(("12", "PENDING", "Resources", 0, "(Resources)"))
    with pytest.raises(TimeoutError, match="is queued"):
        wait_for(detached.root, 0.5, sure_seconds=0.0)


def test_nobody_must_be_seen_for_a_while_before_a_run_is_given_up(detached):
    with pytest.raises(TimeoutError):
        wait_for(detached.root, 0.5, sure_seconds=1000.0)
    seen = wait_for(detached.root, 60, sure_seconds=0.6)
    assert seen.state == "stopped"
    assert f"espnet3 explain {detached.root}" in str(failure_of(seen))


def test_the_end_is_noticed(detached):
    looks = []

    def finish(seen) -> None:
        looks.append(seen)
        facts = f'{{"run_id": "{detached.manifest.run_id}", "n_failed": 0, "seconds": 1}}'
        detached.layout.success.write_text(facts)

    detached.worker("10")
    assert wait_for(detached.root, 60, tell=finish).state == "complete"
    assert looks[0].state == "running"


def test_the_end_of_a_short_run_is_noticed_soon_and_a_long_one_costs_few_looks():
    looks = [0.0]
    while looks[-1] < 3600:
        looks.append(looks[-1] + pause_after(looks[-1]))
    assert max(b - a for a, b in itertools.pairwise(looks) if b < 5) <= 0.5
    assert len(looks) < 450  # one in eight seconds


def test_shards_that_nobody_merges_are_said_to_be_so(unmerged):
    seen = wait_for(unmerged, 60, sure_seconds=0.0)
    assert "espnet3 merge '" in str(failure_of(seen)), "the line can be pasted"


def test_a_run_that_was_not_detached_is_not_to_be_resumed_as_one(stopped):
    told = str(failure_of(wait_for(stopped, 60, sure_seconds=0.0)))
    assert "Run the command that began it again" in told
    assert "espnet3 resume" not in told


@pytest.mark.parametrize("text", ["-1", "nan", "soon"])
def test_a_timeout_that_is_none_is_refused(complete, text, capsys):
    assert main(["wait", f"--timeout={text}", str(complete)]) == 2
    assert f"'{text}' is not a number of seconds from 0 on" in capsys.readouterr().err
