import io

from rich.console import Console

from espnet3.cli.console import make_facts
from espnet3.cli.run_view import add_costs, node_costs, worker_costs
from espnet3.shards.accounting import Accounting, Usage, add_up


def text(table, width=100):
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    console.print(table)
    return console.file.getvalue()


def accounting(*workers):
    hosts = sorted({usage.host for usage in workers})
    nodes = [add_up(host, [w for w in workers if w.host == host]) for host in hosts]
    return Accounting(add_up("", workers), nodes, list(workers))


WORKERS = [
    Usage("a:1", host="a", n_shards=3, seconds=100.0, compute_seconds=60.0, lost_seconds=25.0),
    Usage("a:2", host="a", n_shards=5, seconds=50.0, compute_seconds=50.0, job_id="7[1]",
          queue_seconds=30.0, audio_seconds=500.0),
]  # fmt: skip


def test_a_row_per_worker_with_its_job():
    lines = text(worker_costs(accounting(*WORKERS))).splitlines()
    assert lines[0].split() == [
        "Worker", "Shards", "Time", "Queue", "Compute", "Load", "Write", "Lost", "Idle", "RTF"
    ]  # fmt: skip
    assert lines[2].split() == ["a:1", "3", "1", "min", "40", "s", "60%", "0%", "0%", "25%", "15%"]
    assert lines[3].split() == [
        "a:2", "(job", "7[1])", "5", "50", "s", "30", "s", "100%", "0%", "0%", "0%", "0%", "0.1"
    ]  # fmt: skip


def test_running_attempts_have_a_column_while_there_are_any():
    busy = Usage("a:1", host="a", seconds=100.0, running_seconds=40.0)
    lines = text(worker_costs(accounting(busy))).splitlines()
    assert lines[0].split()[-3:] == ["Running", "Lost", "Idle"]
    assert lines[2].split()[-3:] == ["40%", "0%", "60%"]
    assert "Running" not in text(worker_costs(accounting(*WORKERS)))


def test_a_row_per_node_with_the_number_of_its_workers():
    assert "a (2 workers)" in text(node_costs(accounting(*WORKERS)))


def test_columns_of_which_nothing_is_known_are_left_out():
    head = text(worker_costs(accounting(WORKERS[0]))).splitlines()[0]
    assert "Queue" not in head
    assert "RTF" not in head


def test_tables_fit_into_80_columns_and_do_not_grow_without_end():
    workers = [Usage(f"node{n}.example.org:1234567", host="a") for n in range(50)]
    shown = text(worker_costs(accounting(*workers)), width=80)
    assert max(map(len, shown.splitlines())) <= 80
    assert "and 30 more" in shown


def test_facts_are_rows_of_the_grid():
    facts = make_facts()
    add_costs(facts, accounting(*WORKERS))
    assert "Worker time  2 min 30 s of 2 workers on 1 node" in text(facts)
