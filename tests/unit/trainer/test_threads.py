import pytest
import torch

from espnet3.trainer.fit import choose_threads, set_threads


@pytest.mark.parametrize(
    ("n_cores", "n_processes", "n_loader_workers", "expected"),
    [(2, 1, 0, 1), (4, 1, 0, 1), (16, 1, 0, 16), (64, 4, 4, 12), (64, 8, 4, 1), (1, 8, 2, 1)],
)
def test_few_cores_get_one_thread(n_cores, n_processes, n_loader_workers, expected):
    assert choose_threads(n_cores, n_processes, n_loader_workers) == expected


def test_the_config_wins_over_the_environment_and_that_over_our_choice(monkeypatch):
    before = torch.get_num_threads()
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        torch.set_num_threads(2)
        assert set_threads(None, 1, 0) == 2
        assert set_threads(3, 1, 0) == 3
    finally:
        torch.set_num_threads(before)
