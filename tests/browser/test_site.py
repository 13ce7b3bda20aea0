"""The site of the documentation, opened from disk in a browser without a network."""

import pytest

from tests.helpers.pages import ROOT

SITE = ROOT / "site"
PAGES = ("index", "reference/keys", "how-it-works", "tutorials/first-recogniser")


@pytest.fixture(scope="module")
def site():
    if not (SITE / "index.html").is_file():
        pytest.skip("the site is not built: make docs")
    return SITE


@pytest.fixture
def open_page(chromium, site):
    contexts = []

    def opened(name, width=1280, scheme="light"):
        viewport = {"width": width, "height": 900}
        context = chromium.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.problems = []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("requestfailed", lambda request: page.problems.append(request.url))
        page.goto((site / f"{name}.html").as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_and_nothing_is_fetched(open_page, width, scheme):
    for name in PAGES:
        page = open_page(name, width, scheme)
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        wanted = "default" if scheme == "light" else "slate"
        assert page.locator("body").get_attribute("data-md-color-scheme") == wanted
        assert page.problems == []


@pytest.mark.parametrize(
    ("words", "found"),
    [("walltime", "walltime"), ("nj", "inference_nj"), ("out of memory", "Out of memory")],
)
def test_search_finds_from_disk(open_page, words, found):
    page = open_page("index")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Search")
    field.press_sequentially(words, delay=20)
    page.get_by_role("option").filter(has_text=found).first.wait_for()
    assert field.input_value() == words
    assert page.problems == []


def test_a_diagram_is_drawn(open_page):
    page = open_page("how-it-works")
    assert page.locator(".diagram svg").count() == 4
    assert page.get_by_text("costliest shard first").count()
