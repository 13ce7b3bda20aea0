"""A Transformer from tokens to the next token: a language model, or with a memory a decoder.

It goes token by token, with a cache of keys and values.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, cat, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from espnet3.errors import ConfigError, suggest
from espnet3.text import count

ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "swish": nn.SiLU}
_FUNCTIONS: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.GELU: gelu,
    nn.ReLU: torch.relu_,
    nn.SiLU: silu,
}
"""The same, of what is needed only once."""
_TABLE = 128  # positions whose sinusoids are made at once
_BLOCK = 8  # steps to make room for at once: between, nothing of the past is copied
_LARGE_OUTPUT = 1000  # outputs for which oneDNN's own layout of the weights is worth a call of it


@dataclass(frozen=True)
class Memory:
    """Input of cross-attention: the encoded speech of each utterance."""

    keys_values: Tensor
    is_real: Tensor
    """`[utterances, 1, 1, frames]`: false where a frame is padding."""

    def select(self, utterances: Tensor) -> "Memory":
        """Return the memory of these utterances alone."""
        return Memory(
            self.keys_values.index_select(0, utterances), self.is_real.index_select(0, utterances)
        )


@dataclass
class _Used:
    """Number of used places of the buffers, shared by the states over them."""

    n: int


@dataclass(frozen=True)
class TransformerState:
    """Keys and values of the tokens so far, by layer.

    Rows stand in groups, equally many in each: in a search, the hypotheses of an utterance. The
    rows of a group share their buffers: each token of each hypothesis has a place there, and a mask
    says which of them are the past of which row. So hypotheses with a common beginning keep it
    once, and choosing among them copies only the mask.

    Adding a token leaves this state as it is: the new one takes places behind its end in the same
    buffers, or makes buffers of its own if those places are taken.
    """

    layers: tuple[Tensor, ...] = ()
    """`[groups, places, size]` each; empty before the first token."""
    sees: Tensor = field(default_factory=lambda: torch.empty(0, 0, 0, dtype=torch.bool), repr=False)
    """`[groups, rows, places]`: whether the token at a place is part of the past of a row."""
    n: int = 0
    """How many places are taken; those behind may hold anything."""
    n_tokens: int = 0
    """Of each row."""
    used: _Used = field(default_factory=lambda: _Used(0), repr=False)
    steps: "tuple[_LayerStep, ...]" = field(default=(), repr=False)
    """The layers as a search calls them, once there is a past."""

    @classmethod
    def of(cls, layers: Sequence[Tensor]) -> "TransformerState":
        """Return the state of rows `[rows, tokens, size]` that share nothing."""
        n_rows, n = layers[0].shape[:2]
        sees = torch.ones(n_rows, 1, n, dtype=torch.bool, device=layers[0].device)
        return cls(tuple(layers), sees, n, n, _Used(n))

    def select(self, indices: Tensor) -> "TransformerState":
        """Return the state of the rows `indices`, which may leave some out and repeat others."""
        if not self.layers:
            return self
        n_groups, n_rows, n_places = self.sees.shape
        groups, n_rows = grouped(indices, n_rows, n_groups)
        sees = self.sees.flatten(0, 1).index_select(0, indices).view(-1, n_rows, n_places)
        if groups is None:
            return replace(self, sees=sees)
        layers = tuple(one.index_select(0, groups) for one in self.layers)
        return replace(self, layers=layers, sees=sees, used=_Used(self.n))

    def with_room(self) -> "TransformerState":
        """Return the same state with free places for one more token in each row."""
        n_rows = self.sees.shape[1]
        end = self.n + n_rows
        n_places = min(self.sees.shape[2], self.layers[0].shape[1])
        is_free = self.used.n == self.n and end <= n_places
        state = self if is_free and not torch.is_grad_enabled() else self._moved()
        own = torch.eye(n_rows, dtype=torch.bool, device=self.sees.device)
        state.sees[:, :, state.n : state.n + n_rows] = own
        state.used.n = state.n + n_rows
        return state

    def grown(self, layers: Sequence[Tensor]) -> "TransformerState":
        """Return the state with one more token in each row, whose places were free."""
        end = self.n + self.sees.shape[1]
        return replace(self, layers=tuple(layers), n=end, n_tokens=self.n_tokens + 1)

    def _moved(self) -> "TransformerState":
        """Return the state in buffers of its own, without the places that no row sees any more."""
        sees = self.sees[..., : self.n]
        is_seen = sees.any(1)
        n = int(is_seen.sum(1).max())
        # Stable, so that the order of the tokens stays.
        order = is_seen.byte().sort(dim=1, descending=True, stable=True).indices[:, :n]
        n_free = _BLOCK * sees.shape[1]
        sees = sees.gather(2, order[:, None].expand(-1, sees.shape[1], -1))
        first = torch.arange(len(order), device=order.device)[:, None]
        layers = []
        for one in self.layers:
            places = (first * one.shape[1] + order).flatten()
            kept = one.flatten(0, 1).index_select(0, places).view(len(one), n, -1)
            # Whatever is in the free places, they are written before they are read.
            layers.append(cat([kept, one.new_empty(len(one), n_free, one.shape[2])], 1))
        return replace(
            self,
            layers=tuple(layers),
            sees=nn.functional.pad(sees, (0, n_free)),
            n=n,
            used=_Used(n),
        )


@dataclass(frozen=True)
class Past:
    """The tokens before, as a layer sees them: the first `n` places of a buffer."""

    buffer: Tensor
    n: int
    sees: Tensor
    """`[groups, rows, n + rows]`, with the new token of each row at the end."""

    def add(self, values: Tensor) -> Tensor:
        """Return the buffer with `[groups, rows, size]` behind the first `n` places."""
        if torch.is_grad_enabled():  # gradients need the values as they were
            return cat([self.buffer[:, : self.n], values], 1)
        self.buffer[:, self.n : self.n + values.shape[1]] = values
        return self.buffer


def grouped(indices: Tensor, n_rows: int, n_groups: int) -> tuple[Tensor | None, int]:
    """Return the groups that chosen rows are of, and how many rows each then has.

    Args:
        indices: of rows, `n_rows` of which are a group.
        n_rows: of each group before.
        n_groups: of which there were so many.

    Returns:
        None instead of the groups if they are the same as before. If unequally many rows of the
        groups are chosen, each row becomes a group.
    """
    owners = indices // n_rows
    groups, counts = torch.unique_consecutive(owners, return_counts=True)
    sizes = set(counts.tolist())
    if len(sizes) != 1:
        groups, sizes = owners, {1}
    is_same = groups.tolist() == list(range(n_groups))
    return None if is_same else groups, sizes.pop()


@dataclass(frozen=True)
class LayerOptions:
    """In what Transformers differ whose layers are otherwise the same.

    Args:
        activation: of the feed-forward networks: gelu, relu or swish.
        norm_eps: what a LayerNorm adds to the variance; 1e-12 in weights of ESPnet2.

    Raises:
        ConfigError: there is no such activation.
    """

    activation: str = "gelu"
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ConfigError(
                key="activation",
                value=self.activation,
                problem=f"but must be one of {', '.join(ACTIVATIONS)}",
                fix=f"{suggest(self.activation, ACTIVATIONS)} Write: activation: gelu",
            )


class TokenTransformer(nn.Module):
    """Embedding, causal layers, and the logits of the next token.

    Args:
        n_tokens: of the vocabulary.
        size: of the vectors; even, and a multiple of `n_heads`.
        n_layers: how many layers.
        n_heads: of each attention.
        feed_forward: size within the feed-forward networks; None: four times `size`.
        dropout: while training.
        memory_size: of encoded frames to look at; None: there are none.
        options: of the layers.
    """

    def __init__(
        self,
        n_tokens: int,
        *,
        size: int,
        n_layers: int,
        n_heads: int,
        feed_forward: int | None = None,
        dropout: float = 0.1,
        memory_size: int | None = None,
        options: LayerOptions = LayerOptions(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
        if size % 2 or n_layers < 1:
            raise ConfigError(
                f"A Transformer of hidden size {size} with {count(n_layers, 'layer')} cannot be "
                "built: the size must be even, and one layer is the least.",
                fix="Write: hidden: 256, n_layers: 2",
            )
        self.size = size
        self.embedding = nn.Embedding(n_tokens, size)
        # Times sqrt(size) in `forward`, a component has a deviation of 1, like the sinusoids.
        nn.init.normal_(self.embedding.weight, std=size**-0.5)
        self.dropout = nn.Dropout(dropout)
        inner = feed_forward or 4 * size
        self.layers = nn.ModuleList(
            CausalLayer(size, n_heads, inner, dropout, memory_size, options)
            for _ in range(n_layers)
        )
        # In pre-norm layers the sum itself is never normalised.
        self.norm = nn.LayerNorm(size, eps=options.norm_eps)
        self.output = nn.Linear(size, n_tokens)
        self._frozen: Frozen | None = None

    def freeze(self) -> None:
        """Let searches keep weights in layouts of their own: they do not change any more."""
        self._frozen = Frozen(self.layers, self.output)

    def forward(
        self, tokens: Tensor, state: TransformerState, memories: Sequence[Memory | None] = ()
    ) -> tuple[Tensor, TransformerState]:
        """Return the logits `[rows, positions, n_tokens]` behind each token, and the new state.

        Args:
            tokens: `[rows, positions]`; after a state with tokens, one position. Negative ids, as
                padding has them, count as token 0: nothing real looks at them.
            state: of the tokens before.
            memories: one for each layer.
        """
        x = self.embedding(tokens.clamp_min(0)) * math.sqrt(self.size)
        x = x + positions(tokens.shape[1], self.size, state, like=x)
        frozen = None if torch.is_grad_enabled() else self._frozen
        x, state = through_layers(self.layers, self.dropout(x), state, memories, frozen)
        output = self.output if frozen is None else frozen.output
        return output(self.norm(x)), state

    def step(
        self, tokens: Tensor, state: TransformerState, memories: Sequence[Memory | None] = ()
    ) -> tuple[Tensor, TransformerState]:
        """Return log-probabilities `[rows, n_tokens]` behind one more token in each row."""
        logits, state = self(tokens[:, None], state, memories)
        # Half precision would make ties of hypotheses that differ.
        return torch.log_softmax(logits[:, 0].float(), -1), state


def through_layers(
    layers: nn.ModuleList,
    x: Tensor,
    state: TransformerState,
    memories: Sequence[Memory | None] = (),
    frozen: "Frozen | None" = None,
) -> tuple[Tensor, TransformerState]:
    """Return `[rows, positions, size]` behind causal layers, and the state with the new tokens.

    Args:
        layers: each a `CausalLayer`.
        x: of the same shape; after a state with tokens, one position.
        state: of the tokens before.
        memories: one for each layer.
        frozen: the same layers, if their weights do not change any more.
    """
    shape, sees = x.shape, state.sees
    if state.layers:
        state = state.with_room()
        sees = state.sees[..., : state.n + state.sees.shape[1]]
        # The rows of a group become one list of queries.
        x = x.view(*sees.shape[:2], -1)
        if not torch.is_grad_enabled() and not state.steps:
            steps = _steps_of(layers) if frozen is None else frozen.steps
            state = replace(state, steps=steps)
        if state.steps:
            return _through_steps(x, state, sees, memories).view(shape), state.grown(state.layers)
    kept: list[Tensor] = []
    for index, layer in enumerate(layers):
        past = Past(state.layers[index], state.n, sees) if state.layers else None
        x, present = layer(x, past, memories[index] if memories else None)
        kept.append(present)
    return x.view(shape), state.grown(kept) if state.layers else TransformerState.of(kept)


class Frozen:
    """The layers and the output of a network whose weights do not change any more.

    A search multiplies a few rows by them in each step, and waits for the weights: they are copied
    into layouts that such products read in less time. That is done on first use on each device.
    """

    def __init__(self, layers: nn.ModuleList, output: nn.Linear) -> None:
        self._layers, self._output = layers, output
        self._device: torch.device | None = None
        self._steps: tuple[_LayerStep, ...] = ()
        self._product: Callable[[Tensor], Tensor] = output

    def __reduce__(self) -> tuple[Any, ...]:
        # Layouts of oneDNN cannot be pickled.
        return Frozen, (self._layers, self._output)

    @property
    def steps(self) -> "tuple[_LayerStep, ...]":
        """The layers; none if one has parts of other kinds."""
        self._make()
        return self._steps

    def output(self, x: Tensor) -> Tensor:
        """Return the output of `[..., size]`."""
        self._make()
        return self._product(x)

    def _make(self) -> None:
        device = self._output.weight.device
        if device == self._device:
            return
        with torch.inference_mode(False), torch.no_grad():
            self._steps = _steps_of(self._layers, is_frozen=True)
            self._product = _output_of(self._output)
        self._device = device


def _output_of(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """Return a layer with many outputs as a function that is fast for a few rows."""
    weight, bias = layer.weight.detach(), layer.bias
    is_plain = weight.device.type == "cpu" and weight.dtype == torch.float32
    if not is_plain or len(weight) < _LARGE_OUTPUT:
        return layer
    # PyTorch's compiler calls these; whether they are there depends on how it was built.
    try:
        operations = torch.ops.mkldnn
        packed = operations._reorder_linear_weight(weight, None)
        product = operations._linear_pointwise
        product(weight[:1], packed, bias, "none", [], "")
    except (AttributeError, RuntimeError):
        return layer
    return lambda x: product(x, packed, bias, "none", [], "")


def _steps_of(layers: nn.ModuleList, *, is_frozen: bool = False) -> "tuple[_LayerStep, ...]":
    """Return the layers without what only training needs; none if one has parts of other kinds."""
    if not all(_LayerStep.fits(layer) for layer in layers):
        return ()
    return tuple(_LayerStep(layer, is_frozen) for layer in layers)  # type: ignore[arg-type]


def _through_steps(
    x: Tensor, state: TransformerState, sees: Tensor, memories: Sequence[Memory | None]
) -> Tensor:
    """Return `[groups, rows, size]` behind all layers, and write their keys and values."""
    shape = x.shape
    x = x.flatten(0, 1)  # products of matrices have less to find out
    # A mask of truth values would be made into this one in each attention.
    own_bias = _bias(sees[:, None], like=state.layers[0])
    # All layers look at the same frames.
    memory_bias = next(
        (_bias(m.is_real, like=m.keys_values) for m in memories if m is not None), None
    )
    for index, step in enumerate(state.steps):
        seen = state.layers[index][:, : sees.shape[2]]
        x = step.look_back(x, seen, own_bias)
        memory = memories[index] if memories else None
        if memory is not None:
            x = step.look_at(x, memory, memory_bias)
        x = step.feed_forward(x)
    return x.view(shape)


def _bias(sees: Tensor, *, like: Tensor) -> Tensor:
    """Return what is added to the scores of an attention: 0 where it may look."""
    bias = torch.zeros(sees.shape, dtype=like.dtype, device=like.device)
    return bias.masked_fill_(~sees, float("-inf"))


class Attention(nn.Module):
    """Attention with several heads; keys and values are made apart, so that they can be kept."""

    def __init__(self, size: int, n_heads: int, memory_size: int, dropout: float) -> None:
        super().__init__()
        if n_heads < 1 or size % n_heads:
            raise ConfigError(
                f"{n_heads} attention heads cannot share a hidden size of {size} evenly.",
                fix="Write "
                f"a hidden size that n_heads divides, such as hidden: {64 * max(1, n_heads)}",
            )
        self.n_heads = n_heads
        self.dropout = dropout
        self.query = nn.Linear(size, size)
        self.key_value = nn.Linear(memory_size, 2 * size)
        self.output = nn.Linear(size, size)

    def keys_values(self, memory: Tensor) -> Tensor:
        """Return the keys and values of `[rows, positions, size]`.

        Both are in one tensor, `[rows, positions, 2 * size]`, made by one product.
        """
        both: Tensor = self.key_value(memory)
        return both

    def forward(
        self,
        queries: Tensor,
        keys_values: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Attend from `[rows, positions, size]`; `mask` is true where it may look."""
        keys, values = keys_values.chunk(2, -1)
        attended = scaled_dot_product_attention(
            self._split(self.query(queries)),
            self._split(keys),
            self._split(values),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal,
        )
        return self.output(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split(self, values: Tensor) -> Tensor:
        return values.view(*values.shape[:2], self.n_heads, -1).transpose(1, 2)


class CausalLayer(nn.Module):
    """Attention to the tokens so far, to the memory if there is one, and a feed-forward network.

    Each is applied to the normalised input and added to it (pre-norm).

    Args:
        size: of the vectors.
        n_heads: of both attentions.
        feed_forward: size within the feed-forward network.
        dropout: while training.
        memory_size: of the encoded frames; None: there is no memory.
        options: activation and eps.
    """

    def __init__(
        self,
        size: int,
        n_heads: int,
        feed_forward: int,
        dropout: float,
        memory_size: int | None = None,
        options: LayerOptions = LayerOptions(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__()
        eps = options.norm_eps
        self.self_norm = nn.LayerNorm(size, eps=eps)
        self.self_attention = Attention(size, n_heads, size, dropout)
        self.memory_norm = self.memory_attention = None
        if memory_size is not None:
            self.memory_norm = nn.LayerNorm(size, eps=eps)
            self.memory_attention = Attention(size, n_heads, memory_size, dropout)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(size, eps=eps),
            nn.Linear(size, feed_forward),
            ACTIVATIONS[options.activation](),
            nn.Dropout(dropout),
            nn.Linear(feed_forward, size),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, past: Past | None, memory: Memory | None) -> tuple[Tensor, Tensor]:
        """Return the output, and the keys and values of all tokens so far.

        Args:
            x: `[rows, positions, size]`; with a past, `[groups, rows, size]`, one token of each.
            past: keys and values of the tokens before.
            memory: of fewer utterances than there are rows if the rows of each stand together.
        """
        normed = self.self_norm(x)
        present = self.self_attention.keys_values(normed)
        if past is None:
            attended = self.self_attention(normed, present, is_causal=True)
        else:
            present = past.add(present)
            seen = present[:, : past.sees.shape[2]]
            attended = self.self_attention(normed, seen, past.sees[:, None])
        x = x + self.dropout(attended)
        if memory is not None:
            x = x + self.dropout(self._look_at(x, memory))
        return x + self.dropout(self.feed_forward(x)), present

    def _look_at(self, x: Tensor, memory: Memory) -> Tensor:
        assert self.memory_norm is not None
        assert self.memory_attention is not None
        # The rows of an utterance become one list of queries: its memory need not be copied.
        together = self.memory_norm(x).view(len(memory.is_real), -1, x.shape[-1])
        attended: Tensor = self.memory_attention(together, memory.keys_values, memory.is_real)
        return attended.view_as(x)


class _LayerStep:
    """A `CausalLayer` for one more token of each row, in a search.

    The same numbers, without dropout and without the calls of a dozen small modules, which take
    longer than what they compute for the few rows of an utterance. All rows are `[rows, size]`.
    """

    def __init__(self, layer: CausalLayer, is_frozen: bool) -> None:
        before, inner, activation, _, outer = layer.feed_forward
        self._self = _AttentionStep(layer.self_norm, layer.self_attention, is_frozen)
        self._memory = None
        if layer.memory_norm is not None and layer.memory_attention is not None:
            self._memory = _AttentionStep(layer.memory_norm, layer.memory_attention, is_frozen)
        assert isinstance(before, nn.LayerNorm)
        assert isinstance(inner, nn.Linear)
        assert isinstance(outer, nn.Linear)
        self._norm = _norm_of(before)
        self._inner, self._outer = _matrix_of(is_frozen, inner), _matrix_of(is_frozen, outer)
        self._activation = _FUNCTIONS[type(activation)]

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        """Tell whether the parts of a layer are what they are called here."""
        kinds = {nn.Linear, nn.LayerNorm, nn.Dropout, nn.Sequential, Attention, *_FUNCTIONS}
        return type(layer) is CausalLayer and all(
            type(part) in kinds for part in layer.modules() if part is not layer
        )

    def look_back(self, x: Tensor, seen: Tensor, bias: Tensor) -> Tensor:
        """Attend to the tokens so far, the last of which are written into `seen`."""
        queries, new = self._self.all_of(x)
        new = new.view(len(seen), -1, seen.shape[2])
        seen[:, -new.shape[1] :] = new
        return self._self(queries, seen, bias) + x

    def look_at(self, x: Tensor, memory: Memory, bias: Tensor | None) -> Tensor:
        """Attend to the encoded speech of each utterance."""
        assert self._memory is not None
        return self._memory(self._memory.queries_of(x), memory.keys_values, bias) + x

    def feed_forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer."""
        hidden = _product(torch.layer_norm(x, *self._norm), self._inner)
        return _product(self._activation(hidden), self._outer) + x


class _AttentionStep:
    """An `Attention` and the norm before it."""

    def __init__(self, norm: nn.LayerNorm, attention: Attention, is_frozen: bool) -> None:
        self._norm = _norm_of(norm)
        self._n_heads = attention.n_heads
        self._size = attention.query.out_features
        self._query = _matrix_of(is_frozen, attention.query)
        self._output = _matrix_of(is_frozen, attention.output)
        self._key_value = _matrix_of(is_frozen, attention.key_value)
        self._all = None
        if is_frozen and attention.key_value.in_features == self._size:
            self._all = _matrix_of(True, attention.query, attention.key_value)

    def queries_of(self, x: Tensor) -> Tensor:
        """Return the queries of `[rows, size]`."""
        return _product(torch.layer_norm(x, *self._norm), self._query)

    def all_of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries, and the keys and values, of `[rows, size]`."""
        normed = torch.layer_norm(x, *self._norm)
        if self._all is None:
            return _product(normed, self._query), _product(normed, self._key_value)
        queries, keys_values = _product(normed, self._all).tensor_split((self._size,), 1)
        return queries, keys_values

    def __call__(self, queries: Tensor, keys_values: Tensor, bias: Tensor | None) -> Tensor:
        # The rows of an utterance become one list of queries: its memory need not be copied.
        n_groups, n_places = keys_values.shape[:2]
        queries = queries.view(n_groups, -1, self._n_heads, self._size // self._n_heads)
        both = keys_values.view(n_groups, n_places, 2, self._n_heads, -1)
        keys, values = both.permute(2, 0, 3, 1, 4).unbind(0)
        attended = scaled_dot_product_attention(queries.transpose(1, 2), keys, values, bias)
        return _product(attended.transpose(1, 2).reshape(-1, self._size), self._output)


_Matrix = tuple[Tensor, Tensor]
"""Bias, and weights `[inputs, outputs]`."""


def _product(x: Tensor, matrix: _Matrix) -> Tensor:
    return torch.addmm(matrix[0], x, matrix[1])


def _matrix_of(is_frozen: bool, *layers: nn.Linear) -> _Matrix:
    """Return the weights of one layer, or of frozen ones with the same input as one."""
    if not is_frozen:
        return layers[0].bias, layers[0].weight.t()
    weights = cat([layer.weight.detach() for layer in layers])
    # Of few rows, the product with weights that lie this way round takes up to a quarter less.
    return cat([layer.bias.detach() for layer in layers]), weights.t().contiguous()


def _norm_of(layer: nn.LayerNorm) -> tuple[Sequence[int], Tensor, Tensor, float]:
    return layer.normalized_shape, layer.weight, layer.bias, layer.eps


def sinusoids(n: int, size: int, *, start: int = 0, like: Tensor) -> Tensor:
    """Return `[n, size]` for the positions `start` to `start + n - 1`.

    The wavelengths are a geometric series from 2 pi to 20000 pi. Nothing is stored, so no length
    is too long, and a position has the same values whatever comes before or behind it.

    Args:
        n: how many positions.
        size: of each vector; even.
        start: the first position.
        like: a tensor on the device and of the type that are wanted.

    Example:
        >>> sinusoids(2, 2, like=torch.zeros(1)).tolist()[0]
        [0.0, 1.0]
    """
    rates = torch.exp(
        torch.arange(0, size, 2, device=like.device, dtype=torch.float32)
        * (-math.log(10000.0) / size)
    )
    # In half precision integers above 2048 are rounded, and neighbours would get the same vector.
    places = torch.arange(start, start + n, device=like.device, dtype=torch.float32)
    angles = places[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(like.dtype)


def positions(n: int, size: int, state: TransformerState, *, like: Tensor) -> Tensor:
    """Return the `sinusoids` of the `n` tokens behind a state."""
    place = state.n_tokens
    if n > 1:
        return sinusoids(n, size, start=place, like=like)
    # A search needs one in each step.
    first = place - place % _TABLE
    return _table(size, first, like.device, like.dtype)[place - first : place - first + 1]


@lru_cache(maxsize=64)
def _table(size: int, first: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    # Else a training could not use what a search has made.
    with torch.inference_mode(False):
        like = torch.empty(0, device=device, dtype=dtype)
        return sinusoids(_TABLE, size, start=first, like=like)
