"""A Dask worker kept the settings of the call before: `on_error: skip` came too late."""

import pytest
from distributed import Client

from espnet3.errors import ItemError
from espnet3.parallel import BaseRunner
from tests.helpers.providers import Provider


class ThreeFails(BaseRunner):
    @staticmethod
    def forward(idx):
        if idx == 3:
            raise ValueError("three")
        return idx


def test_a_resumed_run_may_have_another_on_error(tmp_path, dask_address):
    with Client(dask_address) as client:
        client.wait_for_workers(2, timeout=30)
        with pytest.raises(ItemError, match="three"):
            ThreeFails(Provider(), output_dir=tmp_path)(range(100), client=client)
        path = ThreeFails(Provider(), output_dir=tmp_path, on_error="skip")(
            range(100), client=client
        )
    assert len(path.read_text().split()) == 99


def test_a_run_in_a_folder_is_cut_for_the_workers_of_the_client(tmp_path, dask_address):
    with Client(dask_address) as client:
        client.wait_for_workers(2, timeout=30)
        ThreeFails(Provider(), output_dir=tmp_path, on_error="skip")(range(100), client=client)
    assert len(list(tmp_path.glob("split.*"))) == 32
