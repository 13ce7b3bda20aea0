"""Prediction networks: step by step as at once, and blind to what comes."""

import pytest
import torch

from espnet3.components.models.transducer import Joint, LSTMPrediction, StatelessPrediction


@pytest.fixture(params=["lstm", "two layers", "stateless", "one token"])
def network(request):
    torch.manual_seed(0)
    return {
        "lstm": lambda: LSTMPrediction(7, 8),
        "two layers": lambda: LSTMPrediction(7, 8, n_layers=2),
        "stateless": lambda: StatelessPrediction(7, 8, context=3),
        "one token": lambda: StatelessPrediction(7, 8, context=1),
    }[request.param]().eval()


def test_steps_give_what_the_whole_gives(network):
    tokens = torch.nn.functional.pad(torch.randint(1, 7, (3, 6)), (1, 0))
    whole = network(tokens)
    assert whole.shape == (3, 7, network.output_size)
    state = network.start(3)
    for t in range(7):
        output, state = network.step(tokens[:, t], state)
        torch.testing.assert_close(output, whole[:, t])


def test_states_can_be_picked_and_repeated(network):
    _, state = network.step(torch.tensor([1, 2]), network.start(2))
    output, _ = network.step(torch.tensor([3, 4, 5]), state[[1, 0, 1]])
    expected, _ = network.step(torch.tensor([3, 5]), state[[1, 1]])
    torch.testing.assert_close(output[[0, 2]], expected)


def test_later_tokens_do_not_matter(network):
    tokens = torch.randint(1, 7, (2, 6))
    changed = tokens.clone()
    changed[:, 4:] = 1 + tokens[:, 4:] % 6
    torch.testing.assert_close(network(tokens)[:, :4], network(changed)[:, :4])


def test_the_joint_network_pairs_each_frame_with_each_prefix():
    joint = Joint(5, 8, 7, size=6)
    encoded, predicted = torch.randn(2, 3, 5), torch.randn(2, 4, 8)
    logits = joint(encoded, predicted)
    assert logits.shape == (2, 3, 4, 7)
    torch.testing.assert_close(logits[1, 2, 3], joint.pair(encoded[1, 2], predicted[1, 3]))
