"""A driver whose attempt another one took for dead, and removed, stopped with a disk error."""

import shutil

from espnet3.parallel import BaseRunner
from tests.helpers.providers import Provider


class Robbed(BaseRunner):
    @staticmethod
    def forward(idx, out):
        if idx == 5 and not (out / "robbed").exists():
            (out / "robbed").touch()
            for attempt in out.glob("split.*.part-*"):
                shutil.rmtree(attempt)
        return idx


def test_the_shard_is_run_again(tmp_path):
    path = Robbed(Provider(out=tmp_path), output_dir=tmp_path)(range(20))
    assert path.read_text().split() == [str(i) for i in range(20)]
