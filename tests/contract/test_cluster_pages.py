"""Every block that docs/clusters shows is one that works, and every backend has a page."""

import re
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from espnet3.errors import MissingExtraError
from espnet3.parallel.clusters.kube_api import FORWARDING, LOGS, NEEDED, Right
from espnet3.parallel.clusters.registry import BACKENDS, check_resources, render_job_script
from espnet3.parallel.parallel import as_parallel_config

_SOURCE = r"\*Seen\*|\[\d+\]|openpbs#\d+|could read"
PAGES = Path(__file__).parents[2] / "docs" / "clusters"
BLOCKS = [
    pytest.param(path.stem, text, id=f"{path.stem}-{number}")
    for path in sorted(PAGES.glob("*.md"))
    if path.stem != "adding-a-scheduler"  # tests/integration/test_scheduler_of_another_package.py
    for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL))
    if not text.startswith("apiVersion:")  # for kubectl
]


@pytest.mark.filterwarnings("ignore:OAR Job memory")
@pytest.mark.parametrize(("page", "text"), BLOCKS)
def test_a_block_can_be_copied(page, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "certificates").mkdir()
    for name in ("ca.pem", "me.pem", "me.key"):
        (tmp_path / "certificates" / name).touch()
    gpus = [str(i) for i in range(8)]
    monkeypatch.setattr("espnet3.parallel.clusters.gpus.visible_gpus", lambda _: gpus)
    config = as_parallel_config(OmegaConf.create(text).parallel)
    assert config.env == page
    # Not installed for the tests; it is looked for when all else is right.
    with suppress(MissingExtraError) if page == "kube" else nullcontext():
        check_resources(config)
    script = render_job_script(config)
    is_job = BACKENDS[page].module == "jobqueue"
    assert is_job == (script is not None)
    for value in config.options.values() if is_job else ():
        if isinstance(value, str) and not value.endswith("GB"):  # those are translated
            assert value in script


def test_the_role_for_kubernetes_has_the_rights_that_a_run_asks_for():
    text = (PAGES / "kube.md").read_text()
    (role,) = re.findall(r"```yaml\n(apiVersion:.*?)```", text, re.DOTALL)
    told = {
        Right(rule.apiGroups[0], rule.resources[0], verb)
        for rule in OmegaConf.create(role).rules
        for verb in rule.verbs
    }
    assert told == {*NEEDED, *FORWARDING, *LOGS}


def test_there_is_a_page_for_each_backend_and_the_index_has_it():
    index = (PAGES / "README.md").read_text()
    for env in BACKENDS:
        if env != "local":
            assert (PAGES / f"{env}.md").exists()
            assert f"[`{env}`]({env}.md)" in index
            assert "## When it fails" in (PAGES / f"{env}.md").read_text()


def test_links_of_the_pages_lead_somewhere():
    for path in PAGES.glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+\.md)[^)]*\)", path.read_text()):
            assert (path.parent / link).exists(), f"{path.name}: {link}"


def test_what_schedulers_answer_has_a_row_for_each_and_a_source_for_all():
    page = (PAGES / "what-schedulers-answer.md").read_text()
    body, sources = page.split("## Sources")
    numbers = set(re.findall(r"^(\d+)\. ", sources, re.M))
    assert set(re.findall(r"\[(\d+)\]", body)) == numbers
    tables = re.findall(r"(?:^\|.*\n)+", body, re.M)
    assert len(tables) == 3
    for table in tables:
        heading, _, *rows = (line.strip("|").split(" | ") for line in table.splitlines())
        assert [row[0].strip() for row in rows] == [
            "Slurm", "Grid Engine", "HTCondor", "LSF", "OAR", "Moab", "PBS",
        ]  # fmt: skip
        told = [at for at, name in enumerate(heading) if re.match(r" ?\([a-i]\)", name)]
        bare = [row[at] for row in rows for at in told if not re.search(_SOURCE, row[at])]
        assert bare == []
