import pytest
import torch

from espnet3.components.models.token_transformer import TokenCache


@pytest.fixture(params=[True, False], ids=["with-gradients", "without"], autouse=True)
def _gradients(request):
    with torch.set_grad_enabled(request.param):
        yield


def token(value: float, n_rows: int = 2) -> torch.Tensor:
    return torch.full((n_rows, 1, 3), value) + torch.arange(n_rows)[:, None, None]


def firsts(cache: TokenCache) -> list[list[float]]:
    return cache.values[..., 0].tolist()


def test_many_tokens_are_kept_in_order():
    cache = TokenCache.of(token(0.0))
    for place in range(1, 50):
        cache = cache.add(token(float(place)))
    assert firsts(cache) == [[float(i) for i in range(50)], [float(i + 1) for i in range(50)]]


def test_two_continuations_of_one_cache_do_not_disturb_each_other():
    start = TokenCache.of(token(0.0)).add(token(1.0))
    one, other = start.add(token(2.0)), start.add(token(7.0))
    one, other = one.add(token(3.0)), other.add(token(8.0))
    assert firsts(start)[0] == [0, 1]
    assert firsts(one)[0] == [0, 1, 2, 3]
    assert firsts(other)[0] == [0, 1, 7, 8]


def test_selected_rows_go_on_alone():
    start = TokenCache.of(token(0.0)).add(token(1.0))
    chosen = start.select(torch.tensor([1, 1, 0]))
    longer = chosen.add(token(5.0, 3))
    start.add(token(9.0))
    assert firsts(longer) == [[1, 2, 5], [1, 2, 6], [0, 1, 7]]
    assert firsts(chosen) == [[1, 2], [1, 2], [0, 1]]
