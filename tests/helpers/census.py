"""Migrate as many made-up recipes as the public ESPnet2 has of asr1, and dry-run each.

Their options, values, habits of the shell, models and files come as often as in the public ones.
Each migrated recipe is compared with the settings that the old one was made from, and its
`--dry-run` must have nothing to say but what is missing in the old recipe.

    python -m tests.helpers.census [N] [--first 0] [--model espnet2] [--keep FOLDER]
"""

import argparse
import io
import logging
import multiprocessing
import re
import sys
import tempfile
import traceback
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

from espnet3.cli.main import main as espnet3
from espnet3.systems.asr.system import ASRSystem
from tests.helpers.census_oracle import Oracle
from tests.helpers.census_recipe import write_census_recipe, write_word_pieces
from tests.helpers.census_settings import N_RECIPES, make_settings
from tests.helpers.recipe_copy import run_recipe_here

CONFIGS = (
    "--training_config", "conf/training.yaml", "--inference_config", "conf/inference.yaml",
    "--metrics_config", "conf/metrics.yaml",
)  # fmt: skip
KINDS = {
    "an earlier stage makes it": r"Make it first: python run\.py|Stage train \(4\) makes them",
    "data are missing": r"there is no .*/(data|dump)/|wav\.scp|text.* does not exist",
    "tokens are missing": r"tokens\.txt|token_list|data/tokenizer",
    "statistics are missing": r"feats_stats|collect_stats",
    "a package is missing": r"s3prl|whisper|transformers|fairseq|needs the package|pip install",
    "a GPU is missing": r"GPU|devices",
}
"""Complaints that are not the fault of the migration."""


@dataclass
class Result:
    """What became of one recipe."""

    number: int
    model: str
    code: int | None = None
    """Of `espnet3 migrate`."""
    faults: list[str] = field(default_factory=list)
    """Settings that are wrong without a word."""
    complaints: list[str] = field(default_factory=list)
    has_model: bool = False
    """Whether the dry run built the model."""
    crash: str = ""

    @property
    def kinds(self) -> set[str]:
        return kinds_of(self.complaints)

    @property
    def is_good(self) -> bool:
        return not self.faults and not self.crash and "other" not in self.kinds


def kinds_of(complaints: list[str]) -> set[str]:
    """Return what complaints are about."""
    found = set()
    for text in complaints:
        names = [name for name, pattern in KINDS.items() if re.search(pattern, text)]
        found.add(names[0] if names else "other")
    return found


def check(number: int, model: str, folder: Path, words: Path) -> Result:
    """Write, migrate, compare and dry-run one recipe."""
    settings = make_settings(number)
    old, new = folder / "egs2" / f"corpus{number}" / "asr1", folder / f"new{number}_{model}"
    result = Result(number, model)
    told = io.StringIO()
    try:
        if not old.exists():
            write_census_recipe(old, settings, words)
        with redirect_stdout(told), redirect_stderr(told):
            result.code = espnet3(["migrate", str(old), str(new), "--model", model])
        if result.code not in (0, 3):
            result.crash = told.getvalue()
            return result
        result.faults = Oracle(settings, new, model).faults(result.code)
        dry_run(new, result)
    except BaseException:
        result.crash = traceback.format_exc() + told.getvalue()[-500:]
    return result


def dry_run(new: Path, result: Result) -> None:
    lines = re.findall(r"^python run\.py (.*?)  #", (new / "MIGRATION.md").read_text(), re.M)
    for line in lines:
        if "inference_espnet2" in line:
            continue
        told = io.StringIO()
        with redirect_stdout(told), redirect_stderr(told):
            try:
                words = [word for word in line.split() if word != "--dry-run"]
                run_recipe_here(ASRSystem, new, *words, "--dry-run")
            except AssertionError:
                result.complaints.append(told.getvalue()[-600:])
        text = told.getvalue()
        result.complaints += re.findall(r"more is known after .*?; now: (.*)", text)
        if "Traceback" in text:
            result.crash = text[-2000:]
        if "training.yaml" in line and re.search(r"^  model: ", text, re.M):
            result.has_model = True


def in_a_child(number: int, model: str, folder: Path, words: Path) -> Result:
    """Do it in a fork, so that ESPnet2 is imported once for all and nothing is left behind."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(check(number, model, folder, words)))
    child.start()
    sender.close()
    try:
        result = receiver.recv() if receiver.poll(120) else Result(number, model, crash="hangs")
    except EOFError:
        result = Result(number, model, crash="the process died")
    child.kill() if result.crash == "hangs" else None
    child.join()
    return result


def report(results: list[Result]) -> str:
    """Return a table of what came out."""
    lines = ["| | " + " | ".join(models := sorted({r.model for r in results})) + " |",
             "|---|" + "--:|" * len(models)]  # fmt: skip
    rows = {
        "recipes": lambda r: True,
        "exit code 0": lambda r: r.code == 0,
        "exit code 3, listed": lambda r: r.code == 3,
        "model built by the dry run": lambda r: r.has_model,
        "dry run without a complaint": lambda r: not r.complaints and not r.crash,
        **{f"... {kind}": (lambda r, kind=kind: kind in r.kinds) for kind in [*KINDS, "other"]},
        "wrong in silence": lambda r: bool(r.faults),
        "traceback, refused": lambda r: bool(r.crash),
        "good": lambda r: r.is_good,
    }
    for name, holds in rows.items():
        counts = [sum(holds(r) for r in results if r.model == model) for model in models]
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int, nargs="?", default=N_RECIPES)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--model", choices=["espnet2", "native"])
    parser.add_argument("--keep", type=Path, help="write recipes here, and leave them")
    args = parser.parse_args()
    import torch

    logging.getLogger().setLevel(logging.ERROR)
    torch.set_num_threads(1)
    results = []
    with tempfile.TemporaryDirectory() as made:
        folder = args.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        words = write_word_pieces(folder)
        for model in ("espnet2", "native"):  # imports all that the forks need
            check(args.first, model, folder / "first", words)
        for number in range(args.first, args.first + args.n):
            for model in [args.model] if args.model else ["espnet2", "native"]:
                result = in_a_child(number, model, folder, words)
                results.append(result)
                if not result.is_good:
                    print(f"--- recipe {number}, {model}: {result.faults} {result.crash}")
                    print(*(c for c in result.complaints if "other" in kinds_of([c])), sep="\n")
                    sys.stdout.flush()
    print(report(results))
    print("\nComplaints, without paths and numbers:")
    told = Counter(re.sub(r"\S*/\S*|\d+", "_", c)[:160] for r in results for c in r.complaints)
    print(*(f"{n:4} {text.strip()}" for text, n in told.most_common()), sep="\n")
    return 0 if all(r.is_good for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
