import copy
import pickle

import pytest
import torch
from torch import nn

from espnet3.components.models.attention_decoder import TransformerDecoder
from espnet3.errors import ConfigError

N_TOKENS = 11
END = N_TOKENS - 1


@pytest.fixture
def decoder() -> TransformerDecoder:
    torch.manual_seed(0)
    return TransformerDecoder(N_TOKENS, 12, n_layers=2, n_heads=4, hidden=32).eval()


@pytest.fixture
def speech() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(3, 9, 12), torch.tensor([9, 4, 6])


def tokens_in(n_rows: int, n: int) -> torch.Tensor:
    tokens = torch.randint(1, END, (n_rows, n), generator=torch.Generator().manual_seed(2))
    return torch.cat([torch.full((n_rows, 1), END), tokens], 1)


@torch.inference_mode()
def test_steps_give_what_forward_gives(decoder, speech):
    tokens = tokens_in(3, 7)
    whole = decoder(*speech, tokens).log_softmax(-1)
    state = decoder.start(*speech)
    for place in range(tokens.shape[1]):
        log_probs, state = decoder.step(tokens[:, place], state)
        torch.testing.assert_close(log_probs, whole[:, place], rtol=0, atol=2e-5)


@torch.inference_mode()
def test_a_token_does_not_see_those_behind_it(decoder, speech):
    tokens = tokens_in(3, 7)
    changed = tokens.clone()
    changed[:, 5:] = -1  # as padding is
    first, second = decoder(*speech, tokens), decoder(*speech, changed)
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5:], second[:, 5:])


@torch.inference_mode()
def test_padding_of_the_speech_has_no_effect(decoder, speech):
    encoded, lengths = speech
    tokens = tokens_in(3, 5)
    spoilt = encoded.clone()
    for row, length in enumerate(lengths):
        spoilt[row, length:] = 1e4
    longer = torch.nn.functional.pad(spoilt, (0, 0, 0, 5), value=-1e4)
    torch.testing.assert_close(decoder(longer, lengths, tokens), decoder(encoded, lengths, tokens))


@torch.inference_mode()
def test_a_batch_gives_what_single_utterances_give(decoder, speech):
    encoded, lengths = speech
    tokens = tokens_in(3, 5)
    batch = decoder(encoded, lengths, tokens)
    for row, length in enumerate(lengths):
        alone = decoder(encoded[row : row + 1, :length], lengths[row : row + 1], tokens[[row]])
        torch.testing.assert_close(batch[[row]], alone, rtol=0, atol=2e-5)


@torch.inference_mode()
@pytest.mark.parametrize(
    "indices",
    [
        pytest.param([0, 0, 1, 1, 2, 2], id="each-doubled"),
        pytest.param([2, 2, 0, 0], id="one-left-out-and-reordered"),
        pytest.param([0, 1, 0, 2], id="mixed"),
        pytest.param([1, 1, 1, 0], id="unequally-many"),
    ],
)
def test_selected_hypotheses_go_on_as_if_alone(decoder, speech, indices):
    encoded, lengths = speech
    tokens = tokens_in(3, 2)
    state = decoder.start(encoded, lengths)
    for place in range(3):
        _, state = decoder.step(tokens[:, place], state)
    chosen = torch.tensor(indices)
    for again in range(2):  # the second time from a state that was selected before
        state = decoder.select(state, chosen if not again else torch.arange(len(indices)).flip(0))
        rows = chosen if not again else chosen.flip(0)
    more = torch.arange(1, 1 + len(indices))
    log_probs, state = decoder.step(more, state)
    history = torch.cat([tokens[rows], more[:, None]], 1)
    whole = decoder(encoded[rows], lengths[rows], history)[:, -1].log_softmax(-1)
    torch.testing.assert_close(log_probs, whole, rtol=0, atol=2e-5)


@torch.inference_mode()
def test_hypotheses_of_an_utterance_share_its_speech(decoder, speech):
    state = decoder.start(*speech)
    _, state = decoder.step(torch.full((3,), END), state)
    wider = decoder.select(state, torch.arange(3).repeat_interleave(10))
    assert wider.n_rows == 10
    assert wider.memories[0].keys_values is state.memories[0].keys_values


@torch.inference_mode()
def test_an_utterance_without_frames_gives_numbers(decoder):
    logits = decoder(torch.zeros(1, 3, 12), torch.tensor([0]), tokens_in(1, 2))
    assert logits.isfinite().all()


def test_it_learns_to_copy(decoder):
    """Each frame says which token comes; only attention to the right frame can tell."""
    generator = torch.Generator().manual_seed(3)
    decoder.train()
    optimizer = torch.optim.Adam(decoder.parameters(), lr=3e-3)
    spoken = torch.randn(N_TOKENS, 12, generator=generator)
    for _ in range(100):
        targets = torch.randint(1, END, (16, 4), generator=generator)
        encoded = spoken[targets] + torch.arange(4)[None, :, None] * 0.3
        given = torch.cat([torch.full((16, 1), END), targets[:, :-1]], 1)
        logits = decoder(encoded, torch.full((16,), 4), given)
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 1.2  # 2.2 without attention to the speech


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"3 attention heads .* Write .* hidden: 192"):
        TransformerDecoder(5, 8, n_heads=3, hidden=32)
    with pytest.raises(ConfigError, match="must be even"):
        TransformerDecoder(5, 8, n_heads=1, hidden=15)


def test_activation_and_eps_are_options():
    decoder = TransformerDecoder(
        5, 8, n_layers=1, n_heads=2, hidden=16, activation="relu", norm_eps=1e-12
    )
    layer = decoder.network.layers[0]
    assert type(layer.feed_forward[2]) is torch.nn.ReLU
    norms = [layer.self_norm, layer.memory_norm, layer.feed_forward[0], decoder.network.norm]
    assert {norm.eps for norm in norms} == {1e-12}
    with pytest.raises(ConfigError, match="activation: gelu"):
        TransformerDecoder(5, 8, activation="tanh")


class _OtherLinear(nn.Linear):
    """A kind of layer that a search does not know, as adapters and quantisation bring them."""

    def forward(self, input):
        return super().forward(input)


def test_layers_of_other_kinds_are_called_as_they_are():
    torch.manual_seed(0)
    decoder = TransformerDecoder(7, 8, n_layers=2, n_heads=2, hidden=16).eval()
    other = copy.deepcopy(decoder)
    for layer in other.network.layers:
        layer.self_attention.query.__class__ = _OtherLinear
    encoded, lengths = torch.randn(2, 9, 8), torch.tensor([9, 5])
    with torch.inference_mode():
        states = [one.start(encoded, lengths) for one in (decoder, other)]
        for _ in range(4):
            tokens = torch.randint(0, 7, (2,))
            (mine, first), (theirs, second) = (
                one.step(tokens, state) for one, state in zip((decoder, other), states, strict=True)
            )
            states = [first, second]
            assert torch.allclose(mine, theirs, atol=1e-5)
    assert first.tokens.steps
    assert not second.tokens.steps


@pytest.mark.parametrize("n_tokens", [5, 1200])  # a large output has a layout of its own
@pytest.mark.parametrize("is_copied", [False, True])
def test_frozen_weights_give_what_forward_gives(n_tokens, is_copied):
    torch.manual_seed(0)
    sizes = {"n_layers": 2, "n_heads": 2, "hidden": 8, "activation": "relu"}
    decoder = TransformerDecoder(n_tokens, 6, **sizes).eval()
    encoded, lengths = torch.randn(2, 7, 6), torch.tensor([7, 4])
    inputs = torch.randint(0, n_tokens, (2, 5))
    wanted = decoder(encoded, lengths, inputs).log_softmax(-1)
    decoder.network.freeze()
    with torch.inference_mode():
        for _ in range(2):
            state = decoder.start(encoded, lengths)
            for n in range(5):
                log_probs, state = decoder.step(inputs[:, n], state)
                assert torch.allclose(log_probs, wanted[:, n], atol=1e-5)
            decoder = pickle.loads(pickle.dumps(decoder)) if is_copied else decoder
