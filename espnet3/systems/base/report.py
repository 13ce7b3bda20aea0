"""Stage 8, `report`: one page with the scores, the curves, the worst utterances and the workers."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3.errors import IncompleteRunError
from espnet3.systems.base.stages import Skipped

if TYPE_CHECKING:
    from espnet3.systems.base.system import BaseSystem

logger = logging.getLogger(__name__)

FILE_NAME = "report.html"


def report(system: "BaseSystem") -> Path | Skipped:
    """Write `<inference_dir>/report.html` from what the other stages left, and log a summary.

    Nothing is recomputed, so it may be run at any time. What is not there yet is left out, with
    a line on the page that says what would bring it.

    Returns:
        The path of the page. After other stages that left nothing to show, such as those of a
        system with outputs of its own, it is skipped.

    Raises:
        ConfigError: the block `report` is wrong.
        IncompleteRunError: there is nothing to show though it alone was asked for, or
            `metrics.json` is damaged.
    """
    from espnet3.io.atomic import write_text
    from espnet3.systems.base.reporting.gather import gather
    from espnet3.systems.base.reporting.page import format_summary, render

    facts = gather(system)
    if facts.is_empty:
        found = (
            f"{facts.inference_dir} has no results and no scores, and {facts.exp_dir} no training"
        )
        if set(system.planned) - {"report"}:
            return Skipped(found)
        raise IncompleteRunError(
            f"There is nothing to report: {found}.",
            fix="Run the stages before: python run.py --stages "
            "infer measure report --inference_config ... --metrics_config ...",
        )
    for note in facts.notes:
        logger.info("Not in the report: %s", note)
    path = report_path(system)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(facts))
    logger.info("Results\n\n%s\n", format_summary(facts))
    logger.info("Report: %s (open it in a browser: %s)", path, path.absolute().as_uri())
    return path


def report_path(system: "BaseSystem") -> Path:
    """Return where the page is written."""
    return Path(str(system.config_for("report").config["inference_dir"])) / FILE_NAME


def check_report(system: "BaseSystem") -> None:
    """Check the block `report`; what the page is made of may be missing yet.

    Raises:
        ConfigError: it is wrong.
    """
    from espnet3.systems.base.reporting.clips import load_report_config

    load_report_config(system.config_for("report"))


def describe_report(system: "BaseSystem") -> list[str]:
    """Return what would be read, and whether it is there."""
    from espnet3.systems.base.metric import metrics_path

    path = report_path(system)
    sources = (
        (metrics_path(path.parent), "stage 7, measure, writes it"),
        (system.exp_dir / "history.jsonl", "stage 4, train, writes it"),
    )
    lines = [
        f"reads {source} ({'exists' if source.is_file() else f'missing: {writer}'})"
        for source, writer in sources
    ]
    if system.inference is None:
        lines.append("without audio: --inference_config says where the data is")
    state = " (there already, and replaced)" if path.is_file() else ""
    return [*lines, f"writes {path}{state}"]
