"""Read what a page of the documentation shows: blocks, files, commands, tables, links."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(\w*)([^\n`]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"# (\S+\.(?:yaml|py))\b.*")
_HEADING = re.compile(r"^(#+) (.+?)\s*$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
_CELL = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    tags: tuple[str, ...]
    """Further words of the fence, such as `espnet2`."""
    text: str
    line: int

    @property
    def name(self) -> str | None:
        """The file that its first line names, such as `# conf/training.yaml`."""
        match = _NAME.fullmatch(self.text.partition("\n")[0])
        return match[1] if match else None

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command, without comments and line ends that are escaped."""
        lines = self.text.replace("\\\n", " ").splitlines()
        words = (shlex.split(line, comments=True) for line in lines)
        return [found for found in words if found]


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page, in order; of these languages if some are given."""
    text = page.read_text("utf-8")
    found = [
        Block(m[1], tuple(m[2].split()), m[3], text[: m.start()].count("\n") + 1)
        for m in _FENCE.finditer(text)
    ]
    return [block for block in found if not languages or block.language in languages]


def named_files(page: Path) -> dict[str, str]:
    """Return the files that a page shows, by the names in their first lines."""
    shown = blocks(page, "yaml", "python")
    return {block.name: block.text for block in shown if block.name and not block.tags}


def table(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    _, _, rest = f"\n{_without_blocks(page)}".partition(f"\n{heading}\n")
    assert rest, f"{page.name} has no heading {heading!r}"
    rows = []
    for line in rest.splitlines():
        if line.startswith("|"):
            rows.append([cell.strip() for cell in _CELL.split(line)[1:-1]])
        elif rows or line.startswith("#"):
            break
    return rows[2:]


def code_in(cell: str) -> list[str]:
    """Return what a cell, or another text, has in backticks."""
    return [text.replace("\\|", "|") for text in re.findall(r"`([^`]+)`", cell)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for _, title in _HEADING.findall(_without_blocks(page)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 1
        while anchor in found:
            anchor, number = f"{anchor.removesuffix(f'-{number - 1}')}-{number}", number + 1
        found.add(anchor)
    return found


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield path and anchor of each relative link; the path is empty within the page."""
    for target in _LINK.findall(_without_blocks(page)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


def _without_blocks(page: Path) -> str:
    return _FENCE.sub("", page.read_text("utf-8"))
