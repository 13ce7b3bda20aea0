"""A recogniser and a language model with random weights, for the tests of decoders."""

import torch
from torch import nn

from espnet3.components.models.attention_decoder import TransformerDecoder
from espnet3.systems.asr.language_model import LSTMState, TokenLSTM

SIZE = 8


class Recognizer(nn.Module):
    """What a decoder needs of a recogniser, with random weights."""

    def __init__(self, n_tokens: int, has_decoder: bool = True, sharpness: float = 4.0) -> None:
        super().__init__()
        self.n_tokens = n_tokens
        self.ctc = nn.Linear(SIZE, n_tokens)
        self.sharpness = sharpness
        self.decoder = None
        if has_decoder:
            self.decoder = TransformerDecoder(n_tokens, SIZE, n_layers=1, n_heads=2, hidden=16)
            network = self.decoder.network
            with torch.no_grad():  # untrained, it would hardly choose, nor look at the speech
                network.output.weight.mul_(4)
                network.layers[0].memory_attention.output.weight.mul_(20)

    def ctc_log_probs(self, encoded):
        return (self.sharpness * self.ctc(encoded)).log_softmax(-1)


class TokenModel(nn.Module):
    """What a decoder needs of a language model, with random weights."""

    def __init__(self, tokens) -> None:
        super().__init__()
        self.tokens, self.n_tokens = tuple(tokens), len(tokens)
        self.network = TokenLSTM(self.n_tokens, size=8, n_layers=1)
        with torch.no_grad():
            self.network.output.weight.mul_(8)

    def start(self, n, device="cpu"):
        return LSTMState()

    def step(self, tokens, state):
        return self.network.step(tokens, state)

    def select(self, state, indices):
        return state.select(indices)


def make_model(n_tokens: int, seed: int = 0, **settings) -> Recognizer:
    torch.manual_seed(seed)
    return Recognizer(n_tokens, **settings).eval()


def make_lm(n_tokens: int, seed: int = 5) -> TokenModel:
    torch.manual_seed(seed)
    return TokenModel([str(i) for i in range(n_tokens)]).eval()


def make_speech(n: int, n_frames: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(n_frames // 2, n_frames + 1, (n,), generator=generator)
    lengths[0] = n_frames
    return torch.randn(n, n_frames, SIZE, generator=generator), lengths
