"""The stages of a recipe that recognises speech."""

from typing import Any

from espnet3.systems.base.system import BaseSystem


class ASRSystem(BaseSystem):
    """Adds to the base: a tokenizer, and the packing and publishing of a recogniser.

    Example:
        >>> from espnet3.systems.base.stages import stages_of
        >>> [stage.name for stage in stages_of(ASRSystem) if stage.is_defined][1]
        'train_tokenizer'
    """

    def train_tokenizer(self) -> Any:
        """Train the tokenizer on the texts of the training set."""
        from espnet3.systems.asr.tokenizer_training import train_tokenizer

        return train_tokenizer(self.config_for("train_tokenizer"))

    def check_train_tokenizer(self) -> None:
        """Check the `tokenizer` block before anything runs."""
        from espnet3.systems.asr.tokenizer_training import check_train_tokenizer

        check_train_tokenizer(self.config_for("train_tokenizer"))

    def describe_train_tokenizer(self) -> list[str]:
        """Return what `train_tokenizer` would do."""
        from espnet3.systems.asr.tokenizer_training import describe_train_tokenizer

        return describe_train_tokenizer(self.config_for("train_tokenizer"))

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

        self.compare_train()
        record_tokens(self.config_for("train"))
        return super().train()

    def describe_train(self) -> list[str]:
        """Return what `train` would do: data, batches, model, devices."""
        return super().describe_train()

    def _check_tokenizer(self, stage_name: str) -> None:
        from espnet3.systems.asr.tokenizer_config import check_tokenizer_exists

        if "train_tokenizer" not in self.planned:
            check_tokenizer_exists(self.config_for(stage_name))

    def infer(self) -> Any:
        """Run the recogniser over the test sets."""
        from espnet3.systems.asr.inference_checks import check_weights

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

    def pack_model(self) -> Any:
        """Write a folder with all that recognising needs, for others."""
        from espnet3.systems.asr.packing import pack_model

        return pack_model(self.config_for("pack_model"))

    def check_pack_model(self) -> None:
        """Check what is to be packed before anything runs."""
        from espnet3.systems.asr.packing import check_pack_model

        check_pack_model(self.config_for("pack_model"))
        self.check_trained()

    def describe_pack_model(self) -> list[str]:
        """Return what `pack_model` would write."""
        from espnet3.systems.asr.packing import describe_pack_model

        return describe_pack_model(self.config_for("pack_model"))

    def upload_model(self) -> Any:
        """Upload the packed model."""
        from espnet3.systems.asr.uploading import upload_model

        return upload_model(self.config_for("upload_model"))

    def check_upload_model(self) -> None:
        """Check where to upload before anything runs."""
        from espnet3.systems.asr.uploading import check_upload_model

        check_upload_model(self.config_for("upload_model"))

    def describe_upload_model(self) -> list[str]:
        """Return what `upload_model` would send."""
        from espnet3.systems.asr.uploading import describe_upload_model

        return describe_upload_model(self.config_for("upload_model"))
