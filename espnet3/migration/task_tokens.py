"""Find or make the token lists of translators, synthesisers and the like."""

import shlex
from pathlib import Path
from typing import Any

from espnet3.migration.data_sets import OLD_RECIPE, TRAINED_KINDS
from espnet3.migration.job_configs import AddConfig
from espnet3.migration.journal import Origin
from espnet3.migration.language_models import TOKENIZER
from espnet3.migration.source_recipe import SourceRecipe
from espnet3.migration.task_kinds import KINDS

_SIDES = {"st": ("tgt", "src"), "mt": ("tgt", "src"), "slu": ("",), "tts": ("",),
          "asr2": ("tgt", "src"), "s2t": ("",)}  # fmt: skip
"""Tasks with texts; what the names of the options of each text begin with."""
_MARKED = ("s2t",)
"""Tasks whose tokens are marks of tasks, languages and times too, which only ESPnet2 makes."""
_OWN = "data/tokens"


class TaskTokens:
    """The keys of the model that name tokens, and how those that are missing are made.

    Args:
        recipe: The old one.
        add_config: Adds a file to the new one.
        train: The directory of the first training set, below the old recipe.
    """

    def __init__(self, recipe: SourceRecipe, add_config: AddConfig, train: str) -> None:
        self.recipe, self.train = recipe, train
        self.keys: dict[str, Any] = {}
        """Of the model, and of the preprocessor."""
        self.block: dict[str, Any] = {}
        """For the stage train_tokenizer."""
        self.is_trained = False
        for side in _SIDES.get(recipe.task, ()):
            if side == "src" and recipe.is_on("token_joint"):
                self._joint()
            else:
                self._side(side)
        joint = recipe.options.get("token_joint")
        if joint:
            became = "model.src_token_list" if recipe.is_on("token_joint") else ""
            recipe.journal.taken(joint.origin, "--token_joint", joint.value, became)
        if recipe.task == "tts":
            self._spoken()

    def _option(self, side: str, name: str) -> str:
        return f"{side}_{name}" if side else name

    def _value(self, side: str, name: str) -> str:
        """Return the option of a side, or what the script takes without it."""
        option = self._option(side, name)
        found = self.recipe.options.get(option)
        return found.value if found else self.recipe.get(name)

    def _side(self, side: str) -> None:
        kind = self._value(side, "token_type")
        prefix = "src_" if side == "src" else ""
        self.keys[f"{prefix}token_type"] = kind
        for name in ("token_type", "nbpe", "bpemode", "bpe_char_cover", "bpe_train_text",
                     "bpe_nlsyms"):  # fmt: skip
            option = self.recipe.options.get(self._option(side, name))
            if option:
                became = f"model.{prefix}token_list"
                self.recipe.journal.taken(option.origin, f"--{option.name}", option.value, became)
        found = self._find(side, kind)
        if found is not None:
            place = found.relative_to(self.recipe.folder).as_posix()
            self.keys[f"{prefix}token_list"] = f"${{{OLD_RECIPE}}}/{place}"
            self.recipe.journal.taken(Origin(place), "token list", "", f"model.{prefix}token_list")
            model = next(iter(sorted(found.parent.glob("*bpe.model"))), None)
            if kind == "bpe" and model is not None:
                place = model.relative_to(self.recipe.folder).as_posix()
                self.keys[f"{prefix}bpemodel"] = f"${{{OLD_RECIPE}}}/{place}"
        elif side != "src" and kind in TRAINED_KINDS and self.recipe.task not in _MARKED:
            self._train(side, kind)
        else:
            self._make(side, kind, prefix)

    def _joint(self) -> None:
        """Give the source texts the tokens of the target texts."""
        self.keys |= {
            f"src_{key}": self.keys[key]
            for key in ("token_type", "token_list", "bpemodel")
            if key in self.keys
        }
        if self.is_trained:
            option = self.recipe.options["token_joint"]
            note = "train_tokenizer reads the target texts alone: make the tokens in the old "
            stage = KINDS[self.recipe.task].token_stage
            note += f"recipe first, ./{self.recipe.script} --stage {stage} --stop_stage {stage}"
            self.recipe.journal.changes(option.origin, "--token_joint", option.value, note)

    def _find(self, side: str, kind: str) -> Path | None:
        """Return the token list of a text, by the words that the names of its folders have."""
        folder = self.recipe.folder
        wanted = [kind, self._value(side, "nbpe") if kind == "bpe" else ""]
        wanted += [self.recipe.get(f"{side}_lang") if side else ""]
        if self.recipe.task == "tts":
            wanted += [self.recipe.get(name) for name in ("cleaner", "g2p")]
        roots = ["data", self.recipe.get("dumpdir")]
        lists = [path for root in roots for path in sorted(folder.glob(f"{root}/*token_list/*/*"))]
        names = ("tokens.txt", f"{side}_tokens.txt")
        other = {"src": "tgt", "tgt": "src"}.get(side, "")
        fitting = [
            path
            for path in lists
            if path.name in names
            and all(word in path.parent.name for word in wanted if word and word != "none")
            and not (other and path.parent.name.startswith(f"{other}_"))
        ]
        return fitting[0] if fitting else None

    def _train(self, side: str, kind: str) -> None:
        self.is_trained = True
        mode = self._value(side, "bpemode")
        block: dict[str, Any] = {"save_path": f"${{recipe_dir}}/{TOKENIZER}"}
        if kind == "bpe":
            text = self._value(side, "nbpe")
            size = int(text) if text.isdigit() else 30
            block |= {"model_type": mode, "vocab_size": max(4, size)}
            self.keys["bpemodel"] = f"${{tokenizer.save_path}}/{mode}.model"
        else:
            block["model_type"] = "characters"
        self.keys["token_list"] = "${tokenizer.save_path}/tokens.txt"
        self.block = {"tokenizer": block}
        texts = self._value(side, "bpe_train_text")
        if kind == "bpe" and texts and not texts.startswith(self.train):
            note = "train_tokenizer reads the texts of dataset.train"
            option = self.recipe.options.get(self._option(side, "bpe_train_text"))
            name = Path(texts).name.split(".")[0]
            if option and (name != "text" or len(texts.split()) > 1):
                self.recipe.journal.changes(option.origin, f"--{option.name}", texts, note)

    def _make(self, side: str, kind: str, prefix: str) -> None:
        """Tell how ESPnet2 makes a list of tokens that our stages do not make."""
        name = f"{side or 'text'}_{kind}.txt"
        self.keys[f"{prefix}token_list"] = f"${{recipe_dir}}/{_OWN}/{name}"
        is_marked = self.recipe.task in _MARKED
        if kind == "bpe" or is_marked:
            pieces = f"{side or 'text'}_bpe.model"
            stage = KINDS[self.recipe.task].token_stage
            files, what = f"{_OWN}/{name}", "the tokens, with the marks of languages and times"
            if kind == "bpe":
                self.keys[f"{prefix}bpemodel"] = f"${{recipe_dir}}/{_OWN}/{pieces}"
                files = f"{files} and {pieces}"
            self.recipe.journal.todo(
                f"{files} are {what if is_marked else 'the word pieces of the source texts'}. In "
                f"the old recipe, make them: cd {self.recipe.folder} && ./{self.recipe.script} "
                f"--stage {stage} --stop_stage {stage}; and migrate then, or copy them"
            )
            return
        text = self.recipe.folder.resolve() / self.train / self._text(side)
        words = ["python", "-m", "espnet2.bin.tokenize_text", "--token_type", kind, "--field", "2-",
                 "--input", str(text), "--output", f"{_OWN}/{name}", "--write_vocabulary", "true",
                 "--add_symbol", "<blank>:0", "--add_symbol", "<unk>:1",
                 "--add_symbol", "<sos/eos>:-1"]  # fmt: skip
        for option in ("cleaner", "g2p") if self.recipe.task == "tts" else ():
            value = self.recipe.get(option)
            if value and value != "none":
                words += [f"--{option}", value]
        self.recipe.journal.todo(
            f"the token list {_OWN}/{name} is not there yet. Make it, in the new recipe: mkdir -p "
            f"{_OWN} && {shlex.join(words)}"
        )

    def _text(self, side: str) -> str:
        parts = ["text", self.recipe.get(f"{side}_case"), self.recipe.get(f"{side}_lang")]
        return ".".join(part for part in parts if part) if side else "text"

    def _spoken(self) -> None:
        """Take how a text is spoken: its cleaning and its phonemes."""
        for option in ("cleaner", "g2p"):
            value = self.recipe.get(option)
            if value and value != "none":
                self.keys[option] = value
            found = self.recipe.options.get(option)
            if found:
                self.recipe.journal.taken(found.origin, f"--{option}", value, f"model.{option}")
        found = self.recipe.options.get("srctexts")
        if found:
            note = "the token list is made of the training texts"
            self.recipe.journal.taken(found.origin, "--srctexts", found.value, "", note)
