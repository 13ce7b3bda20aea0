import torch

from espnet3.components.models.token_transformer import sinusoids


def test_a_position_does_not_depend_on_where_one_starts():
    like = torch.zeros(1)
    torch.testing.assert_close(
        sinusoids(3, 8, start=1000, like=like), sinusoids(1003, 8, like=like)[1000:]
    )


def test_positions_differ():
    positions = sinusoids(2000, 16, like=torch.zeros(1))
    assert len({tuple(row) for row in positions.tolist()}) == 2000
