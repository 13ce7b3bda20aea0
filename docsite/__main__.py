"""`python -m docsite [FOLDER]`: build the site from `docs/` and the code; no network is used."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from docsite.pages import ROOT, write_pages

HERE = Path(__file__).parent
_SHIM = "https://unpkg.com/iframe-worker/shim"
"""What the pages would fetch, for searching in pages from disk; ours takes its place."""
_WORKER = "assets/javascripts/worker.js"


def build(site: Path) -> None:
    """Build the site; what was in the folder before is replaced.

    Raises:
        SystemExit: a link leads nowhere, or another mistake that the builder reports.
    """
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        write_pages(stage / "docs")
        shutil.copyfile(HERE / "site.yml", stage / "mkdocs.yml")
        program = Path(sys.executable).with_name("zensical")
        done = subprocess.run(
            [program, "build", "--strict"], cwd=stage, capture_output=True, text=True
        )
        if done.returncode:
            # Behind its messages is a traceback of its own.
            told = (done.stdout + done.stderr).partition("Traceback")[0]
            raise SystemExit(f"{told.strip()}\nThe site was not built.")
        _work_from_disk(stage / "site")
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(stage / "site", site)


def _work_from_disk(site: Path) -> None:
    """Replace the one script that would be fetched from a network."""
    shutil.copyfile(HERE / "worker.js", site / _WORKER)
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        ours = os.path.relpath(site / _WORKER, page.parent)
        page.write_text(text.replace(_SHIM, ours), "utf-8")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    build(target)
    print(f"Open {target.resolve() / 'index.html'} in a browser; no server is needed.")
