"""A real browser for the tests of this folder, which only `make test-browser` runs."""

import os
import shutil

import pytest

from tests.helpers.report_page_parts import run, write_history, write_recipe

collect_ignore_glob = [] if os.environ.get("ESPNET3_BROWSER") == "1" else ["*"]

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]


class Visit:
    """A page that is open, and what it did so far."""

    def __init__(self, context, address):
        self.messages = []
        self.requests = []
        self.page = context.new_page()
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)


@pytest.fixture(scope="session")
def report_file(tmp_path_factory):
    """The report of a real run, in a folder that needs quoting."""
    folder = write_recipe(tmp_path_factory.mktemp("browser") / 'a "b" #c' / "digits")
    write_history(folder / "exp/inference")
    # So little that the longer ones are compressed.
    arguments = ("report.audio_megabytes=0.4",)
    assert run(folder, "infer", "measure", "report", arguments=arguments) == 0
    return folder / "exp/inference/report.html"


@pytest.fixture(scope="session")
def chromium():
    """Start Chromium once for all tests."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed; run tests/browser/install.sh")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, report_file):
    """Return a function that opens the report."""
    contexts = []

    def open_page(width=1280, scheme="light", **settings):
        viewport = {"width": width, "height": 900}
        contexts.append(chromium.new_context(viewport=viewport, color_scheme=scheme, **settings))
        return Visit(contexts[-1], report_file.as_uri())

    yield open_page
    for context in contexts:
        context.close()
