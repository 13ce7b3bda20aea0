"""The trained recogniser, to be called: in `infer`, and in three lines of Python."""

import os
from pathlib import Path
from typing import Any

from espnet3.config.trust import under
from espnet3.errors import ConfigError
from espnet3.systems.asr.recognizer import Recognition, Recognizer
from espnet3.systems.asr.trained_model import find_weights, load_trained

__all__ = ["Recognition", "Speech2Text", "output_fn"]


class Speech2Text(Recognizer):
    """Recognises speech with a model that `train` trained.

    One call is one batch: it returns a `Recognition` for an utterance, a list of them for a list.

    Args:
        weights: `.safetensors` or a checkpoint; `config.yaml` beside it has the model.
        device: `cpu`, or a GPU, such as `cuda:0`.
        decoder: From what the model computed to hypotheses; `GreedyCTC` if None.
        n_best: Texts to keep of each utterance; the decoder searches for as many.
        word_times: Tell when each word was said, from the CTC alignment of the best text.
        window_seconds: Longer audio is cut into overlapping windows of this length; None: at once.
        overlap_seconds: Of two neighbouring windows.
        trust_remote_code: Of a packed model, build whatever its config names, not only parts of
            ESPnet3. That runs code of its author.

    Raises:
        ConfigError: The weights are missing, or the settings do not fit each other.

    Example:
        >>> model = Speech2Text.from_experiment("exp/training")     # doctest: +SKIP
        >>> model("speech.wav").text                                # doctest: +SKIP
        'one two three'
    """

    def __init__(
        self,
        weights: str | os.PathLike[str],
        device: str = "cpu",
        decoder: Any = None,
        *,
        trust_remote_code: bool = False,
        **settings: Any,
    ) -> None:
        model = _load(Path(weights), device, trust_remote_code)
        super().__init__(model, device, decoder, **settings)
        self._keeper: Any = None  # of the files of an archive

    @classmethod
    def from_experiment(
        cls, exp_dir: str | os.PathLike[str], device: str = "cpu", **settings: Any
    ) -> "Speech2Text":
        """Load the model of a training from its folder, wherever one is.

        The weights are the average of the best checkpoints, or the best or the last checkpoint
        where none was averaged; the log says which.

        Args:
            exp_dir: Of the training, such as `exp/training`.
            device: See the class.
            **settings: Others of the class.

        Raises:
            RunFolderError: Nothing is trained there.
        """
        return cls(find_weights(os.fspath(exp_dir)), device, **settings)

    @classmethod
    def from_packed(
        cls, path: str | os.PathLike[str], device: str = "cpu", **settings: Any
    ) -> "Speech2Text":
        """Load what `pack_model` wrote. No code comes with it, and none is run.

        Args:
            path: The folder, or its `.tar.gz` or `.zip`.
            device: See the class.
            **settings: Others of the class; where left out, those that the model was packed with
                hold, the decoder among them.

        Raises:
            PackedModelError: It is no packed model, is damaged, or wants to run foreign code.
        """
        from espnet3.systems.asr.packed_archive import WEIGHTS
        from espnet3.systems.asr.packed_model import open_packed, packed_settings

        trusted = settings.get("trust_remote_code", False)
        _check_trust(trusted)
        folder, keeper, trust = open_packed(path, trust_code=trusted)
        with under(trust):
            own = packed_settings(folder, trust, given=settings)
            model = cls(folder / WEIGHTS, device, **{**own, **settings})
        # Decoders may read their files when they are first used, by the same rules.
        model._keeper = keeper
        model.decoder_trust = trust if "decoder" in own else None
        return model


def _load(weights: Path, device: str, trust_remote_code: bool) -> Any:
    _check_trust(trust_remote_code)
    from espnet3.systems.asr.packed_model import is_packed, load_packed_model

    if is_packed(weights.parent):
        return load_packed_model(weights.parent, device, trust=trust_remote_code)
    return load_trained(weights, device)


def _check_trust(value: Any) -> None:
    if not isinstance(value, bool):  # the text "false" would be true
        raise ConfigError(
            f"trust_remote_code is {value!r:.80}, but must be true or false, without quotes.",
            fix="Write: trust_remote_code: false",
        )


def output_fn(data: Any, model_output: Any, idx: Any) -> Any:
    """Return the fields of an utterance, or of each in a batch.

    They are `hyp` and `score`, `ref` where the sample has a text, and what the model was asked
    for: `nbest` with `n_best` above 1, and `words` with `word_times`, both as a line of JSON.
    `output_keys` of the config chooses among them.

    Args:
        data: The sample, or a list of samples.
        model_output: The `Recognition` of it, or a list of them.
        idx: Its position in the dataset, or a list of positions.
    """
    if isinstance(idx, list):
        return [output_fn(*item) for item in zip(data, model_output, idx, strict=True)]
    fields = {"hyp": model_output.text, "score": f"{model_output.score:.4f}"}
    if "text" in data:
        fields["ref"] = data["text"]
    if len(model_output.n_best) > 1:
        fields["nbest"] = model_output.n_best_json()
    if model_output.words is not None:
        fields["words"] = model_output.words_json()
    return fields
