"""Make a recipe of ESPnet3 from one of ESPnet2, and write it, wholly or not at all."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from espnet3.components.text.tokenizer import Tokenizer
from espnet3.migration import asr_options
from espnet3.migration.asr_model import (
    TEXT_KEYS,
    below_network,
    build_kept_inference,
    build_kept_model,
    build_model,
    build_search,
    kept_preprocessor,
    normalization_of,
    reported,
    token_keys,
)
from espnet3.migration.jobs import add_places
from espnet3.migration.journal import Journal, Origin
from espnet3.migration.language_models import TOKENIZER, LanguageModels
from espnet3.migration.old_files import (
    OLD_CONFIG,
    OLD_RECIPE,
    TRAINED_KINDS,
    TokenFiles,
    convert_tokens,
    find_set,
    find_tokens,
    old_model,
    train_entries,
)
from espnet3.migration.source_recipe import ConfigFile, MigrationError, SourceRecipe
from espnet3.migration.training_keys import LoopKeys, checkpoint_of
from espnet3.text import count

RUN_PY = '''"""Run stages of this recipe; see MIGRATION.md, or python run.py --help.

The stages, in their order, are methods of ASRSystem in espnet3.systems.asr.system;
python run.py --list-stages lists them. A subclass adds one of its own: docs/recipes.md of espnet3.
"""

import sys

from espnet3.cli.recipe import run_recipe
from espnet3.systems.asr.system import ASRSystem

if __name__ == "__main__":
    sys.exit(run_recipe(ASRSystem))
'''
TEXTS_PY = '''"""Texts for the tokenizer."""


def read_texts(path):
    """Return the texts of files in Kaldi's form, `<id> <text>`."""
    texts = []
    for file in path if isinstance(path, (list, tuple)) else [path]:
        with open(file, encoding="utf-8") as lines:
            texts += [line.split(maxsplit=1)[1].strip() for line in lines if len(line.split()) > 1]
    return texts
'''


@dataclass
class NewRecipe:
    """The files of a recipe, before anything is written."""

    source: Path
    journal: Journal
    files: dict[str, str] = field(default_factory=dict)
    """Texts by their paths below the recipe."""
    tokenizer: Tokenizer | None = None
    """To be saved in `data/tokenizer`."""
    commands: list[tuple[str, str]] = field(default_factory=list)
    """Lines to type, and what each does."""
    model_note: str = ""

    def add_config(self, name: str, comment: str, values: dict[str, Any]) -> None:
        """Add a YAML file with a comment at its top."""
        head = "".join(f"# {line}\n" for line in comment.splitlines())
        self.files[f"conf/{name}.yaml"] = head + _dump(values)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dump(values: dict[str, Any]) -> str:
    text = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return str(text)


def build_recipe(recipe: SourceRecipe, model: str = "native") -> NewRecipe:
    """Return the recipe with the nearest model of ESPnet3, or with ESPnet2's own.

    Args:
        recipe: The old one.
        model: `native` or `espnet2`.

    Raises:
        MigrationError: Something without which there is no recipe is missing.
    """
    builder = _Builder(recipe, keeps_model=model == "espnet2")
    builder.build()
    return builder.new


class _Builder:
    def __init__(self, recipe: SourceRecipe, *, keeps_model: bool) -> None:
        self.recipe = recipe
        self.journal = recipe.journal
        self.new = NewRecipe(recipe.folder, recipe.journal, {"run.py": RUN_PY})
        self.keeps_model = keeps_model
        self.preprocessor: dict[str, Any] = {}
        self.new.model_note = (
            "The model is ESPnet2's own, which needs the extra espnet2."
            if keeps_model
            else "The model is the nearest one of ESPnet3, not the same: front end, initialisation "
            "and search are ESPnet3's own, and weights of ESPnet2 do not fit it."
        )

    def build(self) -> None:
        recipe = self.recipe
        config = recipe.config("asr_config")
        if config is None:
            if "asr_config" not in recipe.options:
                origin = Origin(recipe.script)
                note = "not set, or not known: ESPnet2's defaults are taken"
                self.journal.changes(origin, "--asr_config", "", note)
            config = ConfigFile("(no config)", {})
        else:
            self._took("asr_config", "conf/training.yaml")
        config = config.with_arguments(recipe.options.get("asr_args"), self.journal)
        self._sets()
        self._tokens()
        normalize = normalization_of(recipe, config)
        keys = LoopKeys(config, recipe)
        keys.value("normalize")
        keys.value("normalize_conf")
        if self.keeps_model:
            settings = self._keep_model(keys, normalize)
        else:
            self.model = build_model(keys, normalize)
            keys.metrics = reported(self.model)
            self._without_old_weights(keys)
            settings = keys.settings()
        keys.finish(TEXT_KEYS)
        self._training(settings, bool(config.values.get("use_amp")))
        self._inference(settings)
        self._metrics()
        self.new.commands += add_places(recipe, self.new.add_config)
        self._commands(normalize == "global_mvn")
        note_old_files(recipe)
        asr_options.note_rest(recipe)

    # --- Data ----------------------------------------------------------------------------------

    def _keep_model(self, keys: LoopKeys, normalize: str | None) -> dict[str, Any]:
        self.model = build_kept_model(keys, self.token_keys, normalize)
        self.preprocessor = kept_preprocessor(keys, self.token_keys)
        pretrained = self.recipe.options.get("pretrained_model")
        if pretrained and pretrained.value:
            keys.config.values.setdefault("init_param", pretrained.value.split())
            self._took("pretrained_model", "init")
        return below_network(keys.settings())

    def _took(self, option: str, became: str, note: str = "") -> None:
        found = self.recipe.options.get(option)
        if found:
            self.journal.taken(found.origin, f"--{option}", found.value, became, note)

    def _unread(self, option: str, note: str) -> None:
        found = self.recipe.options.get(option)
        if found:
            self.journal.unneeded(found.origin, f"--{option}", found.value, note)

    def _names(self, option: str) -> list[str]:
        names = self.recipe.get(option).split()
        if not names:
            noted = [e for e in self.journal.entries if e.name == f"--{option}"]
            if not noted:
                raise MigrationError(
                    f"{self.recipe.folder / self.recipe.script} gives no --{option}, so it is half "
                    "a recipe.",
                    fix=f"Add it to the call: --{option} NAME",
                )
            self.journal.todo(f"--{option} is not known: write the names of the sets under dataset")
            return [f"SET_THE_{option.upper()}"]
        return names

    def _sets(self) -> None:
        self.train = [find_set(self.recipe, one, for_training=True)
                      for one in self._names("train_set")]  # fmt: skip
        self.valid = [find_set(self.recipe, one) for one in self._names("valid_set")]
        tests = list(dict.fromkeys(self._names("test_sets")))
        if self.recipe.is_on("eval_valid_set"):
            tests += [one for one in self.recipe.get("valid_set").split() if one not in tests]
            self._took("eval_valid_set", "dataset.test")
        self.test = [find_set(self.recipe, one) for one in tests]
        self._took("train_set", "dataset.train")
        self._took("valid_set", "dataset.valid")
        self._took("test_sets", "dataset.test", "each has a folder of results")
        self._took("fs", "data_src_args.sample_rate")
        kind = self.recipe.get("feats_type")
        if kind in ("raw", "raw_copy"):
            self._took("feats_type", "", "audio is read, and features are a part of the model")
        else:
            note = "extracted features are not read; audio is"
            self.journal.changes(self.recipe.origin("feats_type"), "--feats_type", kind, note)

    def _dataset(self, **splits: list[dict[str, Any]]) -> dict[str, Any]:
        return {**splits, "preprocessor": self.preprocessor}

    # --- Tokens --------------------------------------------------------------------------------

    def _tokens(self) -> None:
        recipe = self.recipe
        files = find_tokens(recipe)
        mode = recipe.get("bpemode")
        mode = mode if mode in ("bpe", "unigram") else "unigram"
        block: dict[str, Any] = {"save_path": f"${{recipe_dir}}/{TOKENIZER}"}
        kind = files.kind
        if kind == "bpe":
            size = max(4, int(recipe.number("nbpe")))
            block |= {"model_type": mode, "vocab_size": size}
            cover = recipe.number("bpe_char_cover")
            if cover != 1.0:
                block["character_coverage"] = cover
            for name in ("nbpe", "bpemode", "bpe_char_cover"):
                self._took(name, "tokenizer")
        else:
            block["model_type"] = "characters"
            for name in ("nbpe", "bpemode", "bpe_char_cover", "bpe_nlsyms", "bpe_train_text"):
                self._unread(name, f"not read with token_type: {kind}")
        note = "" if "token_type" in recipe.options else "not set in run.sh: the default of asr.sh"
        if kind in TRAINED_KINDS or self.keeps_model:
            became = "tokenizer.model_type" if kind in TRAINED_KINDS else "model.token_type"
            self.journal.taken(recipe.origin("token_type"), "--token_type", kind, became, note)
        else:
            note = "is not here; characters taken"
            self.journal.changes(
                recipe.origin("token_type"), "--token_type", kind, note, "tokenizer.model_type"
            )
        self.tokenizer = block
        self.preprocessor = {
            "_target_": "espnet3.systems.asr.preprocessor.Tokenize",
            "tokenizer": "${tokenizer.save_path}",
        }
        if self.keeps_model:
            self._keep_tokens(files, mode)
            return
        self._old_tokens(files, mode)
        if self.new.tokenizer is None:
            self._tokenizer_texts()
        self._symbols()

    def _keep_tokens(self, files: TokenFiles, mode: str) -> None:
        self.token_keys = token_keys(self.recipe, files, mode)
        self.has_tokens = files.tokens is not None
        if files.kind not in TRAINED_KINDS:
            self.tokenizer = {}
            if not self.has_tokens:
                self.journal.todo(
                    f"the token list {files.expected} for --token_type {files.kind} is not there "
                    f"yet. In the old recipe, make it: cd {self.recipe.folder} && "
                    f"./{self.recipe.script} --stage 5 --stop_stage 5"
                )
            # There is nothing to train.
            self.has_tokens = True
        if not self.has_tokens:
            self._tokenizer_texts()
            return
        note = "the tokens are there already"
        for option in ("bpe_train_text", "bpe_nlsyms") if files.kind == "bpe" else ():
            self._took(option, "model.token_list", note)

    def _old_tokens(self, files: TokenFiles, mode: str) -> None:
        if files.tokens is None:
            if files.kind in TRAINED_KINDS:
                note = "the old recipe has none yet; train_tokenizer makes it"
                self.journal.left_out(Origin("data/token_list"), "token list", "", note)
            return
        if files.kind not in TRAINED_KINDS:
            return
        self.new.tokenizer = convert_tokens(files, mode, self.journal)
        if self.new.tokenizer is not None:
            place = str(files.tokens.relative_to(self.recipe.folder))
            note = f"{len(self.new.tokenizer.tokens)} tokens with the same ids"
            self.journal.taken(Origin(place), "token list", "", TOKENIZER, note)

    def _tokenizer_texts(self) -> None:
        """Let the tokenizer see other texts than those of the training sets, where asked for."""
        if self.tokenizer["model_type"] == "characters":
            return
        paths = self.recipe.get("bpe_train_text").split()
        own = {f"{one.path}/text" for one in self.train} | {
            f"data/{one.name}/text" for one in self.train
        }
        if not paths or set(paths) <= own:
            self._took("bpe_train_text", "", "the texts of dataset.train")
            return
        listed = [f"${{{OLD_RECIPE}}}/{path}" for path in paths]
        self.tokenizer["text_builder"] = {"func": "src.texts.read_texts", "path": listed}
        self.new.files |= {"src/__init__.py": '"""Own code of this recipe."""\n',
                           "src/texts.py": TEXTS_PY}  # fmt: skip
        self._took("bpe_train_text", "tokenizer.text_builder")

    def _symbols(self) -> None:
        name = self.recipe.get("nlsyms_txt")
        origin = self.recipe.origin("nlsyms_txt")
        if name and name != "none":
            note = "symbols that are one token each are not here; tokenizer.clean_types: [no_tags]"
            self.journal.changes(origin, "--nlsyms_txt", name, note)
        if self.new.tokenizer is not None and self.recipe.get("token_type") == "bpe":
            self._took("bpe_nlsyms", TOKENIZER, "its symbols are among the tokens")
            self._took("bpe_train_text", TOKENIZER, "the tokens are there already")

    # --- Configs -------------------------------------------------------------------------------

    def _without_old_weights(self, keys: LoopKeys) -> None:
        """Take out what names weights or modules of ESPnet2's model."""
        pretrained = self.recipe.options.get("pretrained_model")
        if pretrained and pretrained.value:
            note = "weights of an ESPnet2 model do not fit ours"
            self.journal.changes(pretrained.origin, "--pretrained_model", pretrained.value, note)
        for key in ("init_param", "freeze_param"):
            if keys.value(key):
                keys.lose(key, "names parts of ESPnet2's model")
                keys.config.values.pop(key)

    def _training(self, settings: dict[str, Any], use_amp: bool) -> None:
        rate = self.recipe.sample_rate
        dataset = self._dataset(
            train=train_entries(self.recipe, self.train),
            valid=[one.entry(rate) for one in self.valid],
        )
        head = {"seed": settings.pop("seed"), OLD_RECIPE: str(self.recipe.folder.resolve())}
        nj = int(self.recipe.number("nj"))
        note = "as many as there are cores, at most so many; in conf/parallel_*.yaml all of them"
        self._took("nj", "parallel.n_workers", note)
        parallel = {"env": "local", "n_workers": f"${{n_cores:{max(1, nj)}}}"}
        criteria, self.weights = checkpoint_of(
            self.recipe.get("inference_asr_model"), settings["best_model_criterion"],
            self.recipe.origin("inference_asr_model"), self.journal,
        )  # fmt: skip
        settings["best_model_criterion"] = criteria
        comment = (
            f"Written by `espnet3 migrate` from {self.recipe.folder.name}/{self.recipe.script} of "
            "ESPnet2.\nMIGRATION.md says where each value comes from."
        )
        tokenizer = {"tokenizer": self.tokenizer} if self.tokenizer else {}
        values = {**head, **tokenizer, "dataset": dataset, "model": self.model}
        self.new.add_config("training", comment, {**values, **settings, "parallel": parallel})
        if use_amp:
            amp = {"defaults": ["training"], "trainer": {"precision": "16-mixed"}}
            self.new.add_config("training_amp", "training.yaml in half precision, on GPUs.", amp)
        if self.recipe.options.get("num_nodes"):
            self._took("num_nodes", "trainer.num_nodes")
        self._took("asr_speech_fold_length", "dataloader.train.batch_seconds")

    def _inference(self, settings: dict[str, Any]) -> None:
        recipe = self.recipe
        decode = recipe.config("inference_config") or ConfigFile("(no config)", {})
        self._took("inference_config", "conf/inference.yaml")
        decode = decode.with_arguments(recipe.options.get("inference_args"), self.journal)
        model = self._decoder(decode)
        workers = max(1, int(recipe.number("inference_nj")))
        self._took("inference_nj", "parallel.n_workers", "as many as there are cores, at most so "
                   "many; in conf/parallel_*.yaml all of them")  # fmt: skip
        has_gpus = recipe.is_on("gpu_inference")
        speakers = all(one.has_speakers for one in self.test)
        values: dict[str, Any] = {
            OLD_RECIPE: str(recipe.folder.resolve()),
            "dataset": {"test": [one.entry(recipe.sample_rate, named=True) for one in self.test]},
            "model": model,
            **({} if has_gpus else {"device": "cpu"}),
            "input_key": "speech",
            "output_fn": f"espnet3.systems.{'espnet2' if self.keeps_model else 'asr'}"
            ".inference.output_fn",
            "output_keys": ["hyp", "ref", *(["speaker"] if speakers else [])],
            "batch_seconds": 60,
            "parallel": {"env": "local", "n_workers": f"${{n_cores:{workers}}}"},
        }
        self._took("gpu_inference", "device" if not has_gpus else "conf/parallel_gpu.yaml")
        comment = "Test sets and decoding, with the weights of conf/training.yaml."
        self.new.add_config("inference", comment, values)
        self._decode_old_model(decode, values)

    def _decoder(self, decode: ConfigFile) -> dict[str, Any]:
        """Return the `model` block of the inference config."""
        models = LanguageModels(self.recipe, self.new.add_config, self.train, self.valid)
        if self.keeps_model:
            lm_keys = models.kept(decode, self.token_keys)
            return build_kept_inference(self.recipe, decode, self.weights, lm_keys)
        lm = models.native(decode, is_transducer="prediction" in self.model)
        model: dict[str, Any] = {
            "_target_": "espnet3.systems.asr.inference.Speech2Text",
            "weights": self.weights,
            "decoder": build_search(self.recipe, decode, self.model, lm),
        }
        best = decode.values.get("nbest", 1)
        if isinstance(best, int) and best > 1:
            model["n_best"] = best
        return model

    def _decode_old_model(self, decode: ConfigFile, values: dict[str, Any]) -> None:
        """Write how the model that the old recipe trained is decoded, if there is one."""
        model = old_model(self.recipe, decode)
        if model is None:
            return
        output = "espnet3.systems.espnet2.inference.output_fn"
        comment = (
            "The model that the old recipe has trained, decoded as it is; needs the extra espnet2."
        )
        changed = {**values, "model": model, "output_fn": output}
        self.new.add_config("inference_espnet2", comment, changed)
        self.new.commands.append(
            (
                "python run.py --stages infer measure --inference_config "
                f"{OLD_CONFIG} --metrics_config conf/metrics.yaml",
                "decode the old weights, without training",
            )
        )

    def _metrics(self) -> None:
        speakers = all(one.has_speakers for one in self.test)
        by = {"by": ["speaker", "length"] if speakers else ["length"]}
        metrics = [
            {"metric": {"_target_": "espnet3.systems.asr.metrics.wer.WER", **by}},
            {"metric": {"_target_": "espnet3.systems.asr.metrics.cer.CER"}},
        ]
        self.new.add_config("metrics", "What `measure` computes.", {"metrics": metrics})

    # --- What to type, and what is left --------------------------------------------------------

    def _commands(self, has_statistics: bool) -> None:
        configs = (
            "--training_config conf/training.yaml --inference_config conf/inference.yaml "
            "--metrics_config conf/metrics.yaml"
        )
        has_tokens = self.has_tokens if self.keeps_model else self.new.tokenizer is not None
        first = [] if has_tokens else ["train_tokenizer"]
        first += ["collect_stats"] if has_statistics else []
        lines = []
        if "conf/training_lm.yaml" in self.new.files:
            if "train_tokenizer" in first:
                first.remove("train_tokenizer")
                lines.append(("python run.py --stages train_tokenizer --training_config "
                              "conf/training.yaml", "the tokens, of both models"))  # fmt: skip
            lines.append(("python run.py --stages train --training_config conf/training_lm.yaml",
                          "the language model"))  # fmt: skip
        lines.append((f"python run.py --stages {' '.join([*first, 'train-report'])} {configs}",
                      "everything; --dry-run shows it first"))  # fmt: skip
        self.new.commands = [*lines, *self.new.commands]
        asr_options.stages_line(self.recipe)


def note_old_files(recipe: SourceRecipe) -> None:
    """Note the files that were not read as a part of something else."""
    folder, journal = recipe.folder, recipe.journal
    if (folder / "path.sh").exists() or (folder / "path.sh").is_symlink():
        note = "the environment of the shell: activate yours before you start run.py"
        journal.left_out(Origin("path.sh"), "file", "", note)
    for file in sorted(folder.glob("local/*")):
        name = f"local/{file.name}"
        if file.name in ("data.sh", "data_prep.sh"):
            note = "not run; the directories that it makes are read"
        elif file.name == "score.sh":
            note = "not run; measure computes WER and CER"
        else:
            note = "not read"
        journal.left_out(Origin(name), "file", "", note)
    for file in sorted(folder.glob("run*.sh")):
        if file.name != recipe.script:
            note = f"another experiment: espnet3 migrate ... --script {file.name}"
            journal.left_out(Origin(file.name), "file", "", note)
    for file in sorted(folder.glob("exp/*/*.pth")):
        origin = Origin(str(file.relative_to(folder)))
        if origin not in {entry.origin for entry in journal.entries}:
            note = "weights of ESPnet2 that nothing of the new recipe reads"
            journal.left_out(origin, "weights", "", note)


def check_target(source: Path, target: Path) -> None:
    """Refuse a folder that is there, and one within the old recipe.

    Raises:
        MigrationError: The message has another name.
    """
    if os.path.lexists(target):
        raise MigrationError(
            f"{target} is there already, and nothing is ever written over.",
            fix=f"Choose another name: espnet3 migrate {source} {target}_2",
        )
    inside = source.resolve()
    if target.absolute() == inside or inside in target.resolve().parents:
        raise MigrationError(
            f"{target} lies within the old recipe, of which nothing is changed.",
            fix=f"Choose a folder elsewhere: espnet3 migrate {source} my_corpus/asr",
        )


def write_recipe(new: NewRecipe, target: Path) -> None:
    """Write all files beside the target, then rename the folder: half a recipe is never seen."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.migrating-{os.getpid()}")
    try:
        for name, text in sorted({**new.files, "MIGRATION.md": report(new)}.items()):
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if new.tokenizer is not None:
            new.tokenizer.save(part / TOKENIZER, {"migrated_from": str(new.source)})
        os.rename(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def report(new: NewRecipe) -> str:
    """Return MIGRATION.md."""
    journal = new.journal
    left = journal.left_behind
    lines = [
        f"# Migrated from {new.source}",
        "",
        f"Written by `espnet3 migrate`; nothing of the old recipe was changed or run. "
        f"{new.model_note}".strip(),
        "",
        "## Run it",
        "",
        "```sh",
        *(f"{command}  # {what}" for command, what in new.commands),
        "```",
        "",
    ]
    if journal.todos:
        lines += ["## To do first", "", *(f"- {' '.join(t.split())}" for t in journal.todos), ""]
    lines += ["## What changes results", ""]
    if left:
        lines += [f"{count(len(left), 'setting')} of the old recipe could not be kept:", ""]
        lines += [journal.table(left), ""]
    else:
        lines += ["Nothing was left out.", ""]
    lines += ["## All that was read", "", journal.table(), ""]
    return "\n".join(lines)
