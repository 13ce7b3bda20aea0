"""ESPnet2's encoders: utterances in batches where that gives what single ones give."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from espnet3.components.models.conformer import DepthwiseConv
from espnet3.components.models.frames import valid_frames

logger = logging.getLogger(__name__)

_PROBE_SECONDS = (1.0, 0.45, 0.8)
"""Of the noise that tells whether padding changes results."""
_ROUNDING = 1000
"""Differences of so many times the precision are rounding; those by padding are far larger."""


@dataclass(frozen=True)
class _BatchSize:
    """How much is encoded at once."""

    seconds: float
    """Of audio, with padding."""
    padding: float
    """The largest share of padding."""


_ON_CPU = _BatchSize(seconds=12.0, padding=0.1)
"""Larger batches drop out of the caches, and padding takes as long as speech."""
_ON_GPU = _BatchSize(seconds=600.0, padding=0.5)


class Encoding:
    """Encodes utterances with a model of ESPnet2.

    What its encoder has of padding is corrected: features are made of each utterance alone, since
    the STFT reflects at the end of the audio; the subsampling's mask has the lengths that single
    utterances get; and convolutions over the frames see zeros behind the end. Whether a padded
    batch then gives what single utterances give is tried once, with noise. If not, each is encoded
    alone, as position encodings of `rel_pos_type: legacy` demand.

    Args:
        model: Of ESPnet2, in eval mode and on its device.
        sample_rate: Of its audio.
    """

    def __init__(self, model: Any, sample_rate: int) -> None:
        self._model = model
        self._sample_rate = sample_rate
        self._padding = _Padding()
        _use_fast_layers(model.encoder)
        self.is_batched = self._tries_batches()

    def __call__(self, batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the encoded frames of utterances, padded, and how many each has."""
        encoded: list[Tensor] = [batch[0]] * len(batch)
        for places in self._batches([len(one) for one in batch]):
            found = self._encode([batch[place] for place in places])
            for place, one in zip(places, found, strict=True):
                encoded[place] = one
        lengths = torch.tensor([len(one) for one in encoded], device=encoded[0].device)
        return nn.utils.rnn.pad_sequence(encoded, batch_first=True), lengths

    def _batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return the places of utterances that are encoded together, of like lengths."""
        if not self.is_batched:
            return [[place] for place in range(len(lengths))]
        is_cpu = next(self._model.parameters()).device.type == "cpu"
        size = _ON_CPU if is_cpu else _ON_GPU
        batches: list[list[int]] = []
        real = 0
        for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
            longest = lengths[batches[-1][0]] if batches else 0
            padded = longest * (len(batches[-1]) + 1) if batches else 0
            is_much = padded - real - lengths[place] > size.padding * padded
            if not batches or is_much or padded > size.seconds * self._sample_rate:
                batches.append([])
                real = 0
            batches[-1].append(place)
            real += lengths[place]
        return batches

    def _encode(self, batch: Sequence[Tensor]) -> list[Tensor]:
        lengths = torch.tensor([len(one) for one in batch], device=batch[0].device)
        speech = nn.utils.rnn.pad_sequence(list(batch), batch_first=True)
        encoded, n_frames = self._model.encode(speech=speech, speech_lengths=lengths)[:2]
        # With intermediate outputs of the encoder, the last is the first of a tuple.
        frames = encoded[0] if isinstance(encoded, tuple) else encoded
        return [one[:n] for one, n in zip(frames, n_frames.tolist(), strict=True)]

    def _tries_batches(self) -> bool:
        """Correct the padding, and tell whether a batch gives what single utterances give."""
        undo = _correct(self._model, self._padding)
        try:
            with torch.inference_mode():
                problem = self._problem()
        except Exception as error:
            problem = f"a padded batch raises {type(error).__name__}: {error}"
        if problem is None:
            logger.info("encoding in batches: padding does not change the results of this model")
            return True
        undo()
        logger.info("encoding one by one: %s", problem)
        return False

    def _problem(self) -> str | None:
        """Return what is different in a batch of noise, if anything is."""
        parameter = next(self._model.parameters())
        generator = torch.Generator().manual_seed(0)
        noise = [
            (0.1 * torch.randn(int(seconds * self._sample_rate), generator=generator)).to(
                parameter.device
            )
            for seconds in _PROBE_SECONDS
        ]
        alone = [self._encode([one])[0] for one in noise]
        together = self._encode(noise)
        n_alone, n_together = ([len(one) for one in some] for some in (alone, together))
        if n_alone != n_together:
            return f"in a padded batch, utterances have {n_together} frames instead of {n_alone}"
        pairs = list(zip(alone, together, strict=True))
        differing = max(float((one - other).abs().max()) for one, other in pairs)
        largest = max(float(one.abs().max()) for one in alone)
        # Written this way round, NaN is a difference as well.
        if differing <= _ROUNDING * torch.finfo(alone[0].dtype).eps * largest:
            return None
        return f"padding changes results by {differing / largest:.1g} of the largest{self._why()}"

    def _why(self) -> str:
        names = {type(module).__name__ for module in self._model.encoder.modules()}
        odd = sorted(name for name in names if name.startswith("Legacy"))
        return f" ({odd[0]} depends on the longest of a batch)" if odd else ""


class _Padding:
    """Hooks that tell the modules of an encoder which frames of its batch are padding."""

    def __init__(self) -> None:
        self._lengths: Tensor | None = None
        self._is_real: Tensor | None = None

    def begin(self, encoder: nn.Module, inputs: Any) -> None:
        """Take the lengths of the features from the call of the encoder."""
        self._is_real = None
        self._lengths = inputs[1] if len(inputs[0]) > 1 else None

    def correct_mask(self, subsampling: nn.Module, inputs: Any, output: Any) -> Any:
        """Put the lengths that single utterances get into the mask of the subsampling."""
        if self._lengths is None:
            return None
        lengths = self._lengths
        for layer in subsampling.modules():
            if isinstance(layer, nn.Conv2d):
                size, stride, padding = (one[0] for one in _geometry(layer))
                lengths = (lengths + 2 * padding - size) // stride + 1
        frames, *others = output if isinstance(output, tuple) else (output,)
        # With position encodings, frames are the first of two.
        n_frames = (frames[0] if isinstance(frames, tuple) else frames).shape[1]
        self._is_real = valid_frames(lengths, n_frames)
        has_mask = len(others) == 1 and getattr(others[0], "dtype", None) == torch.bool
        return (frames, self._is_real[:, None]) if has_mask else None

    def silence(self, convolution: nn.Module, inputs: Any) -> Any:
        """Return `[batch, channels, frames]` with zeros behind the end of each utterance."""
        is_real = self._is_real
        if is_real is None or inputs[0].shape[-1] != is_real.shape[1]:
            return None
        return (inputs[0].masked_fill(~is_real[:, None], 0.0), *inputs[1:])


def _correct(model: Any, padding: _Padding) -> Callable[[], None]:
    """Put hooks into a model, and return a function that takes them out."""
    encoder, frontend = model.encoder, model.frontend
    if frontend is not None:
        model.frontend = _OneByOne(frontend)
    hooks = [encoder.register_forward_pre_hook(padding.begin)]
    embed = getattr(encoder, "embed", None)
    if isinstance(embed, nn.Module):
        hooks.append(embed.register_forward_hook(padding.correct_mask))
        inside = set(embed.modules())
        hooks += [
            layer.register_forward_pre_hook(padding.silence)
            for layer in encoder.modules()
            if isinstance(layer, nn.Conv1d) and layer.kernel_size != (1,) and layer not in inside
        ]

    def undo() -> None:
        model.frontend = frontend
        for hook in hooks:
            hook.remove()

    return undo


def _geometry(layer: nn.Conv2d) -> tuple[Any, Any, Any]:
    padding = (0, 0) if isinstance(layer.padding, str) else layer.padding
    return layer.kernel_size, layer.stride, padding


class _OneByOne(nn.Module):
    """A frontend that gets utterances one by one, and returns their features padded."""

    def __init__(self, frontend: nn.Module) -> None:
        super().__init__()
        self.frontend = frontend

    def forward(self, speech: Tensor, lengths: Tensor) -> Any:
        if len(speech) == 1:
            return self.frontend(speech, lengths)
        found = [
            self.frontend(speech[i : i + 1, :n], lengths[i : i + 1])
            for i, n in enumerate(lengths.tolist())
        ]
        features = nn.utils.rnn.pad_sequence([one[0][0] for one in found], batch_first=True)
        return features, torch.cat([one[1] for one in found])


def _use_fast_layers(encoder: nn.Module) -> None:
    """Put layers in place that compute the same from the same weights in less time."""
    for child in encoder.modules():
        if type(child) is nn.Conv1d and child.groups == child.in_channels > 1:
            child.__class__ = DepthwiseConv  # the same in all but the way to compute it
        if type(child).__name__ in _ATTENTIONS:
            child.register_forward_pre_hook(_without_mask)
    for child in getattr(encoder, "embed", nn.Module()).modules():
        if type(child) is nn.Sequential:
            _join_activations(child)


_ATTENTIONS = (
    "MultiHeadedAttention",
    "RelPositionMultiHeadedAttention",
    "LegacyRelPositionMultiHeadedAttention",
)
"""Of ESPnet2, which take None for a mask, as the last argument."""


def _without_mask(attention: nn.Module, inputs: Any) -> Any:
    """Leave out the mask of an attention of single utterances: it hides nothing."""
    mask = inputs[-1]
    is_mask = isinstance(mask, Tensor) and mask.dtype == torch.bool
    # Elsewhere than on a CPU, to ask would wait for the results so far.
    if not is_mask or mask.device.type != "cpu" or not bool(mask.all()):
        return None
    return (*inputs[:-1], None)


def _join_activations(layers: nn.Sequential) -> None:
    """Let convolutions apply the ReLU behind them, before their output leaves the caches."""
    for place, (layer, after) in enumerate(pairwise(list(layers))):
        if type(layer) is nn.Conv2d and type(after) is nn.ReLU:
            layer.__class__ = _RectifiedConv  # with the same weights by the same names
            layers[place + 1] = nn.Identity()


_HAS_ONEDNN = all(
    hasattr(torch.ops.mkldnn, name)
    for name in ("_reorder_convolution_weight", "_convolution_pointwise")
)
"""What PyTorch's compiler calls; whether it is there depends on how PyTorch was built."""


class _RectifiedConv(nn.Conv2d):
    """A convolution whose weights do not change any more, and the ReLU behind it."""

    def forward(self, input: Tensor) -> Tensor:
        """Return `[batch, channels, height, width]`."""
        is_plain = input.device.type == "cpu" and input.dtype == self.weight.dtype == torch.float32
        is_known = self.padding_mode == "zeros" and not isinstance(self.padding, str)
        if not (is_plain and is_known and _HAS_ONEDNN) or torch.is_grad_enabled():
            return torch.relu_(super().forward(input))
        sizes = (list(self.padding), list(self.stride), list(self.dilation), self.groups)
        packed = self.__dict__.get("packed")
        if packed is None:
            with torch.inference_mode(False), torch.no_grad():
                pack = torch.ops.mkldnn._reorder_convolution_weight
                packed = self.packed = pack(self.weight.detach(), *sizes, list(input.shape))
        product = torch.ops.mkldnn._convolution_pointwise
        found: Tensor = product(input, packed, self.bias, *sizes, "relu", [], "")
        return found

    def __getstate__(self) -> dict[str, Any]:
        # Layouts of oneDNN cannot be pickled.
        return {name: value for name, value in self.__dict__.items() if name != "packed"}
