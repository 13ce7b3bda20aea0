"""What is known of a scheduler stands in its file in espnet3/schedulers, and nowhere else."""

import ast
import re
from pathlib import Path

import pytest

from espnet3.schedulers import OWN_SCHEDULERS, known_scheduler

PACKAGE = Path(__file__).parents[2] / "espnet3"
WORDS = {word for env in OWN_SCHEDULERS for word in (env, *known_scheduler(env).commands)}
VARIABLES = r"^(SLURM|SBATCH|PBS|LSB|OAR|SGE|MOAB)_"


def texts(path: Path) -> list[str]:
    """Return the strings of a module, without those that explain it."""
    tree = ast.parse(path.read_text())
    explaining = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in explaining
    ]


@pytest.mark.parametrize("folder", ["parallel", "shards", "io", "components"])
def test_nothing_else_knows_a_scheduler_by_name(folder):
    found = [
        f"{path.relative_to(PACKAGE)}: {text!r}"
        for path in (PACKAGE / folder).rglob("*.py")
        for text in texts(path)
        if text in WORDS or re.match(VARIABLES, text)
    ]
    assert not found


@pytest.mark.parametrize("env", OWN_SCHEDULERS)
def test_each_scheduler_has_what_others_ask_it_for(env):
    scheduler = known_scheduler(env)
    assert scheduler.name == env
    assert scheduler.title
    assert scheduler.ping
    assert scheduler.number_word
    assert scheduler.dask_cluster
    assert scheduler.has_successors or scheduler.requeue_code is not None
