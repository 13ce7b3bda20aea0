"""Networks of ESPnet2 as networks of ours, which keep keys and values from token to token.

Weights are taken one to one. What differs from ours in more than its weights is refused, with the
reason: then ESPnet2's own search decodes.
"""

import math
from typing import Any

import torch
from torch import Tensor, cat, nn
from torch.nn.functional import embedding

from espnet3.components.models.attention_decoder import TransformerDecoder
from espnet3.components.models.token_transformer import (
    Attention,
    CausalLayer,
    Frozen,
    LayerOptions,
    TransformerState,
    positions,
    through_layers,
)

_ACTIVATIONS = {"ReLU": "relu", "Swish": "swish", "SiLU": "swish", "GELU": "gelu"}


class CannotImport(Exception):
    """A network of ESPnet2 has something that ours do not have; the message says what."""


def import_decoder(decoder: Any, n_tokens: int) -> TransformerDecoder:
    """Return ESPnet2's Transformer decoder as ours.

    Raises:
        CannotImport: It is another kind of decoder, or has options that ours does not have.
    """
    _require_kind(decoder, "TransformerDecoder", "the decoder")
    if [type(part).__name__ for part in decoder.embed] != ["Embedding", "PositionalEncoding"]:
        raise CannotImport("the decoder has an input layer other than embed")
    if getattr(decoder, "output_layer", None) is None:
        raise CannotImport("the decoder has no output layer")
    layers = list(decoder.decoders)
    _require_pre_norm(decoder, layers, "the decoder")
    first = layers[0]
    ours = TransformerDecoder(
        n_tokens,
        first.src_attn.linear_k.in_features,
        n_layers=len(layers),
        n_heads=first.self_attn.h,
        hidden=first.self_attn.linear_q.in_features,
        feed_forward=first.feed_forward.w_1.out_features,
        dropout=0.0,
        activation=_activation(first),
        norm_eps=first.norm1.eps,
    )
    network = ours.network
    network.embedding.load_state_dict(decoder.embed[0].state_dict())
    network.norm.load_state_dict(decoder.after_norm.state_dict())
    network.output.load_state_dict(decoder.output_layer.state_dict())
    for mine, theirs in zip(network.layers, layers, strict=True):
        assert isinstance(mine, CausalLayer)
        _copy_layer(mine, theirs, feed_forward_norm=theirs.norm3)
        assert mine.memory_norm is not None
        assert mine.memory_attention is not None
        mine.memory_norm.load_state_dict(theirs.norm2.state_dict())
        _copy_attention(mine.memory_attention, theirs.src_attn)
    network.freeze()
    return ours.eval()


def import_language_model(lm: Any, tokens: tuple[str, ...]) -> "ImportedLanguageModel":
    """Return a language model of ESPnet2, `lm.lm` of its model, as one of ours.

    Raises:
        CannotImport: It is neither of its Transformers nor of its recurrent networks.
    """
    kind = type(lm).__name__
    if kind == "TransformerLM":
        return TransformerLanguageModel(lm, tokens).eval()
    if kind == "SequentialRNNLM":
        return RecurrentLanguageModel(lm, tokens).eval()
    raise CannotImport(f"the language model is a {kind}")


class ImportedLanguageModel(nn.Module):
    """A language model of ESPnet2 as a search needs it; see `StepNetwork`."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        super().__init__()
        self.tokens = tokens
        self.n_tokens = len(tokens)

    def start(self, n: int, device: torch.device | str = "cpu") -> Any:
        """Return the state of `n` empty texts."""
        raise NotImplementedError

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the log-probabilities `[rows, n_tokens]` behind one more token in each row."""
        raise NotImplementedError

    def select(self, state: Any, indices: Tensor) -> Any:
        """Return the state of other rows."""
        raise NotImplementedError


class TransformerLanguageModel(ImportedLanguageModel):
    """ESPnet2's `transformer` language model, with a cache of keys and values."""

    inputs: Tensor
    """`[n_tokens, size]`: each token behind the input layer."""

    def __init__(self, lm: Any, tokens: tuple[str, ...]) -> None:
        super().__init__(tokens)
        encoder = lm.encoder
        layers = list(encoder.encoders)
        _require_pre_norm(encoder, layers, "the language model")
        names = [type(part).__name__ for part in encoder.embed]
        if names[:4] != ["Linear", "LayerNorm", "Dropout", "ReLU"] or names[4:] not in (
            ["Sequential"],
            ["PositionalEncoding"],
        ):
            raise CannotImport("the language model has an input layer other than linear")
        self._has_positions = names[4] == "PositionalEncoding"
        first = layers[0]
        self.size = first.self_attn.linear_q.in_features
        options = LayerOptions(_activation(first), first.norm1.eps)
        inner = first.feed_forward.w_1.out_features
        self.layers = nn.ModuleList(
            CausalLayer(self.size, first.self_attn.h, inner, 0.0, options=options) for _ in layers
        )
        for mine, theirs in zip(self.layers, layers, strict=True):
            assert isinstance(mine, CausalLayer)
            _copy_layer(mine, theirs, feed_forward_norm=theirs.norm2)
        self.norm = encoder.after_norm
        self.output = lm.decoder
        self._frozen = Frozen(self.layers, self.output)
        # The input layer of all tokens, as it would be the same in each step.
        project = nn.Sequential(*list(encoder.embed)[:2], nn.ReLU())
        with torch.no_grad():
            inputs = project(lm.embed.weight)
            inputs = inputs * math.sqrt(self.size) if self._has_positions else inputs
        self.register_buffer("inputs", inputs, persistent=False)

    def start(self, n: int, device: torch.device | str = "cpu") -> TransformerState:
        """Return the state of empty texts."""
        return TransformerState()

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """Add a token to each text."""
        x = embedding(tokens[:, None], self.inputs)
        if self._has_positions:
            x = x + positions(1, self.size, state, like=x)
        x, state = through_layers(self.layers, x, state, frozen=self._frozen)
        logits = self._frozen.output(self.norm(x[:, 0]))
        return torch.log_softmax(logits.float(), -1), state

    def select(self, state: TransformerState, indices: Tensor) -> TransformerState:
        """Return the state of other rows."""
        return state.select(indices)


class RecurrentLanguageModel(ImportedLanguageModel):
    """ESPnet2's `seq_rnn` language model: LSTM, GRU or a simple recurrent network."""

    def __init__(self, lm: Any, tokens: tuple[str, ...]) -> None:
        super().__init__(tokens)
        self.embedding = lm.encoder
        self.network = lm.rnn
        self.output = lm.decoder

    def start(self, n: int, device: torch.device | str = "cpu") -> None:
        """Return the state of empty texts."""
        return

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Add a token to each text."""
        hidden, state = self.network(self.embedding(tokens[:, None]), state)
        return torch.log_softmax(self.output(hidden[:, 0]).float(), -1), state

    def select(self, state: Any, indices: Tensor) -> Any:
        """Return the state of other rows."""
        # Output and cell of an LSTM; other networks have the output alone.
        if isinstance(state, tuple):
            return tuple(one[:, indices] for one in state)
        return state[:, indices]


def _require_kind(network: Any, kind: str, what: str) -> None:
    if type(network).__name__ != kind:
        raise CannotImport(f"{what} is a {type(network).__name__}")


def _require_pre_norm(network: Any, layers: list[Any], what: str) -> None:
    if not getattr(network, "normalize_before", True) or not hasattr(network, "after_norm"):
        raise CannotImport(f"{what} normalises behind its layers (normalize_before: false)")
    for layer in layers:
        for name in ("self_attn", "src_attn"):
            attention = getattr(layer, name, None)
            if attention is None:
                continue
            if type(attention).__name__ != "MultiHeadedAttention":
                raise CannotImport(f"{what} has an attention {type(attention).__name__}")
            for norm in ("q_norm", "k_norm"):
                if type(getattr(attention, norm, nn.Identity())) is not nn.Identity:
                    raise CannotImport(f"{what} normalises queries and keys (qk_norm: true)")
        if getattr(layer, "concat_after", False):
            raise CannotImport(f"{what} has concat_after: true")
        if type(layer.feed_forward).__name__ != "PositionwiseFeedForward":
            raise CannotImport(f"{what} has a feed-forward {type(layer.feed_forward).__name__}")


def _activation(layer: Any) -> str:
    name = type(layer.feed_forward.activation).__name__
    if name not in _ACTIVATIONS:
        raise CannotImport(f"the activation is {name}")
    return _ACTIVATIONS[name]


def _copy_layer(mine: CausalLayer, theirs: Any, *, feed_forward_norm: Any) -> None:
    mine.self_norm.load_state_dict(theirs.norm1.state_dict())
    _copy_attention(mine.self_attention, theirs.self_attn)
    mine.feed_forward[0].load_state_dict(feed_forward_norm.state_dict())
    mine.feed_forward[1].load_state_dict(theirs.feed_forward.w_1.state_dict())
    mine.feed_forward[4].load_state_dict(theirs.feed_forward.w_2.state_dict())


def _copy_attention(mine: Attention, theirs: Any) -> None:
    mine.query.load_state_dict(theirs.linear_q.state_dict())
    mine.output.load_state_dict(theirs.linear_out.state_dict())
    # Ours makes keys and values by one product.
    both = [theirs.linear_k.state_dict(), theirs.linear_v.state_dict()]
    joined = {name: cat([one[name] for one in both]) for name in both[0]}
    mine.key_value.load_state_dict(joined)
