"""Write how the language model of a recogniser is trained, and where decoding finds it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from espnet3.migration.asr_model import TEXT_KEYS, build_language_model
from espnet3.migration.jobs import AddConfig
from espnet3.migration.old_files import OLD_RECIPE, DataSet, old_language_model
from espnet3.migration.source_recipe import ConfigFile, SourceRecipe
from espnet3.migration.training_keys import LoopKeys

TOKENIZER = "data/tokenizer"
"""Where train_tokenizer of a migrated recipe writes."""
_CONFIG = "conf/training_lm.yaml"
_FOLDER = "${recipe_dir}/exp/training_lm"
_OPTIONS = ("lm_config", "lm_args", "lm_train_text", "lm_dev_text", "inference_lm", "use_word_lm")
_ESPNET2 = "espnet3.systems.espnet2"


@dataclass
class LanguageModels:
    """Writes the training config of a language model, if the recipe decodes with one.

    Args:
        recipe: The old one.
        add_config: Adds a file to the new one.
        train: Training sets, whose texts are used where no others are named.
        valid: Validation sets.
    """

    recipe: SourceRecipe
    add_config: AddConfig
    train: list[DataSet]
    valid: list[DataSet]

    def native(self, decode: ConfigFile, *, is_transducer: bool) -> str | None:
        """Return where the weights of the nearest model of ours will be; None without one."""
        if self._is_used(decode) and is_transducer:
            note = "a language model does not join the search of a transducer here"
            self.recipe.journal.changes(self.recipe.origin("use_lm"), "--use_lm",
                                        self.recipe.get("use_lm"), note)  # fmt: skip
            self._without("no language model is used")
            return None
        if not self._is_used(decode):
            self._note_unused()
            return None
        tokenizer = f"${{recipe_dir}}/{TOKENIZER}"
        keys = self._keys({"loss", "perplexity"})
        preprocessor = {
            "_target_": "espnet3.systems.asr.preprocessor.Tokenize",
            "tokenizer": tokenizer,
        }
        name = self._write(keys, build_language_model(keys, tokenizer), preprocessor)
        self._took("inference_lm", "model.decoder.lm", "the average of the best checkpoints")
        return name

    def kept(self, decode: ConfigFile, tokens: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the keys that name ESPnet2's language model; empty without one.

        One that the old recipe has trained is used as it is, else the new one trains it.

        Args:
            decode: The config of decoding.
            tokens: Keys that name the tokens of the recogniser.
        """
        if not self._is_used(decode):
            self._note_unused()
            return {}
        trained = old_language_model(self.recipe, decode)
        if trained:
            self.recipe.journal.taken(self.recipe.origin("use_lm"), "--use_lm",
                                      self.recipe.get("use_lm"), "model.lm_file")  # fmt: skip
            self._took("inference_lm", "model.lm_file")
            self._without("of the language model, which the old recipe has trained", _OPTIONS[:4])
            return trained
        keys = self._keys({"loss"})
        named = {key: _outside(value) for key, value in tokens.items()}
        model: dict[str, Any] = {
            "_target_": f"{_ESPNET2}.model.ESPnet2Model",
            "task": "lm",
            **named,
        }
        for key in ("lm", "lm_conf", "model_conf", "init"):
            value = keys.value(key)
            if value is not None and value != "none":
                model[key] = value
                keys.note(key, f"{_CONFIG}: model.{key}", "as it is")
        keys.config.values.pop("init", None)
        preprocessor = {
            "_target_": f"{_ESPNET2}.preprocessor.ESPnet2Preprocessor",
            "task": "lm",
            **named,
        }
        weights = self._write(keys, model, preprocessor)
        self._took("inference_lm", "model.lm_file", "the average of the best checkpoints")
        return {"lm_train_config": f"{_FOLDER}/config.yaml", "lm_file": weights}

    # --- Whether there is one ------------------------------------------------------------------

    def _is_used(self, decode: ConfigFile) -> bool:
        return self.recipe.is_on("use_lm") and bool(decode.values.get("lm_weight", 1.0))

    def _note_unused(self) -> None:
        recipe = self.recipe
        why = "off, as here" if not recipe.is_on("use_lm") else "its weight in decoding is 0"
        recipe.journal.unneeded(recipe.origin("use_lm"), "--use_lm", recipe.get("use_lm"), why)
        self._without("no language model is used")

    def _without(self, note: str, options: tuple[str, ...] = _OPTIONS) -> None:
        for name in options:
            option = self.recipe.options.get(name)
            if option:
                self.recipe.journal.unneeded(option.origin, f"--{name}", option.value, note)

    def _took(self, option: str, became: str, note: str = "") -> None:
        found = self.recipe.options.get(option)
        if found:
            self.recipe.journal.taken(found.origin, f"--{option}", found.value, became, note)

    # --- Its training --------------------------------------------------------------------------

    def _keys(self, metrics: set[str]) -> LoopKeys:
        recipe = self.recipe
        note = "" if "use_lm" in recipe.options else "not set in run.sh: the default of asr.sh"
        recipe.journal.taken(recipe.origin("use_lm"), "--use_lm", recipe.get("use_lm"), _CONFIG,
                             note)  # fmt: skip
        config = recipe.config("lm_config") or ConfigFile("(no config)", {})
        self._took("lm_config", _CONFIG)
        config = config.with_arguments(recipe.options.get("lm_args"), recipe.journal)
        return LoopKeys(config, recipe, metrics=metrics, has_audio=False)

    def _write(self, keys: LoopKeys, model: dict[str, Any], preprocessor: dict[str, Any]) -> str:
        """Add the config; return where its weights will be."""
        settings = keys.settings()
        keys.finish(TEXT_KEYS)
        criteria = [["valid/loss", settings["best_model_criterion"][0][1], "min"]]
        settings["best_model_criterion"] = criteria
        train = self._texts("lm_train_text", self.train)
        valid = self._texts("lm_dev_text", self.valid)
        values: dict[str, Any] = {
            "seed": settings.pop("seed"),
            OLD_RECIPE: str(self.recipe.folder.resolve()),
            "dataset": {
                "train": [{"data_src": "text", "data_src_args": {"path": train}}],
                "valid": [{"data_src": "text", "data_src_args": {"path": valid}}],
                "preprocessor": preprocessor,
            },
            "model": model,
            **settings,
        }
        comment = "The language model of conf/inference.yaml: --stages train, before infer."
        self.add_config("training_lm", comment, values)
        return f"{_FOLDER}/valid.loss.ave_{criteria[0][1]}best.safetensors"

    def _texts(self, option: str, sets: list[DataSet]) -> list[str]:
        named = self.recipe.get(option).split()
        paths = named or [f"{one.path}/text" for one in sets]
        for path in paths:
            if named and not (self.recipe.folder / path).is_file():
                self.recipe.journal.todo(
                    f"{path} of --{option} is not there yet. In the old recipe, make it, or write "
                    f"other paths in {_CONFIG}"
                )
        self._took(option, f"{_CONFIG}: dataset")
        return [f"${{{OLD_RECIPE}}}/{path}" for path in paths]


def _outside(value: Any) -> Any:
    """Return a path of the recogniser's config as another config names it."""
    if not isinstance(value, str):
        return value
    return value.replace("${tokenizer.save_path}", f"${{recipe_dir}}/{TOKENIZER}")
