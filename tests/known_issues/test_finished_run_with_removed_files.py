"""A finished run answered with paths of files that had been removed."""

import shutil

from espnet3.parallel import BaseRunner
from tests.helpers.providers import Provider


class NoMerge(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx

    @staticmethod
    def open_writers(shard_dir):
        return (shard_dir / "x.txt").open("w")

    @staticmethod
    def write_record(writers, result):
        writers.write(f"{result}\n")

    @staticmethod
    def close_writers(writers):
        writers.close()


class Nested(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx

    def merge(self, shard_dirs):
        path = self.output_dir / "scores" / "n.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(len(shard_dirs)))
        return {"path": path}


def test_a_removed_shard_is_computed_anew(tmp_path):
    runner = NoMerge(Provider(), output_dir=tmp_path)
    shutil.rmtree(runner(range(32))[3])
    assert all(folder.exists() for folder in runner(range(32)))


def test_a_removed_file_in_a_subfolder_is_merged_anew(tmp_path):
    runner = Nested(Provider(), output_dir=tmp_path)
    runner(range(3))["path"].unlink()
    assert runner(range(3))["path"].exists()
