"""Decode with a model of ESPnet2: in `infer`, and in Python."""

import logging
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from espnet3.errors import ConfigError
from espnet3.systems.asr.inference import Candidate, Recognition, to_batch
from espnet3.systems.asr.inference import output_fn as output_fn  # the fields of a `Recognition`
from espnet3.systems.asr.trained_model import read_training_config
from espnet3.systems.espnet2.imported_networks import CannotImport
from espnet3.systems.espnet2.package import check_installed, inference_class, installed_version
from espnet3.systems.espnet2.search import Decoding, ESPnet2Search, JointModel, fitting_search
from espnet3.systems.espnet2.training_config import (
    read_config,
    read_token_list,
    resolve_paths,
    sample_rate_of,
    training_values,
    warn_of_unknown,
    with_defaults,
)
from espnet3.systems.espnet2.weights import network_weights, put_weights, read_weights

logger = logging.getLogger(__name__)

OURS, THEIRS = "espnet3", "espnet2"
ESPNET2_MODEL = "espnet3.systems.espnet2.model.ESPnet2Model"
# ESPnet2's names of the parts of a score, and ours.
_PARTS = {"decoder": "attention"}
_NOT_SCORES = ("length_bonus",)


class ESPnet2Inference:
    """Recognises speech with a model that ESPnet2 trained.

    Options left out have ESPnet2's defaults. Paths inside of ESPnet2's config are searched for from
    the working folder, and then from the folders above the config, one of which is its recipe.

    Args:
        task: `asr`.
        config: ESPnet2's `config.yaml` of the training; or that of ESPnet3, of an `ESPnet2Model`.
        weights: Its `.pth`, such as `valid.acc.ave.pth`; or its `.safetensors`.
        device: `cpu`, or a GPU, such as `cuda:0`.
        decoder: `espnet3`: our joint search, on the same weights, a batch of utterances at once.
            `espnet2`: its own, one utterance after the other. Left out: the first where the model
            fits, and else the second; the log says why.
        beam_size: Hypotheses of an utterance that are followed.
        ctc_weight: Of CTC; the rest is attention's.
        lm_train_config: The `config.yaml` of a language model of ESPnet2.
        lm_file: Its `.pth`.
        lm_weight: Of the language model.
        penalty: Added for each token.
        maxlenratio: The most tokens, as a share of the frames; 0: as many as frames; negative: so
            many tokens.
        minlenratio: The least tokens, likewise.
        nbest: Texts to keep of each utterance.
        token_type: `char`, `bpe`, ...; left out: that of the config.
        bpemodel: Left out: that of the config.
        options: Further arguments of ESPnet2's own `Speech2Text`; most need its own search.
        trust_remote_code: Unpickle a `.pth` that holds more than tensors. That can run code.

    Raises:
        ConfigError: A file is missing, or options do not fit the model.
        MissingExtraError: `espnet` is not installed.

    Example:
        >>> model = ESPnet2Inference(           # doctest: +SKIP
        ...     task="asr", config="exp/asr/config.yaml", weights="exp/asr/valid.acc.ave.pth"
        ... )
        >>> model("speech.wav").text            # doctest: +SKIP
        'one two three'
    """

    def __init__(  # noqa: PLR0913 - the options that users of ESPnet2 know by these names
        self,
        task: str,
        config: str | os.PathLike[str],
        weights: str | os.PathLike[str],
        device: str = "cpu",
        *,
        decoder: str | None = None,
        beam_size: int | None = None,
        ctc_weight: float | None = None,
        lm_train_config: str | os.PathLike[str] | None = None,
        lm_file: str | os.PathLike[str] | None = None,
        lm_weight: float | None = None,
        penalty: float | None = None,
        maxlenratio: float | None = None,
        minlenratio: float | None = None,
        nbest: int | None = None,
        token_type: str | None = None,
        bpemodel: str | os.PathLike[str] | None = None,
        options: Mapping[str, Any] | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        given: dict[str, Any] = {
            "beam_size": beam_size, "ctc_weight": ctc_weight, "lm_weight": lm_weight,
            "penalty": penalty, "maxlenratio": maxlenratio, "minlenratio": minlenratio,
            "nbest": nbest,
        }  # fmt: skip
        self.decoding = Decoding(**{k: v for k, v in given.items() if v is not None})
        _check_task(task)
        _check_decoding(self.decoding)
        _check_decoder(decoder)
        _check_lm(lm_train_config, lm_file, lm_weight)
        check_installed()
        self.device = torch.device(device)
        self._options = dict(options or {})
        tokenizing = {"token_type": token_type, "bpemodel": bpemodel and os.fspath(bpemodel)}
        arguments = {
            **{field.name: getattr(self.decoding, field.name) for field in fields(Decoding)},
            **{key: value for key, value in tokenizing.items() if value is not None},
            **self._options,
        }
        model = _Trained(task, config, weights, "weights", trust_remote_code)
        lm = None
        if lm_train_config is not None and lm_file is not None:
            lm = _Trained("lm", lm_train_config, lm_file, "lm_file", trust_remote_code)
        self._theirs = _build(model, lm, arguments, device)
        self.tokens = tuple(read_token_list(model.values, str(config)))
        self.sample_rate = sample_rate_of(model.values)
        self._joint, self._search = self._choose(decoder, with_lm=lm is not None)

    @property
    def decoder(self) -> str:
        """Which search decodes: `espnet3` or `espnet2`."""
        return THEIRS if self._search is None else OURS

    def __call__(self, speech: Any, sample_rate: int | Sequence[int] | None = None) -> Any:
        """Return a `Recognition`, or a list of them for a list; see `Recognizer`."""
        many = isinstance(speech, list | tuple)
        batch = to_batch(speech if many else [speech], sample_rate, self.sample_rate)
        with torch.inference_mode():
            results = self._recognize([torch.from_numpy(one) for one in batch])
        return results if many else results[0]

    def _recognize(self, batch: Sequence[torch.Tensor]) -> list[Recognition]:
        if self._joint is None or self._search is None:
            return [self._recognize_by_theirs(one) for one in batch]
        encoded, lengths = self._joint.encode([one.to(self.device) for one in batch])
        found = self._search(self._joint, encoded, lengths)
        return [
            Recognition.of([self._candidate(one.tokens, one.score, one.scores) for one in some])
            for some in found
        ]

    def _recognize_by_theirs(self, speech: torch.Tensor) -> Recognition:
        found = self._theirs(speech.numpy())
        # It has none where a length is asked for that cannot be reached.
        if not found:
            return Recognition.of([Candidate("", (), -math.inf)])
        candidates = []
        for text, tokens, _, hypothesis in found:
            scores = getattr(hypothesis, "scores", None) or {}
            parts = {_PARTS.get(k, k): float(v) for k, v in scores.items() if k not in _NOT_SCORES}
            words = text if text is not None else " ".join(tokens)
            candidates.append(Candidate(words, tuple(tokens), float(hypothesis.score), parts))
        return Recognition.of(candidates)

    def _candidate(
        self, ids: Sequence[int], score: float, scores: Mapping[str, float]
    ) -> Candidate:
        # Without CTC a search may propose blank, which is no part of a text.
        tokens = tuple(self.tokens[id] for id in ids if id != 0)
        tokenizer = getattr(self._theirs, "tokenizer", None)
        text = " ".join(tokens) if tokenizer is None else tokenizer.tokens2text(tokens)
        return Candidate(text, tokens, score, dict(scores))

    def _choose(
        self, decoder: str | None, *, with_lm: bool
    ) -> tuple[JointModel | None, ESPnet2Search | None]:
        """Return our search with the model, or nothing where ESPnet2's own is to decode."""
        if decoder == THEIRS:
            return None, None
        scorers = getattr(getattr(self._theirs, "beam_search", None), "scorers", None) or {}
        lm = scorers.get("lm") if with_lm else None
        try:
            joint, search = fitting_search(
                self._theirs.asr_model, lm, self.tokens, self.decoding, tuple(self._options)
            )
        except CannotImport as reason:
            if decoder == OURS:
                raise ConfigError(
                    key="decoder",
                    value=OURS,
                    problem=f"but this model cannot be searched by it: {reason}",
                    fix="Write decoder: espnet2, or leave it out.",
                ) from None
            logger.info("decoding by ESPnet2's own search, one by one: %s", reason)
            return None, None
        logger.info("decoding by our joint search on the weights of ESPnet2")
        return joint.to(str(self.device)), search


class _Trained:
    """A training of ESPnet2: its config, made complete, and its weights."""

    def __init__(
        self,
        task: str,
        config: str | os.PathLike[str],
        weights: str | os.PathLike[str],
        key: str,
        trust_remote_code: bool,
    ) -> None:
        path = Path(config)
        name = "config" if key == "weights" else "lm_train_config"
        values = read_config(path, name)
        # Files first: to import espnet2 takes half a minute.
        block = values.get("model")
        if isinstance(block, Mapping):  # ESPnet2's own has a text there, if anything
            values = _values_of_ours(block, path, weights)
            self.state = network_weights(weights)
        else:
            self.state = read_weights(weights, key=key, trust_remote_code=trust_remote_code)
        self.source = os.fspath(weights)
        self.config = path
        values = resolve_paths(values, path)
        read_token_list(values, str(path))
        warn_of_unknown(task, values, str(path))
        self.values = with_defaults(task, values)


def _values_of_ours(
    block: Mapping[str, Any], config: Path, weights: str | os.PathLike[str]
) -> dict[str, Any]:
    """Return the keys of ESPnet2 of a model that was trained by ESPnet3.

    Raises:
        ConfigError: The training was of another model.
    """
    if block.get("_target_") != ESPNET2_MODEL:
        raise ConfigError(
            key="config",
            value=str(config),
            problem=f"which is the training of a {block.get('_target_')}, no model of ESPnet2",
            fix="Write: _target_: espnet3.systems.asr.inference.Speech2Text, with these weights.",
        )
    keys = dict(read_training_config(Path(weights))["model"])
    file = keys.pop("config", None)
    task = str(keys.pop("task"))
    del keys["_target_"]
    return training_values(task, file, keys)


def _build(model: _Trained, lm: _Trained | None, arguments: dict[str, Any], device: str) -> Any:
    """Return ESPnet2's own recogniser with the weights that we have read."""
    import yaml

    kind = inference_class("asr")
    with tempfile.TemporaryDirectory(prefix="espnet2-") as folder:
        for name, one in (("asr", model), ("lm", lm)):
            if one is not None:
                text = yaml.safe_dump(_plain(one.values), allow_unicode=True)
                Path(folder, f"{name}.yaml").write_text(text, encoding="utf-8")
                arguments[f"{name}_train_config"] = os.path.join(folder, f"{name}.yaml")
        logger.info("building the model of %s", model.config)
        try:
            # Without a file of weights: we have read them, and trust no other way of reading.
            built = kind(device=device, **arguments)
        except TypeError as error:
            raise _misfit(model, error) from error
    put_weights(built.asr_model, model.state, model.source)
    if lm is not None:
        network = built.beam_search.scorers["lm"]
        # ESPnet2 decodes with the inner network of its language model.
        inner = {name.removeprefix("lm."): value for name, value in lm.state.items()}
        put_weights(network, inner, lm.source)
    return built


def _misfit(model: _Trained, error: TypeError) -> ConfigError:
    """Return the error for options that this version of ESPnet2 does not take."""
    written = model.values.get("version", "unknown")
    return ConfigError(
        f"espnet {installed_version()} cannot build the model of {model.config}, which espnet "
        f"{written} wrote: {error}.",
        fix="Delete that key in a copy of the config, correct `options`, or install the version of "
        "espnet that wrote it.",
    )


def _plain(value: Any) -> Any:
    """Return lists for tuples, as YAML has none."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _check_task(task: Any) -> None:
    if task != "asr":
        raise ConfigError(
            key="task",
            value=task,
            problem="but ESPnet2Inference decodes models of the task asr",
            fix="Write: task: asr",
        )


def _check_decoder(decoder: Any) -> None:
    if decoder not in (None, OURS, THEIRS):
        raise ConfigError(
            key="decoder",
            value=decoder,
            problem=f"but must be {OURS} or {THEIRS}",
            fix=f"Write: decoder: {OURS}",
        )


def _check_decoding(decoding: Decoding) -> None:
    for name in ("beam_size", "nbest"):
        value = getattr(decoding, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                key=name, value=value, problem="but must be 1 or more", fix=f"Write: {name}: 1"
            )
    for name in ("ctc_weight", "lm_weight", "penalty", "maxlenratio", "minlenratio"):
        value = getattr(decoding, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise ConfigError(
                key=name, value=value, problem="but must be a number", fix=f"Write: {name}: 0.0"
            )
    if not 0 <= decoding.ctc_weight <= 1:
        raise ConfigError(
            key="ctc_weight",
            value=decoding.ctc_weight,
            problem="but is a share",
            fix="Write: ctc_weight: 0.3",
        )


def _check_lm(config: Any, file: Any, weight: Any) -> None:
    if (config is None) != (file is None):
        lacking = "lm_train_config" if config is None else "lm_file"
        example = "config.yaml" if config is None else "valid.loss.ave.pth"
        raise ConfigError(
            f"{'lm_file' if config is None else 'lm_train_config'} is set",
            key="lm_file" if config is None else "lm_train_config",
            problem=f"but {lacking} is not: a language model needs both",
            fix=f"Write: {lacking}: exp/lm_train/{example}",
        )
    if weight and config is None:
        raise ConfigError(
            key="lm_weight",
            value=weight,
            problem="but there is no language model",
            fix="Write lm_train_config and lm_file, or delete lm_weight.",
        )
