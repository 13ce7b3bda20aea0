import json
import os
import time
from pathlib import Path

from espnet3.parallel import BaseRunner, EnvironmentProvider, use_parallel
from espnet3.systems.base.report_data import read_run


class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {"once": str(self.config)}

    def build_worker_setup_fn(self):
        once = str(self.config)
        return lambda: time.sleep(0.05) or {"once": once}


class DiesOnce(BaseRunner):
    """The first worker that meets item 0 dies."""

    @staticmethod
    def forward(idx, once):
        if idx == 0 and not Path(once).exists():
            Path(once).touch()
            os._exit(1)
        return idx

    @staticmethod
    def open_writers(shard_dir):
        return (shard_dir / "numbers").open("w")

    @staticmethod
    def write_record(writers, result):
        writers.write(f"{result}\n")

    @staticmethod
    def close_writers(writers):
        writers.close()

    def merge(self, shard_dirs):
        return len(shard_dirs)


def test_shards_tell_when_they_began_and_how_many_workers_died(tmp_path):
    begin = time.time()
    runner = DiesOnce(Provider(tmp_path / "once"), output_dir=tmp_path / "results")
    with use_parallel({"env": "local", "n_workers": 2}):
        runner(range(4))
    facts = read_run(tmp_path, "results")
    deaths = {span.shard: span.n_deaths for span in facts.spans}
    assert sum(deaths.values()) == 1
    for span in facts.spans:
        assert begin - 0.01 <= span.start <= span.load_end <= span.end <= time.time()
    assert max(span.load_end - span.start for span in facts.spans) > 0.04


def test_shards_of_older_versions_are_read(tmp_path):
    with use_parallel({"env": "local", "n_workers": 1}):
        (tmp_path / "once").touch()
        DiesOnce(Provider(tmp_path / "once"), output_dir=tmp_path / "results")(range(2))
    (file, *_) = sorted((tmp_path / "results").glob("split.*/done"))
    values = json.loads(file.read_text())
    del values["started"], values["n_deaths"]
    values |= {"seconds": 3.0, "load_seconds": 1.0, "finished": 100.0}
    file.write_text(json.dumps(values))
    old = min(read_run(tmp_path, "results").spans, key=lambda span: span.start)
    assert (old.start, old.load_end, old.end, old.n_deaths) == (96.0, 97.0, 100.0, 0)


def test_a_folder_without_a_run_has_no_facts(tmp_path):
    assert read_run(tmp_path, "nothing") is None
