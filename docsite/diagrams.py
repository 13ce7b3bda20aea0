"""Diagrams of the pages as pictures, so that the site needs no script and no network for them.

A Mermaid block of a page is shown as the drawing in `docsite/diagrams/` that is named after a
digest of its text. After a change of one: `python -m docsite.diagrams MERMAID_JS`, with the file
`mermaid.min.js` of the npm package `mermaid`, draws what is missing and removes what is left over.
"""

import hashlib
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "diagrams"
DOCS = Path(__file__).parents[1] / "docs"
_FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SETTINGS = (
    "{startOnLoad: false, theme: 'neutral', fontFamily: 'sans-serif', "
    "flowchart: {htmlLabels: false}, deterministicIds: true}"
)


def path_of(text: str) -> Path:
    """Return where the drawing of a Mermaid text is."""
    return FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.svg"


def draw(text: str) -> str:
    """Return a drawing as HTML.

    Raises:
        FileNotFoundError: the diagram has changed since it was drawn.
    """
    path = path_of(text)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: a diagram is new or has changed. "
            "Write: python -m docsite.diagrams mermaid.min.js"
        )
    return f'<div class="diagram">{path.read_text("utf-8").strip()}</div>'


def find_diagrams() -> list[str]:
    """Return the text of each Mermaid block of the documentation."""
    pages = sorted(DOCS.rglob("*.md"))
    return [text for page in pages for text in _FENCE.findall(page.read_text("utf-8"))]


def main(script: str) -> None:
    """Draw, in Chromium, what has no drawing yet."""
    from playwright.sync_api import sync_playwright

    diagrams = find_diagrams()
    wanted = {path_of(text): text for text in diagrams}
    for path in FOLDER.glob("*.svg"):
        if path not in wanted:
            path.unlink()
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.set_content("<body></body>")
        page.add_script_tag(path=script)
        page.evaluate(f"mermaid.initialize({_SETTINGS})")
        for path, text in wanted.items():
            name = f"d{path.stem}"
            drawn = page.evaluate(
                "async ([name, text]) => (await mermaid.render(name, text)).svg", [name, text]
            )
            path.write_text(drawn + "\n", "utf-8")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
