"""docs/accounting.md explains all figures there are, and its snippet runs as printed."""

import re
from pathlib import Path

from espnet3.parallel import BaseRunner
from espnet3.shards.accounting import Accounting, Usage
from tests.helpers.providers import Provider

PAGE = (Path(__file__).parents[2] / "docs" / "accounting.md").read_text()


class Echo(BaseRunner):
    @staticmethod
    def forward(idx):
        return {"idx": idx}


def test_every_key_is_explained():
    full = Usage("a:1", host="a", job_id="7", seconds=1.0, queue_seconds=1.0, audio_seconds=1.0)
    values = Accounting(full, [full], [full], padded_share=0.1, longest_queue_seconds=1.0).as_dict()
    keys = {*values, *values["workers"][0]}
    explained = set(re.findall(r"`(\w+)`", PAGE))
    assert sorted(keys - explained) == []


def test_the_snippet_runs_as_printed(tmp_path, monkeypatch, capsys):
    Echo(Provider(), output_dir=tmp_path / "exp" / "decode")(range(5))
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "docs/accounting.md", "exec"), {})
    assert re.search(r"^0\.0 worker-hours, \d+% idle\n\S+ 5 0\.0$", capsys.readouterr().out, re.M)
