"""Log the summary of a completed run: counts, cost and speed."""

import logging
import shlex
from pathlib import Path

from espnet3.shards.accounting import Accounting, Usage
from espnet3.shards.manifest import Manifest
from espnet3.shards.success import read_accounting, read_success
from espnet3.text import count, duration

logger = logging.getLogger(__name__)


def tell_the_end(root: Path, manifest: Manifest, merge_seconds: float) -> None:
    """Log the content of `_SUCCESS.json`; called by the process that wrote it."""
    success = read_success(manifest.layout(root), manifest.run_id) or {}
    n_failed = success.get("n_failed", 0)
    logger.info(
        "%s is complete: %d items, %d failed, %s since the plan, merged in %.1f s",
        root, manifest.n_items, n_failed, duration(success.get("seconds", 0.0)), merge_seconds,
    )  # fmt: skip
    for name, fact in cost_facts(read_accounting(root, manifest)):
        logger.info("%s: %s", name, fact)
    if success.get("n_halved"):
        logger.warning(
            "%d batches did not fit into memory and were halved, which takes time; set a "
            "smaller batch_seconds or batch_size", success["n_halved"],
        )  # fmt: skip
    if n_failed:
        logger.warning("Failed items: %d; see: espnet3 failed %s", n_failed, shlex.quote(str(root)))


def cost_facts(accounting: Accounting) -> list[tuple[str, str]]:
    """Return what a run cost in words: names and facts, as lines of a log or of a table."""
    facts = []
    if accounting.total.n_workers:
        facts.append(("Worker time", _worker_time(accounting)))
    if accounting.n_queued:
        facts.append(("Queue wait", _queue_wait(accounting)))
    if accounting.deaths:
        facts.append(("Lost attempts", _deaths(accounting.deaths)))
    if (factor := accounting.total.real_time_factor) is not None:
        audio = duration(accounting.total.audio_seconds or 0.0)
        facts.append(("Speech", f"{audio} of audio, real-time factor {factor:.3g}"))
    if accounting.padded_share is not None:
        facts.append(("Padding", f"{accounting.padded_share:.1%} of the batches"))
    return facts


def time_parts(usage: Usage) -> dict[str, float]:
    """Return the shares of a worker's time, by name; they add up to 1 unless there is none."""
    parts = {
        "compute": usage.compute_seconds,
        "load": usage.load_seconds,
        "write": usage.write_seconds,
        "running": usage.running_seconds,
        "lost": usage.lost_seconds,
        "idle": usage.idle_seconds,
    }
    return {name: seconds / (usage.seconds or 1.0) for name, seconds in parts.items()}


def _worker_time(accounting: Accounting) -> str:
    total = accounting.total
    shares = [f"{name} {share:.0%}" for name, share in time_parts(total).items() if share >= 0.005]
    workers, nodes = count(total.n_workers, "worker"), count(len(accounting.nodes), "node")
    parts = f": {', '.join(shares)}" if shares else ""
    return f"{duration(total.seconds)} of {workers} on {nodes}{parts}"


def _queue_wait(accounting: Accounting) -> str:
    mean = (accounting.total.queue_seconds or 0.0) / accounting.n_queued
    longest = accounting.longest_queue_seconds or 0.0
    jobs = count(accounting.n_queued, "worker")
    return f"{duration(mean)} on average of {jobs}, {duration(longest)} at most"


def _deaths(deaths: dict[str, int]) -> str:
    words = {
        "died": "whose worker died",
        "machine": "that a machine could not bear",
        "walltime": "cut off by a walltime",
    }
    return ", ".join(f"{number} {words.get(kind, kind)}" for kind, number in deaths.items())
