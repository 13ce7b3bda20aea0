import math

import pytest
import torch

from espnet3.components.models.conformer import (
    RelativeAttention,
    distance_vectors,
    shift,
)
from espnet3.components.models.token_transformer import sinusoids
from espnet3.errors import ConfigError


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def _attend_slowly(attention, frames, is_valid):
    """Compute the formula of the docstring, score by score."""
    n_heads, size = attention.n_heads, frames.shape[-1] // attention.n_heads
    n = len(frames)
    query, key, value = attention.query_key_value(frames).chunk(3, -1)
    outputs = []
    for head in range(n_heads):
        part = slice(head * size, (head + 1) * size)
        u, v = attention.content_bias[head, 0], attention.distance_bias[head, 0]
        scores = torch.full((n, n), -math.inf)
        for i in range(n):
            for j in range(n):
                if is_valid[j]:
                    sines = sinusoids(1, frames.shape[-1], start=i - j, like=frames)[0]
                    r = attention.distance(sines)[part]
                    content, distance = (
                        (query[i, part] + u) @ key[j, part],
                        (query[i, part] + v) @ r,
                    )
                    scores[i, j] = (content + distance) / math.sqrt(size)
        outputs.append(scores.softmax(-1) @ value[:, part])
    return attention.output(torch.cat(outputs, -1))


@pytest.mark.parametrize("n_frames", [1, 2, 7])
def test_scores_are_those_of_the_formula(n_frames):
    attention = RelativeAttention(8, 2).eval()
    torch.nn.init.normal_(attention.content_bias)
    torch.nn.init.normal_(attention.distance_bias)
    frames = torch.randn(2, n_frames, 8)
    is_valid = torch.ones(2, n_frames, dtype=torch.bool)
    is_valid[1, max(1, n_frames - 2) :] = False
    attended = attention(frames, distance_vectors(frames), is_valid)
    for row, x, valid in zip(attended, frames, is_valid, strict=True):
        torch.testing.assert_close(row, _attend_slowly(attention, x, valid), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_each_row_is_shifted_to_its_own_distances(n):
    by_distance = torch.arange(n - 1, -n, -1.0).expand(3, n, 2 * n - 1)
    expected = torch.arange(n)[:, None] - torch.arange(n)
    assert torch.equal(shift(by_distance), expected.float().expand(3, n, n))
    behind = torch.cat([by_distance[:1] + 7, by_distance])[1:]  # begins within its storage
    assert torch.equal(shift(behind), expected.float().expand(3, n, n))


def test_gradients_of_shifted_scores_go_where_they_came_from():
    by_distance = torch.randn(2, 4, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(shift, by_distance)


def test_only_distances_matter_so_shifted_speech_is_heard_the_same():
    attention = RelativeAttention(8, 2).eval()
    frames = torch.randn(1, 5, 8)
    padded = torch.nn.functional.pad(frames, (0, 0, 3, 0))
    is_valid = torch.tensor([[False] * 3 + [True] * 5])
    late = attention(padded, distance_vectors(padded), is_valid)[:, 3:]
    early = attention(frames, distance_vectors(frames), is_valid[:, 3:])
    torch.testing.assert_close(late, early, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("size", "n_heads"), [(10, 4), (9, 3), (8, 0)])
def test_sizes_that_heads_cannot_share_are_refused(size, n_heads):
    with pytest.raises(ConfigError, match=rf"hidden: {64 * max(1, n_heads)}"):
        RelativeAttention(size, n_heads)
