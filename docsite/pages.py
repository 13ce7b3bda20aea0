"""The pages of the site, from the Markdown of `docs/`, which GitHub shows as it is.

They are plain Markdown, whatever builds the site of them.
"""

import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

from docsite.diagrams import draw
from docsite.reference import make_pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
STYLE = "stylesheets/site.css"
_FENCE = re.compile(r"^```(\w*)[ \t]*([^\n`]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"# \S+\.(?:yaml|py)\b")
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s#]+)(#[^()\s]*)?\)")
_GENERATED = (
    "\n- [Configuration keys](keys.md)\n- [Commands](commands.md)\n- [Python API](api.md)\n"
)


def write_pages(folder: Path) -> None:
    """Write all pages, and the files that they show."""
    for source in sorted(path for path in DOCS.rglob("*") if path.is_file()):
        target = folder / source.relative_to(DOCS)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(convert(source), "utf-8")
        elif source.suffix == ".ipynb":
            target.with_suffix(".md").write_text(_notebook(source), "utf-8")
        else:
            shutil.copyfile(source, target)
    made = {
        **make_pages(),
        "adr/README.md": _decisions(),
        STYLE: (ROOT / "docsite" / "site.css").read_text("utf-8"),
    }
    for name, text in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    with (folder / "reference/README.md").open("a", encoding="utf-8") as overview:
        overview.write(_GENERATED)


def convert(page: Path) -> str:
    """Return a page with its diagrams drawn, and what only GitHub understands as the site does."""
    markdown, folder = page.read_text("utf-8"), page.parent
    parts, end = list[str](), 0
    for match in _FENCE.finditer(markdown):
        text = _block(match, page.relative_to(DOCS).as_posix())
        parts += [_with_links(markdown[end : match.start()], folder), text]
        end = match.end()
    return "".join([*parts, _with_links(markdown[end:], folder)])


def _notebook(path: Path) -> str:
    """Return a notebook as a page."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    place = path.relative_to(ROOT).as_posix()
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        is_code = cell["cell_type"] == "code"
        block = f"```{{ .python .tested }}\n{text}\n```"
        parts.append(block if is_code else _with_links(text, path.parent))
    title, rest = parts[0].partition("\n")[::2]
    note = f"A notebook that the tests run: `{place}`."
    return "\n\n".join([title, note, rest, *parts[1:]]) + "\n"


def _block(match: re.Match[str], page: str) -> str:
    """Return a block that says whether a test runs it."""
    language, tags, text = match.groups()
    if language == "mermaid":
        return draw(text)
    if not language:
        return f"```text\n{text}```"
    test = test_of(page, language, is_named=bool(_NAME.match(text))) if not tags else None
    return f"```{{ .{language} .{'tested' if test else 'shown'} }}\n{text}```"


@cache
def read_ledger() -> dict[str, dict[str, str | None]]:
    """Return the test of each page and language, from `code_blocks.yml`."""
    ledger: dict[str, dict[str, str | None]]
    ledger = yaml.safe_load((ROOT / "docsite/code_blocks.yml").read_text("utf-8"))
    return ledger


def test_of(page: str, language: str, *, is_named: bool) -> str | None:
    """Return the test that runs a block, if one does."""
    path, _, only = (read_ledger().get(page, {}).get(language) or "").partition(" ")
    return path if path and (is_named or not only) else None


def _with_links(text: str, folder: Path) -> str:
    """Return text whose links to files outside of `docs/` name them, and to folders their page."""

    def replace(match: re.Match[str]) -> str:
        label, path, anchor = match[1], match[2], match[3] or ""
        if re.match(r"[a-z]+:", path):
            return match[0]
        target = (folder / path).resolve()
        if not target.is_relative_to(DOCS):
            place = target.relative_to(ROOT).as_posix()
            return label if place in label else f"{label} (`{place}`)"
        if target.suffix == ".ipynb":
            return f"[{label}]({path.removesuffix('.ipynb')}.md{anchor})"
        if target.is_dir():
            return f"[{label}]({path.rstrip('/')}/README.md{anchor})"
        return match[0]

    return _LINK.sub(replace, text)


def _decisions() -> str:
    lines = [f"- [{title}]({path.name})" for path, title in _titles(DOCS / "adr")]
    about = "# Decisions\n\nWhy things are as they are, in the order of time.\n\n"
    return about + "\n".join(lines) + "\n"


def _titles(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.glob("0*.md")):
        yield path, path.read_text("utf-8").partition("\n")[0].lstrip("# ")
