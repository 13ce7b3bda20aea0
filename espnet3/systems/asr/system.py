"""The stages of a recipe that recognises speech."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.systems.base.stages import steps_of
from espnet3.systems.base.system import BaseSystem

if TYPE_CHECKING:
    from espnet3.systems.base.checks import Reader


class ASRSystem(BaseSystem):
    """Adds to the base: a tokenizer, and the packing and publishing of a recogniser.

    Example:
        >>> from espnet3.systems.base.stages import stages_of
        >>> [stage.name for stage in stages_of(ASRSystem) if stage.is_defined][1]
        'train_tokenizer'
    """

    train_tokenizer, check_train_tokenizer, describe_train_tokenizer = steps_of(
        "train_tokenizer", "espnet3.systems.asr.tokenizer_training"
    )

    def readers_of(self, stage_name: str) -> "Sequence[Reader]":
        """Return the functions that read the config of a stage, and refuse what is wrong."""
        # Each imported for its own stage alone: a misspelt key must be reported at once.
        if stage_name == "train_tokenizer":
            from espnet3.systems.asr.tokenizer_training import load_tokenizer_block

            return (load_tokenizer_block,)
        if stage_name in ("pack_model", "upload_model"):
            from espnet3.systems.asr.publication import load_publication_config

            return (load_publication_config,)
        return super().readers_of(stage_name)

    def check_collect_stats(self) -> None:
        """Check also that there is, or will be, a tokenizer."""
        self._check_tokenizer("collect_stats")
        super().check_collect_stats()

    def check_train(self) -> None:
        """Check also that there is, or will be, a tokenizer."""
        self._check_tokenizer("train")
        super().check_train()

    def train(self) -> Any:
        """Train the model, and keep with it which tokens it is trained for."""
        from espnet3.systems.asr.trained_model import record_tokens

        # Before the tokens are recorded: a refused training must leave the experiment as it was.
        self.compare_train()
        config = self.config_for("train")
        record_tokens(config.plain().get("model"), Path(str(config["exp_dir"])))
        return super().train()

    def describe_train(self) -> list[str]:
        """Return what `train` would do; said again, because a class that replaces it must."""
        return super().describe_train()

    def _check_tokenizer(self, stage_name: str) -> None:
        from espnet3.systems.asr.tokenizer_training import check_tokenizer_exists

        # A tokenizer that an earlier stage of this command makes need not exist yet.
        if "train_tokenizer" not in self.planned:
            check_tokenizer_exists(self.config_for(stage_name))

    def infer(self) -> Any:
        """Run the recogniser over the test sets."""
        from espnet3.systems.asr.inference_checks import check_weights

        # Asked again when the stage starts, as the check before skips it where `train` is planned.
        check_weights(self.config_for("infer"))
        return super().infer()

    def check_infer(self) -> None:
        """Check the inference config, and how the recogniser decodes, before anything runs."""
        from espnet3.systems.asr.inference_checks import check_recognizer, check_weights

        super().check_infer()
        check_recognizer(self.config_for("infer"))
        if not {"train", "average"}.intersection(self.planned):
            check_weights(self.config_for("infer"))

    def describe_infer(self) -> list[str]:
        """Return what `infer` would do: test sets, shards, batches, job script."""
        from espnet3.systems.asr.inference_checks import check_weights

        check_weights(self.config_for("infer"))
        return super().describe_infer()

    pack_model, check_pack_model, describe_pack_model = steps_of(
        "pack_model", "espnet3.systems.asr.publication"
    )
    upload_model, check_upload_model, describe_upload_model = steps_of(
        "upload_model", "espnet3.systems.asr.publication"
    )
