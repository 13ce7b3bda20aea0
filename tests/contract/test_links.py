"""No relative link of the documentation is dead, and what the seeds refer to by title is there."""

from pathlib import Path

import pytest

from tests.helpers.pages import DOCS, ROOT, anchors, links, table

PAGES = sorted(
    [
        *DOCS.rglob("*.md"),
        *(ROOT / "egs3").glob("*/*/README.md"),
        *(ROOT / "tests").glob("*/README.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *ROOT.glob("*.md"),
    ]
)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page):
    dead = []
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (
            anchor and (target.suffix != ".md" or anchor not in anchors(target))
        ):
            # A folder is shown with its README.
            readme = target / "README.md"
            if not (anchor and readme.is_file() and anchor in anchors(readme)):
                dead.append(f"{path}#{anchor}" if anchor else path)
    assert dead == []


# The titles under "Related pages", and those that stand below a section, in the five seeds.
TITLES = """
Training Config; Trainer; Training Loop; Multi-node training; Stats Collection; Model and system
Parallel Config; Parallel Runtime; Parallel overview; Parallel Data Prep; Provider and Runner
Inference Provider; Inference Config; Inference at scale; Cluster Migration; Config Diff
Task to system; Data Pipeline; Dataset Config; System and Stages; Common mistakes
Two layers: `trainer` and `parallel`
"""


def test_every_page_that_the_seeds_name_by_its_title_has_a_place():
    rows = table(DOCS / "README.md", "## By title")
    titles = {title for row in rows for title in row[0].split("; ")}
    wanted = {title.strip() for line in TITLES.strip().splitlines() for title in line.split(";")}
    assert wanted <= titles
    assert all("](" in row[1] for row in rows)


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text()
    shown = [page for page in DOCS.glob("*.md") if page.name != "README.md"]
    assert [page.name for page in shown if f"]({page.name}" not in index] == []
