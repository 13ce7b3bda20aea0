"""The same work through ESPnet3 and what else people use; writes the table of docs/performance.md.

A kind of work goes through all libraries, one after the other, each in a process of its own.
Rows in which we lose stay in.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Skipped
from benchmarks.machine import describe_machine
from benchmarks.peer_process import N_KILLED, N_SHORT, N_SKEWED, N_TRIVIAL, OURS, PEERS
from benchmarks.whole_call import why_not

ROOT = Path(__file__).parents[1]
PAGE, PLOT = ROOT / "docs/performance.md", ROOT / "docs/peers.png"
_TABLE = re.compile(r"(<!-- table of peers -->\n).*?(<!-- end of the table -->)", re.DOTALL)


@dataclass(frozen=True)
class Work:
    """One kind of work."""

    name: str
    what: str
    column: str
    """Of the table."""
    unit: str
    patience: float
    """Seconds after which a process is given up."""


WORK = (
    Work("trivial", f"{N_TRIVIAL:,} trivial items, 2 workers", "a trivial item", "us", 150),
    Work("short", f"{N_SHORT:,} items of ~1 ms, 2 workers", "whole call", "s", 100),
    Work("disk", "the same, results on disk, 2 workers", "whole call to disk", "s", 100),
    Work("skewed", f"{N_SKEWED} skewed items, 4 workers", "skewed items", "of the ideal", 100),
    Work("killed", f"a worker is killed once, {N_KILLED} items", "a killed worker", "", 20),
)
Answers = dict[str, dict[str, dict[str, Any]]]
"""By kind of work and library, what `peer_process` wrote."""


def measure() -> Iterator[Figure | Skipped]:
    """Measure all kinds of work, and write the page."""
    missing = {name: why for name, (package, _) in PEERS.items() if (why := why_not(name, package))}
    peers = [OURS, *(name for name in PEERS if name not in missing)]
    answers: Answers = {}
    machine = describe_machine(["peers"])
    for work in WORK:
        answers[work.name] = _ask_all(work, peers)
        yield from _lines(work, answers[work.name])
    for name, why in missing.items():
        yield Skipped(f"all: {name}", why)
    write_table(peers, answers, machine)
    write_plot(peers, answers)


def _ask_all(work: Work, peers: list[str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for peer in peers:
        found[peer] = _ask(work, peer)
        print(f"{work.column}: {peer}: {_cell(work, found[peer])}", file=sys.stderr)
    return found


def _ask(work: Work, peer: str) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile() as output:
        command = [sys.executable, "-m", "benchmarks.peer_process", peer, work.name, output.name]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **quiet)
        try:
            process.wait(work.patience)
        except subprocess.TimeoutExpired:
            return {"text": f"did not end in {work.patience:g} s"}
        finally:
            _end_all(process)
        text = Path(output.name).read_text()
    return json.loads(text) if text else {"text": f"failed with exit code {process.returncode}"}


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """End what the process started and left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _lines(work: Work, answers: dict[str, dict[str, Any]]) -> Iterator[Figure | Skipped]:
    ours = answers[OURS].get("value")
    for peer, answer in answers.items():
        theirs = answer.get("value")
        if theirs is None or ours is None:
            yield Skipped(f"{work.what}: {peer}", answer.get("text", "not compared"))
        elif peer != OURS:
            yield Figure(f"{work.what}; against {peer}", ours, work.unit, theirs)


def write_table(peers: list[str], answers: Answers, machine: dict[str, Any]) -> None:
    """Replace the table of the page."""
    head = ["", *(work.column for work in WORK)]
    lines = [f"| {' | '.join(head)} |", f"|---|{'--:|' * (len(WORK) - 1)}---|"]
    for peer in peers:
        cells = [_cell(work, answers[work.name][peer]) for work in WORK]
        lines.append(f"| {' | '.join([peer, *cells])} |")
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items())
    lines += [
        "",
        f"Measured on {machine['date']}, {machine['cores']} cores of {machine['cpu']}, load "
        f"{machine['load_before']} before and {os.getloadavg()[0]:.2f} after; "
        f"Python {machine['python']}, {versions}.",
    ]
    text = "\n".join(lines)
    page = PAGE.read_text()
    PAGE.write_text(_TABLE.sub(lambda match: f"{match[1]}{text}\n{match[2]}", page))


def _cell(work: Work, answer: dict[str, Any]) -> str:
    if "value" not in answer:
        return str(answer["text"])
    value = answer["value"]
    return f"{value:.0f} {work.unit}" if value >= 100 else f"{value:.2f} {work.unit}"


def write_plot(peers: list[str], answers: Answers) -> None:
    """Draw a panel for each kind of work that has a number: how many times ours each one takes."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    drawn = [work for work in WORK if answers[work.name][OURS].get("value")]
    figure, panels = pyplot.subplots(1, len(drawn), figsize=(12, 3.6), sharey=True)
    for panel, work in zip(panels, drawn, strict=True):
        ours = answers[work.name][OURS]["value"]
        for row, peer in enumerate(peers):
            value = answers[work.name][peer].get("value")
            if value is None:
                panel.text(1, row, " failed", va="center", fontsize=8)
                continue
            color = "tab:blue" if peer == OURS else "tab:gray" if value >= ours else "tab:orange"
            panel.barh(row, value / ours, color=color)
            panel.text(
                value / ours, row, f" {_cell(work, {'value': value})}", va="center", fontsize=8
            )
        panel.axvline(1, color="black", linewidth=0.8)
        panel.set_xscale("log")
        low, high = panel.get_xlim()
        panel.set_xlim(low, high * 8)  # for the texts
        panel.set_title(work.column, fontsize=10)
        panel.set_xlabel("times ESPnet3's", fontsize=8)
        panel.tick_params(labelsize=8)
    panels[0].set_yticks(range(len(peers)), peers)
    panels[0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(PLOT, dpi=90)
    pyplot.close(figure)
