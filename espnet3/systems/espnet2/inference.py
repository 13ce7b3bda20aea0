"""Decode with a model of ESPnet2: in `infer`, and in Python."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from espnet3.errors import ConfigError
from espnet3.systems.asr.inference import Candidate, Recognition, to_batch, to_samples
from espnet3.systems.asr.inference import output_fn as fields_of_recognition
from espnet3.systems.espnet2.encoding import Encoding
from espnet3.systems.espnet2.imported_networks import CannotImport
from espnet3.systems.espnet2.inference_checks import (
    OURS,
    THEIRS,
    check_decoder,
    check_decoding,
    check_lm,
    check_outputs,
    check_source,
    check_task,
)
from espnet3.systems.espnet2.package import TASKS, check_installed
from espnet3.systems.espnet2.search import Decoding, ESPnet2Search, JointModel, fitting_search
from espnet3.systems.espnet2.task_calls import call_of, inputs_of, names_of_input, recording
from espnet3.systems.espnet2.trained_model import (
    ModelFiles,
    TrainedModel,
    build_inference,
    build_language_model,
    loading_tensors_only,
    refuse_arguments,
)
from espnet3.systems.espnet2.training_config import sample_rate_of

logger = logging.getLogger(__name__)

_SEARCHED = ("asr", "st")
"""Tasks that our search may decode."""
_NO_CTC = {"st": {"ctc_weight": 0.0}, "mt": {"ctc_weight": 0.0}}


class ESPnet2Inference:
    """Uses a model that ESPnet2 trained: the task decides what goes in, and what comes out.

    | task | input | output |
    |---|---|---|
    | `asr`, `asr_transducer`, `slu`, `st` | `speech` | a `Recognition`, with `text` and n-best |
    | `mt` | `src_text` | the same |
    | `lm` | `text` | `score`, `n_tokens`, `perplexity` |
    | `tts` | `text` | `wav` |
    | `enh` | `speech_mix` | `enhanced`; of several speakers `spk1`, `spk2`, ... |
    | `spk` | `speech` | `embedding` |

    Options left out have ESPnet2's defaults. Paths inside of ESPnet2's config are searched for from
    the working folder, and then from the folders above the config, one of which is its recipe.

    Args:
        task: One of the table.
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
        options: Further arguments of ESPnet2's own class for the task, such as its `Speech2Text` or
            `Text2Speech`; with most of them, its own search decodes.
        packed_model: Instead of `config` and `weights`: a model as ESPnet2 packs it, one of
            `espnet_model_zoo`, as a zip or folder. Nothing outside of it is read.
        extra_outputs: Of `tts`: further results, such as `duration` or `feat_gen`.
        trust_remote_code: Unpickle a `.pth` that holds more than tensors. That can run code.

    Raises:
        ConfigError: A file is missing, or options do not fit the model.
        MissingExtraError: `espnet` is not installed.
        PackedModelError: The packed model is damaged, or would read files outside of its folder.

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
        config: str | os.PathLike[str] | None = None,
        weights: str | os.PathLike[str] | None = None,
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
        packed_model: str | os.PathLike[str] | None = None,
        extra_outputs: Sequence[str] = (),
        trust_remote_code: bool = False,
    ) -> None:
        decoding: dict[str, Any] = {
            "beam_size": beam_size, "ctc_weight": ctc_weight, "lm_weight": lm_weight,
            "penalty": penalty, "maxlenratio": maxlenratio, "minlenratio": minlenratio,
            "nbest": nbest,
        }  # fmt: skip
        given = {key: value for key, value in decoding.items() if value is not None}
        check_task(task)
        self.task = task
        self.decoding = Decoding(**{**_NO_CTC.get(task, {}), **given})
        check_decoding(self.decoding)
        check_decoder(decoder)
        check_lm(lm_train_config, lm_file, lm_weight, packed_model)
        check_outputs(task, extra_outputs)
        check_source(config, weights, packed_model)
        check_installed()
        self.device = torch.device(device)
        self._options = dict(options or {})
        tokenizing = {"token_type": token_type, "bpemodel": bpemodel and os.fspath(bpemodel)}
        chosen = {k: v for k, v in {**given, **tokenizing}.items() if v is not None}
        files = ModelFiles(config, weights, lm_train_config, lm_file)
        self._files = files.opened(packed_model, task, lm_weight)
        model, lm = self._files.read(task, trust_remote_code)
        with loading_tensors_only(trust_remote_code):
            self._theirs = self._build(model, lm, chosen)
        self.tokens = tuple(model.values.get("token_list") or ())
        self.sample_rate = sample_rate_of(task, model.values)
        self._joint, self._search = self._choose(decoder, with_lm=lm is not None)
        self._encode = None if self._joint is None else Encoding(self._joint.model, self._rate)
        self._call = call_of(task, self._theirs, model.values, extra_outputs)
        self._extras = inputs_of(task, self._theirs)

    @property
    def decoder(self) -> str:
        """Name of the search that decodes: `espnet3` or `espnet2`."""
        return THEIRS if self._search is None else OURS

    def __call__(
        self, item: Any = None, /, sample_rate: int | Sequence[int] | None = None, **inputs: Any
    ) -> Any:
        """Return the result of an item, or a list of them for a list.

        Args:
            item: Speech as for `Recognizer`, or a text; it may also be given by its name.
            sample_rate: Of arrays of speech, in Hz, if it is not that of the model; of a list, one
                for all or one for each.
            **inputs: By ESPnet2's names; of `tts` also `sids`, `spembs`, `speech`, ...

        Raises:
            ConfigError: There is no such input, or none at all.
        """
        name, item, others = self._inputs(item, inputs)
        many = isinstance(item, list | tuple)
        batch = list(item) if many else [item]
        rates = sample_rate if isinstance(sample_rate, list | tuple) else [sample_rate] * len(batch)
        with torch.inference_mode():
            if self._joint is not None:
                results: list[Any] = self._recognize(to_batch(batch, list(rates), self._rate))
            else:
                rest = [{k: v[i] if many else v for k, v in others.items()}
                        for i in range(len(batch))]  # fmt: skip
                results = [
                    self._call(self._prepared(name, one, rate, more))
                    for one, rate, more in zip(batch, rates, rest, strict=True)
                ]
        return results if many else results[0]

    @property
    def _rate(self) -> int:
        return self.sample_rate or 16000

    def _inputs(self, item: Any, inputs: dict[str, Any]) -> tuple[str, Any, dict[str, Any]]:
        names = names_of_input(self.task)
        others = dict(inputs)
        if item is None:
            found = next((name for name in names if name in others), None)
            item = None if found is None else others.pop(found)
        odd = next((name for name in others if name not in self._extras), None)
        if item is None or odd is not None:
            raise ConfigError(
                key="input_key",
                value=list(inputs),
                problem=f"but a model of the task {self.task} takes {names[0]}"
                + (f", and {', '.join(sorted(self._extras))}" if self._extras else ""),
                fix=f"Write: input_key: {names[0]}",
            )
        return names[0], item, others

    def _prepared(
        self, name: str, item: Any, rate: int | None, others: dict[str, Any]
    ) -> dict[str, Any]:
        if name == "speech":
            return {name: to_samples(item, rate, self._rate), **others}
        if name == "speech_mix":
            samples, rate = recording(item, rate)
            return {name: samples, "sample_rate": rate}
        return {name: item, **others}

    def _recognize(self, batch: Sequence[Any]) -> list[Recognition]:
        assert self._joint is not None
        assert self._encode is not None
        assert self._search is not None
        tensors = [torch.from_numpy(one).to(self.device) for one in batch]
        encoded, lengths = self._encode(tensors)
        found = self._search(self._joint, encoded, lengths)
        return [
            Recognition.of([self._candidate(one.tokens, one.score, one.scores) for one in some])
            for some in found
        ]

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
        if self.task not in _SEARCHED:
            if decoder == OURS:
                raise ConfigError(
                    key="decoder",
                    value=OURS,
                    problem=f"but our search is none for the task {self.task}",
                    fix="Write decoder: espnet2, or leave it out.",
                )
            return None, None
        scorers = getattr(getattr(self._theirs, "beam_search", None), "scorers", None) or {}
        lm = scorers.get("lm") if with_lm else None
        try:
            joint, search = fitting_search(
                getattr(self._theirs, TASKS[self.task].network),
                lm,
                self.tokens,
                self.decoding,
                tuple(self._options),
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

    def _build(self, model: TrainedModel, lm: TrainedModel | None, chosen: dict[str, Any]) -> Any:
        if self.task == "lm":
            refuse_arguments(self.task, {*chosen, *self._options}, ())
            return build_language_model(model).to(self.device)
        if self.task == "asr":
            names = [field.name for field in fields(Decoding)]
            chosen = {**{name: getattr(self.decoding, name) for name in names}, **chosen}
        elif self.task == "mt":
            # ESPnet2's default is that of recognisers, though its translators have no CTC.
            chosen = {**_NO_CTC["mt"], **chosen}
        elif self.task == "tts":
            # The speech of a text must not depend on those that a worker spoke before.
            chosen = {"always_fix_seed": True, **chosen}
        arguments = {**chosen, **self._options}
        return build_inference(self.task, model, lm, arguments, str(self.device))


def output_fn(data: Any, model_output: Any, idx: Any) -> Any:
    """Return the fields of an item, or of each in a batch.

    Of texts these are `hyp`, `score`, `ref` and `nbest`, as of our own recognisers; of other tasks
    the results by their names, of which arrays need `output_artifacts`.

    Args:
        data: The sample, or a list of samples.
        model_output: The result of it, or a list of them.
        idx: Its position in the dataset, or a list of positions.
    """
    if isinstance(idx, list):
        return [output_fn(*item) for item in zip(data, model_output, idx, strict=True)]
    if isinstance(model_output, Mapping):
        return dict(model_output)
    return fields_of_recognition(data, model_output, idx)
