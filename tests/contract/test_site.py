"""The site: its order, its reference, its search, and three ways through it."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
import yaml

from docsite.diagrams import find_diagrams, path_of
from docsite.pages import read_ledger
from docsite.reference import make_pages
from espnet3.cli.main import VERBS
from espnet3.cli.schema import KINDS, file_model, make_schema
from tests.helpers.pages import DOCS, ROOT, blocks, links

SITE = DOCS.parent / "docsite" / "site.yml"
GENERATED = {"reference/keys.md", "reference/commands.md", "reference/api.md", "adr/README.md"}
LIFE = [
    "Start", "Your corpus", "Training", "Decoding", "Clusters", "Detached runs", "From ESPnet2",
    "Extending", "Reference",
]  # fmt: skip


def navigation() -> list:
    """Return the pages of the site in order, as its configuration lists them."""
    _, _, rest = SITE.read_text().partition("\nnav:")  # the rest has tags of Python in it
    return yaml.safe_load("nav:" + rest)["nav"]


def pages_in(entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    values = entry if isinstance(entry, list) else entry.values()
    return [page for value in values for page in pages_in(value)]


@pytest.fixture(scope="module")
def reference():
    return make_pages()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "it's here"
    done = subprocess.run(
        [sys.executable, "-m", "docsite", folder], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_are_in_the_order_of_a_users_life():
    assert [key for entry in navigation()[1:] for key in entry] == LIFE


def test_every_page_has_a_place():
    shown = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    listed = pages_in(navigation())
    assert len(listed) == len(set(listed))
    shown |= {f"tutorials/{path.stem}.md" for path in DOCS.glob("tutorials/*.ipynb")}
    decisions = {page for page in shown if page.startswith("adr/0")}
    assert set(listed) == (shown - decisions) | GENERATED


def test_every_key_is_in_the_reference_with_its_meaning(reference):
    text = reference["reference/keys.md"]
    rows = [line for line in text.splitlines() if line.startswith("| `") and line.count("|") > 4]
    assert [row for row in rows if not row.replace("\\|", "").split("|")[4].strip()] == []
    keys = {row.split("`")[1] for row in rows}
    for kind in ("training", "inference", "metrics", "publication"):
        schema = file_model(kind).model_json_schema(by_alias=True)
        named = {*schema["properties"]}
        for block in schema["$defs"].values():
            named |= {*block.get("properties", ())}
        assert named - keys <= {"monitor", "k", "mode"}  # a criterion is written as a list


def test_every_command_and_its_options_are_in_the_reference(reference):
    text = reference["reference/commands.md"]
    assert [verb for verb in VERBS if f"\n## espnet3 {verb}\n" not in text] == []
    assert text.count("usage:") == len(VERBS)


def test_the_api_has_the_signature_and_the_docstring(reference):
    text = reference["reference/api.md"]
    assert "#### `BaseRunner.merge`" in text
    assert "depends_on=None" in text
    assert "- `depends_on`: what else the results depend on" in text


def test_every_diagram_is_drawn():
    assert [text for text in find_diagrams() if not path_of(text).is_file()] == []


def test_every_block_is_said_to_be_run_by_a_test_or_not():
    shown = {
        (page.relative_to(DOCS).as_posix(), block.language)
        for page in DOCS.rglob("*.md")
        for block in blocks(page)
        if block.language not in ("", "mermaid", "text")
    }
    listed = {(page, language) for page, tests in read_ledger().items() for language in tests}
    assert shown == listed
    for page, tests in read_ledger().items():
        for test in filter(None, tests.values()):
            file = ROOT / test.partition(" ")[0]
            name = "clusters" if file.name == "test_cluster_pages.py" else Path(page).name
            stem = name.removesuffix(".md").removeprefix("README")
            assert stem in file.read_text(), f"{file.name} says nothing of {page}"


def test_the_block_for_editors_is_accepted_by_its_schema():
    (block,) = blocks(DOCS / "editors.md", "yaml")
    assert "$schema=.schema/training.json" in block.text
    jsonschema.validate(yaml.safe_load(block.text), make_schema("training"))


def test_the_files_of_inference_at_scale_are_in_every_recipe_that_trains_and_decodes():
    (block,) = blocks(DOCS / "inference-at-scale.md", "sh")
    for recipe in ("digits", "mini_an4", "audiomnist", "commands"):
        for words in block.commands:
            files = [word for word in words if word.endswith(".yaml")]
            assert len(files) == 3
            assert [f for f in files if not (ROOT / "egs3" / recipe / "asr" / f).is_file()] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_config_is_told_of_where_editors_are(kind):
    assert f"`{kind}`" in (DOCS / "editors.md").read_text()


@pytest.mark.parametrize("words", ["walltime", "nj", "out of memory"])
def test_search_finds(site, words):
    index = json.loads((site / "search.json").read_text())
    hits = [item for item in index["items"] if words in (item["title"] + item["text"]).lower()]
    assert hits
    # The same as a script, which a page from disk may load.
    assert words in (site / "search.js").read_text().lower()


def test_no_page_fetches_anything(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert 'src="http' not in text
        assert '<link rel="stylesheet" href="http' not in text


WAYS = {
    "from ESPnet2": [
        "README.md", "espnet2.md", "training-on-clusters.md", "two-layers.md",
    ],
    "from ESPnet2, by its settings": [
        "README.md", "config-diff.md", "espnet2.md", "provider-and-runner.md", "how-it-works.md",
    ],
    "from ESPnet2, with its cluster": [
        "README.md", "cluster-migration.md", "clusters/README.md", "clusters/slurm.md",
        "clusters/defaults.md",
    ],
    "with a Hugging Face model": [
        "README.md", "asr-inference.md", "detached.md",
    ],
    "with a Hugging Face model, on a corpus": [
        "README.md", "inference-config.md", "inference-at-scale.md", "clusters/README.md",
        "clusters/slurm.md",
    ],
    "with a cluster and no speech": [
        "README.md", "parallel.md", "provider-and-runner.md", "how-it-works.md",
    ],
    "with a cluster and no speech, as jobs": [
        "README.md", "parallel-config.md", "doctor.md",
    ],
    "with a cluster and no speech, overnight": [
        "README.md", "two-layers.md", "training-on-clusters.md",
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_way_through_the_site_needs_only_links(way):
    for page, following in pairwise(way):
        folder = (DOCS / page).parent
        targets = {(folder / path).resolve() for path, _ in links(DOCS / page) if path}
        targets |= {target / "README.md" for target in targets if target.is_dir()}
        assert (DOCS / following).resolve() in targets, f"{page} does not lead to {following}"
