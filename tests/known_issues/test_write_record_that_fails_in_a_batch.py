"""When a record of a batch could not be written, the items before it were skipped as well."""

from espnet3.parallel import BaseRunner
from tests.helpers.providers import Provider


class BadRecord(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx

    @staticmethod
    def write_record(writers, result):
        if result == 3:
            raise ValueError("bad record")
        writers.write(result)

    def merge(self, shard_dirs):
        return [int(n) for s in shard_dirs for n in (s / "results.jsonl").read_text().split()]


def test_one_bad_record_costs_one_item(tmp_path):
    runner = BadRecord(Provider(), batch_size=4, output_dir=tmp_path, on_error="skip")
    assert runner(range(8)) == [0, 1, 2, 4, 5, 6, 7]
