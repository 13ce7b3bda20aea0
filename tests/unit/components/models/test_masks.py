import torch

from espnet3.components.models.frames import valid_frames, zero_padding


def test_frames_behind_the_end_are_not_valid():
    expected = [[False, False, False], [True, True, False], [True, True, True]]
    assert valid_frames(torch.tensor([0, 2, 9]), 3).tolist() == expected


def test_padding_becomes_zero_whatever_it_was_and_of_any_shape():
    for shape in ((2, 3), (2, 3, 4), (2, 3, 4, 5)):
        values = torch.full(shape, float("nan"))
        values[0, :1] = 7.0
        zeroed = zero_padding(values, torch.tensor([1, 0]))
        assert (zeroed[0, 0] == 7).all()
        assert not zeroed[0, 1:].any()
        assert not zeroed[1].any()


def test_integers_stay_integers():
    tokens = zero_padding(torch.tensor([[3, -1]]), torch.tensor([1]))
    assert tokens.tolist() == [[3, 0]]
    assert tokens.dtype == torch.int64
