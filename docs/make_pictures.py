"""Make README's pictures from the demo: `make demo`, then `.venv/bin/python docs/make_pictures.py`.

The report of the demo, and `espnet3 status --watch` while its test sets are decoded by detached
workers, as Chromium shows them (tests/browser/install.sh installs it).
"""

import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from rich.console import Console

from espnet3.cli.status import render
from espnet3.errors import EspnetError
from espnet3.parallel.detached.overview import Overview, look

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "egs3/digits/asr"
REPORT = RECIPE / "exp/training/inference/report.html"
FRAMES = Path("exp/demo/inference")
TEST_SETS = ("test_seen", "test_unseen")
N_COLORS = 128  # a few tens of kilobytes, and no difference to be seen


def main() -> None:
    """Write report.png and status.png beside this file."""
    if not REPORT.is_file():
        raise SystemExit(f"{REPORT} is not there. Run first: make demo")
    take(REPORT.as_uri(), "report.png", (1100, 860))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "status.html")
        page.write_text(f"<body style='margin:0;background:#0c0c0c'>{status_frame()}</body>")
        take(page.as_uri(), "status.png", (1000, 533))


def status_frame() -> str:
    """Return a picture of the terminal in the middle of a run, as SVG."""
    os.chdir(RECIPE)
    shutil.rmtree(FRAMES, ignore_errors=True)
    decode = [
        sys.executable, "run.py", "--stages", "infer", "--training_config", "conf/training.yaml",
        "--inference_config", "conf/inference.yaml", "--detach", "parallel.n_workers=2",
        "parallel.shards_per_worker=32", "batch_seconds=3", f"inference_dir={FRAMES}",
    ]  # fmt: skip
    subprocess.run(decode, cwd=RECIPE, check=True, capture_output=True)
    folders = [FRAMES / name for name in TEST_SETS]
    console = Console(record=True, width=100, height=30, file=io.StringIO(), highlight=False)
    console.print("$ espnet3 status exp/demo/inference --watch\n", style="bold")
    console.print(render(middle_of_run(), console))
    subprocess.run([sys.executable, "-m", "espnet3.cli", "wait", *map(str, folders)], check=True)
    shutil.rmtree(FRAMES.parent)
    return console.export_svg(title="egs3/digits/asr")


def middle_of_run() -> list[Overview]:
    """Return the first look at which both workers are at work and some of the work is done."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            seen = [look(FRAMES / name) for name in TEST_SETS]
        except EspnetError:
            continue
        first = seen[0].status
        if len(seen[0].workforce.living) == 2 and first.n_done > first.n_items / 3:
            return seen
    raise SystemExit("No worker came within two minutes.")


def take(address: str, name: str, size: tuple[int, int]) -> None:
    """Let Chromium write a picture of a page, and reduce it to few colours."""
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder, "shot.png")
        subprocess.run(
            [
                "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--virtual-time-budget=4000", f"--window-size={size[0]},{size[1]}",
                f"--screenshot={shot}", address,
            ],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        picture = Image.open(shot).convert("RGB").quantize(N_COLORS)
        picture.save(ROOT / "docs" / name, optimize=True)


if __name__ == "__main__":
    main()
