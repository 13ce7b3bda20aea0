"""Make a recipe of ESPnet3 from one of another task than asr: ESPnet2's model, data and scores."""

import math
from pathlib import Path
from typing import Any

from espnet3.components.data.sources.kaldi import check_wav_values, read_table
from espnet3.errors import RecordError
from espnet3.migration import asr_options
from espnet3.migration.asr_model import below_network
from espnet3.migration.jobs import add_places
from espnet3.migration.journal import Origin
from espnet3.migration.new_recipe import RUN_PY, NewRecipe, note_old_files
from espnet3.migration.old_files import OLD_RECIPE
from espnet3.migration.source_recipe import ConfigFile, MigrationError, SourceRecipe
from espnet3.migration.task_kinds import BY_HAND, KINDS, File, TaskTokens
from espnet3.migration.training_keys import LoopKeys, checkpoint_of

_SYSTEM = "espnet3.systems.espnet2"
_SPEED = "espnet3.components.data.augmentation.SpeedPerturb"
_METRICS = "espnet3.components.metrics"
_SEARCH = ("beam_size", "ctc_weight", "lm_weight", "penalty", "maxlenratio", "minlenratio", "nbest")
_SEARCHED = ("st", "mt", "slu", "asr2")
_TEXT_KEYS = ("token_type", "src_token_type", "token_list", "src_token_list", "bpemodel",
              "src_bpemodel", "cleaner", "g2p")  # fmt: skip
_OF_DECODING = ("inference_args", "inference_nj", "gpu_inference", "inference_lm", "use_lm",
                "lm_config", "lm_args", "lm_train_text", "lm_dev_text", "hyp_cleaner", "cleaner",
                "local_score_opts", "inference_batch_size")  # fmt: skip
_NOT_DECODING = ("batch_size", "ngpu", "num_workers", "log_level", "output_dir", "seed")
_N_VALIDATED = 100
"""Batches of the training set that a speaker encoder is validated on."""


def check_kind(recipe: SourceRecipe) -> None:
    """Refuse recipes of tasks that are not migrated, and those of two losses in turn.

    Raises:
        MigrationError: Saying what can be done by hand.
    """
    task, place = recipe.task, recipe.folder / recipe.script
    if task not in KINDS:
        known = ", ".join(f"{one}.sh" for one in ("asr", *KINDS))
        by_hand = BY_HAND.get(task, f"nothing here trains {task}: train it with ESPnet2")
        raise MigrationError(
            f"{place} calls {task}.sh, and recipes of {known} can be migrated. By hand: {by_hand}.",
            fix="Start from a recipe of your own, espnet3 init FOLDER, with the model and data of "
            "docs/espnet2.md#models-of-espnet2",
        )
    kind = recipe.get("tts_task")
    if task == "tts" and kind not in ("", "tts"):
        raise MigrationError(
            f"{recipe.origin('tts_task')}: --tts_task {kind} is trained by two losses in turn, "
            "which ESPnet2Model does not do.",
            fix="Train it by ESPnet2, and decode it here: task: tts with its config.yaml and .pth, "
            "docs/espnet2.md#models-of-espnet2",
        )


def build_task_recipe(recipe: SourceRecipe) -> NewRecipe:
    """Return the recipe, with ESPnet2's own model.

    Raises:
        MigrationError: The task is not migrated, or something without which there is no recipe is
            missing.
    """
    check_kind(recipe)
    builder = _TaskBuilder(recipe)
    builder.build()
    return builder.new


class _TaskBuilder:
    def __init__(self, recipe: SourceRecipe) -> None:
        self.recipe, self.journal = recipe, recipe.journal
        self.further: dict[str, Any] = {}
        """Keys of the preprocessor beside those of tokens."""
        self.kind = KINDS[recipe.task]
        self.new = NewRecipe(recipe.folder, recipe.journal, {"run.py": RUN_PY})
        self.task = self.kind.trained_as or recipe.task
        """ESPnet2's, of the model."""
        self.new.model_note = (
            f"The model is ESPnet2's own, of its task {self.task}, which needs the extra espnet2."
        )

    def build(self) -> None:
        recipe = self.recipe
        config = self._config(self.kind.config, self.kind.arguments, "conf/training.yaml")
        self.files = self.kind.files(recipe)
        self._took_names()
        self.train = self._train_names()
        self.valid = self._names("valid_set")
        self.test = list(dict.fromkeys(self._names("test_sets")))
        self.tokens = TaskTokens(recipe, self.new.add_config, self.place(self.train[0]))
        self.has_audio = any(type == "sound" for _, _, type in self.files)
        keys = LoopKeys(config, recipe, self.kind.metrics, has_audio=self.has_audio)
        model = self._model(keys)
        settings = below_network(keys.settings())
        keys.finish(dict.fromkeys(_TEXT_KEYS, "see the options of run.sh"))
        self._training(model, settings, bool(config.values.get("use_amp")))
        if self.kind.is_inferred:
            self._inference()
            self._metrics()
        else:
            self._only_trained()
        self.new.commands += add_places(recipe, self.new.add_config)
        self._commands(model)
        note_old_files(recipe)
        asr_options.note_rest(recipe, self.kind.left_out)

    def _config(self, option: str, arguments: str, became: str) -> ConfigFile:
        recipe = self.recipe
        config = recipe.config(option)
        if config is None:
            config = ConfigFile("(no config)", {})
            if option == self.kind.config:
                note = "not set, or not known: ESPnet2's defaults are taken"
                self.journal.changes(Origin(recipe.script), f"--{option}", "", note)
        else:
            self._took(option, became)
        return config.with_arguments(recipe.options.get(arguments), self.journal)

    def _took(self, option: str, became: str, note: str = "") -> None:
        found = self.recipe.options.get(option)
        if found:
            self.journal.taken(found.origin, f"--{option}", found.value, became, note)

    # --- Data ----------------------------------------------------------------------------------

    def _train_names(self) -> list[str]:
        """Return the names of the training sets, of those with copies of other speeds if asked."""
        names, option = self._names("train_set"), "speed_perturb_factors"
        if not self.kind.has_copies or not self.recipe.get(option):
            return names
        self._took(option, "dataset.train", "the copies of the old recipe are read, NAME_sp")
        return [f"{name}_sp" for name in names]

    def _names(self, option: str) -> list[str]:
        names = self.recipe.get(option).split()
        if names:
            return names
        if not any(entry.name == f"--{option}" for entry in self.journal.entries):
            raise MigrationError(
                f"{self.recipe.folder / self.recipe.script} gives no --{option}, so it is half a "
                "recipe.",
                fix=f"Add it to the call: --{option} NAME",
            )
        self.journal.todo(f"--{option} is not known: write the names of the sets under dataset")
        return [f"SET_THE_{option.upper()}"]

    def _took_names(self) -> None:
        for option, became in (
            ("train_set", "dataset.train"), ("valid_set", "dataset.valid"),
            ("test_sets", "dataset.test"), ("fs", "data_src_args.sample_rate"),
            ("feats_type", ""), ("dumpdir", ""), *((f"{side}_{name}", "data_src_args.files")
            for side in ("src", "tgt") for name in ("lang", "case")),
            ("spk_num", "data_src_args.files"), ("use_sid", "data_src_args.files"),
            ("use_lid", "data_src_args.files"), ("use_noise_ref", "data_src_args.files"),
            ("use_dereverb_ref", "data_src_args.files"), ("noise_type_num", "data_src_args.files"),
            ("dereverb_ref_num", "data_src_args.files"), ("use_transcript", "data_src_args.files"),
        ):  # fmt: skip
            if option != "test_sets" or self.kind.is_inferred:
                self._took(option, became)
        kind = self.recipe.get("feats_type")
        if kind not in ("raw", "raw_copy"):
            note = "extracted features are not read; audio is"
            self.journal.changes(self.recipe.origin("feats_type"), "--feats_type", kind, note)

    def place(self, name: str) -> str:
        """Return the directory of a set below the old recipe: of `dump/`, else of `data/`."""
        dump = f"{self.recipe.get('dumpdir')}/{self.recipe.get('feats_type')}"
        places = [f"{dump}/{name}", f"{dump}/org/{name}", f"data/{name}"]
        first = self.files[0][0]
        found = [one for one in places if (self.recipe.folder / one / first).is_file()]
        if self.kind.has_copies:  # data/ lacks what the stages before dump/ make
            return found[0] if found else places[0]
        return found[0] if found else places[-1]

    def _entry(self, name: str, *, named: bool = False) -> dict[str, Any]:
        place = self.place(name)
        problem = _problem(self.recipe.folder / place, self.files)
        if problem:
            self.journal.todo(
                f"{place}: {problem} In the old recipe, make it: cd {self.recipe.folder} && "
                f"./{self.recipe.script} --stage 1 --stop_stage {self.kind.data_stage}; or write "
                "other files under dataset"
            )
        else:
            note = f"reads {', '.join(file for file, _, _ in self.files)}"
            self.journal.taken(Origin(place), "data directory", "", f"dataset: {name}", note)
        old = f"${{{OLD_RECIPE}}}"
        files = [[f"{old}/{place}/{file}", key, type] for file, key, type in self.files]
        arguments: dict[str, Any] = {"files": files}
        if self.has_audio:
            arguments["sample_rate"] = self.recipe.sample_rate
            if place.startswith("data/"):
                arguments["resample"] = True
        entry = {"data_src": f"{_SYSTEM}.data_files", "data_src_args": arguments}
        return {"name": name.replace("/", "_"), **entry} if named else entry

    def _train_entries(self) -> list[dict[str, Any]]:
        entries = [self._entry(name) for name in self.train]
        words = self.recipe.get("speed_perturb_factors").split()
        if not words or self.kind.has_copies:
            return entries
        try:
            factors = [float(word) for word in words]
        except ValueError:
            factors = []
        origin, option = self.recipe.origin("speed_perturb_factors"), "--speed_perturb_factors"
        if not factors or not all(0 < one < math.inf for one in factors):
            self.journal.changes(origin, option, " ".join(words), "are not all numbers")
            return entries
        note = "drawn again in each epoch instead of copied; weight keeps the length of an epoch"
        self.journal.taken(origin, option, " ".join(words), "dataset.train.0.transform", note)
        speed = {"_target_": _SPEED, "factors": factors}
        return [{**entry, "transform": speed, "weight": len(factors)} for entry in entries]

    # --- Model and training --------------------------------------------------------------------

    def _model(self, keys: LoopKeys) -> dict[str, Any]:
        task = self.recipe.task
        model: dict[str, Any] = {
            "_target_": f"{_SYSTEM}.model.ESPnet2Model", "task": self.task, **self.tokens.keys,
        }  # fmt: skip
        for key in (key for part in self.kind.parts for key in (part, f"{part}_conf")):
            value = keys.value(key)
            if key == "init" and value == "none":
                continue
            if value is not None or (key in keys.config.values and not key.endswith("_conf")):
                model[key] = value
                keys.note(key, f"model.{key}", "as it is")
        keys.config.values.pop("init", None)
        if task == "tts":
            self._features(model)
        elif task in ("st", "slu", "s2t") and model.get("frontend", "default") is not None:
            rate = self.recipe.sample_rate
            model["frontend_conf"] = {**model.get("frontend_conf", {}), "fs": rate}
        elif task == "spk":
            model["spk_num"] = self._n_labels("utt2spk", "spk_num")
        elif task == "lid":
            model["lang_num"] = self._n_labels("utt2lang", "lang_num")
            self._same_languages()
        if task in ("st", "slu", "tts", "s2t"):
            self._normalization(model)
        if task == "s2t":
            self._marks(keys)
        return model

    def _normalization(self, model: dict[str, Any]) -> None:
        asked = self.recipe.get("feats_normalize")
        self._took("feats_normalize", "model.normalize")
        if asked == "global_mvn":
            model["normalize"] = "global_mvn"
            model["normalize_conf"] = {"stats_file": "${stats_dir}/train/feats_stats.npz"}
        elif self.recipe.task == "tts":
            model["normalize"] = None
        for part in ("pitch", "energy") if "pitch_extract" in model else ():
            if model.get(f"{part}_normalize") == "global_mvn":
                file = f"${{stats_dir}}/train/{part}_stats.npz"
                model[f"{part}_normalize_conf"] = {"stats_file": file}

    def _features(self, model: dict[str, Any]) -> None:
        """Write the options of tts.sh about features into the model, as tts.sh does."""
        recipe = self.recipe
        model["feats_extract"] = recipe.get("feats_extract")
        self._took("feats_extract", "model.feats_extract")
        named: dict[str, Any] = {"fs": recipe.sample_rate}
        for option, key in (
            ("n_fft", "n_fft"), ("n_shift", "hop_length"), ("win_length", "win_length"),
            ("fmin", "fmin"), ("fmax", "fmax"), ("n_mels", "n_mels"), ("f0min", "f0min"),
            ("f0max", "f0max"),
        ):  # fmt: skip
            text = recipe.get(option)
            if text and text != "null":
                named[key] = int(recipe.number(option)) if text.isdigit() else text
                self._took(option, f"model.feats_extract_conf.{key}")
            elif text:
                self._took(option, "", "nothing is set")
        spectra = ("n_fft", "hop_length", "win_length")
        bands = ("fs", "fmin", "fmax", "n_mels") if model["feats_extract"] == "fbank" else ()
        for part, keys in (
            ("feats_extract", (*spectra, *bands)),
            ("pitch_extract", ("fs", "n_fft", "hop_length", "f0min", "f0max")),
            ("energy_extract", ("fs", *spectra)),
        ):
            if part == "feats_extract" or model.get(part):
                given = {key: named[key] for key in keys if key in named}
                model[f"{part}_conf"] = {**given, **model.get(f"{part}_conf", {})}

    def _labels(self, set_name: str, file: str) -> set[str] | None:
        path = self.recipe.folder / self.place(set_name) / file
        try:
            return set(read_table(path).values()) if path.is_file() else None
        except RecordError:
            return None

    def _n_labels(self, file: str, key: str) -> int:
        labels = self._labels(self.train[0], file)
        if labels:
            return len(labels)
        self.journal.todo(
            f"{self.recipe.folder / self.place(self.train[0]) / file} is not there yet: write the "
            f"number of its different labels as model.{key} into conf/training.yaml"
        )
        return 1

    def _same_languages(self) -> None:
        """Tell of sets whose languages have other numbers than those of the first one."""
        known = self._labels(self.train[0], "utt2lang")
        for name in (*self.train[1:], *self.valid):
            found = self._labels(name, "utt2lang")
            if known is not None and found is not None and found != known:
                self.journal.todo(
                    f"{self.place(name)}/utt2lang has other languages than "
                    f"{self.place(self.train[0])}: labels are numbers in the order of the names in "
                    "each file, so both need the same; leave out utterances, or write the numbers "
                    "into a file of your own, type text_int"
                )

    def _marks(self, keys: LoopKeys) -> None:
        """Take how texts with times and the text before are made ready."""
        self.further = {"preprocessor": keys.value("preprocessor", "s2t")}
        block = keys.block("preprocessor_conf")
        if block:
            self.further["preprocessor_conf"] = block
        for key in ("preprocessor", "preprocessor_conf"):
            keys.note(key, f"transform.{key}", "drawn for training, and fixed for validation")
        found = self.recipe.options.get("nlsyms_txt")
        if found and found.value not in ("", "none"):
            self.further["non_linguistic_symbols"] = f"${{{OLD_RECIPE}}}/{found.value}"
            self._took("nlsyms_txt", "transform.non_linguistic_symbols")

    def _preprocessor(self) -> dict[str, Any] | None:
        if self.task in ("spk", "lid"):  # ESPnet2's does not run beside NumPy 2.4
            return None
        block: dict[str, Any] = {
            "_target_": f"{_SYSTEM}.preprocessor.ESPnet2Preprocessor", "task": self.task,
        }  # fmt: skip
        return {**block, **self.tokens.keys, **self.further}

    def _training(self, model: dict[str, Any], settings: dict[str, Any], use_amp: bool) -> None:
        recipe = self.recipe
        valid = [self._entry(name) for name in self.valid]
        if recipe.task == "spk":
            valid = [self._entry(name) for name in self.train]
            settings["trainer"]["limit_val_batches"] = _N_VALIDATED
            note = "ESPnet2 validates by the trials of this set; here the loss of training data is "
            note += "taken, and measure computes the EER"
            self.journal.changes(recipe.origin("valid_set"), "--valid_set", " ".join(self.valid),
                                 note, "dataset.valid")  # fmt: skip
        criteria, self.weights = checkpoint_of(
            recipe.get(self.kind.weights), settings["best_model_criterion"],
            recipe.origin(self.kind.weights), self.journal, f"--{self.kind.weights}",
        )  # fmt: skip
        settings["best_model_criterion"] = criteria
        workers = max(1, int(recipe.number("nj")))
        self._took("nj", "parallel.n_workers")
        values = {
            "seed": settings.pop("seed"), OLD_RECIPE: str(recipe.folder.resolve()),
            **self.tokens.block,
            "dataset": self._datasets(valid),
            "model": model, **settings,
            "parallel": {"env": "local", "n_workers": f"${{n_cores:{workers}}}"},
        }  # fmt: skip
        comment = (
            f"Written by `espnet3 migrate` from {recipe.folder.name}/{recipe.script} of ESPnet2.\n"
            "MIGRATION.md says where each value comes from."
        )
        self.new.add_config("training", comment, values)
        if use_amp:
            amp = {"defaults": ["training"], "trainer": {"precision": "16-mixed"}}
            self.new.add_config("training_amp", "training.yaml in half precision, on GPUs.", amp)
        if "num_nodes" in recipe.options:
            self._took("num_nodes", "trainer.num_nodes")

    def _datasets(self, valid: list[dict[str, Any]]) -> dict[str, Any]:
        train, preprocessor = self._train_entries(), self._preprocessor()
        if self.task == "s2t":
            # That of s2t draws what training sees, and can be applied only once.
            drawn = {**(preprocessor or {}), "train": True}
            return {"train": [{**one, "transform": drawn} for one in train],
                    "valid": [{**one, "transform": preprocessor} for one in valid]}  # fmt: skip
        sets = {"train": train, "valid": valid}
        return {**sets, "preprocessor": preprocessor} if preprocessor else sets

    # --- Inference and scores ------------------------------------------------------------------

    def _only_trained(self) -> None:
        """List what decides about results that `infer` cannot make."""
        note = f"infer takes no models of ESPnet2's task {self.task}: decode with ESPnet2"
        place = self.recipe.origin("test_sets")
        self.journal.changes(place, "--test_sets", " ".join(self.test), note)
        for name in (self.kind.decode, *_OF_DECODING):
            option = self.recipe.options.get(name)
            if option and option.value:
                self.journal.left_out(option.origin, f"--{name}", option.value, "of decoding")

    def _inference(self) -> None:
        recipe = self.recipe
        decode = self._config(self.kind.decode, "inference_args", "conf/inference.yaml")
        workers = max(1, int(recipe.number("inference_nj")))
        self._took("inference_nj", "parallel.n_workers")
        has_gpus = recipe.is_on("gpu_inference")
        self._took("gpu_inference", "conf/parallel_gpu.yaml" if has_gpus else "device")
        inputs = [self.kind.reads, *(name for _, name, _ in self.files if name in ("sids", "lids"))]
        values: dict[str, Any] = {
            OLD_RECIPE: str(recipe.folder.resolve()),
            "dataset": {"test": [self._entry(name, named=True) for name in self.test]},
            "model": {
                "_target_": f"{_SYSTEM}.inference.ESPnet2Inference",
                "task": self.task,
                "config": "${exp_dir}/config.yaml",
                "weights": self.weights,
                **self._decoding(decode),
            },
            **({} if has_gpus else {"device": "cpu"}),
            "input_key": inputs if len(inputs) > 1 else inputs[0],
            "output_fn": f"{_SYSTEM}.inference.output_fn",
            **self._outputs(),
            "parallel": {"env": "local", "n_workers": f"${{n_cores:{workers}}}"},
        }
        comment = "Test sets and what the model makes of them, with the weights of training.yaml."
        self.new.add_config("inference", comment, values)

    def _decoding(self, decode: ConfigFile) -> dict[str, Any]:
        named: dict[str, Any] = {}
        options: dict[str, Any] = {}
        searched = self.recipe.task in _SEARCHED
        for key, value in decode.values.items():
            origin = decode.origin(key)
            if key in _NOT_DECODING:
                self.journal.unneeded(origin, key, value, "the inference config has it")
            elif key == "lm_weight":
                continue
            elif searched and key in _SEARCH:
                named[key] = value
                self.journal.taken(origin, key, value, f"model.{key}", "as it is")
            elif value is not None:
                options[key] = value
                self.journal.taken(origin, key, value, f"model.options.{key}", "as it is")
        for option in ("vocoder_file", "vocoder_config"):
            text = self.recipe.get(option)
            if text and text != "none":
                options[option] = str(self.recipe.folder / text)
                self._took(option, f"model.options.{option}")
        if searched:
            self._no_language_model(decode)
        return named | ({"options": options} if options else {})

    def _no_language_model(self, decode: ConfigFile) -> None:
        recipe = self.recipe
        weight = decode.values.get("lm_weight", 1.0)
        is_used = recipe.is_on("use_lm") and bool(weight)
        origin, shown = recipe.origin("use_lm"), recipe.get("use_lm")
        if is_used:
            note = "a language model is migrated for asr only; train it by task: lm, and write "
            note += "lm_train_config and lm_file into conf/inference.yaml"
            self.journal.changes(origin, "--use_lm", shown, note)
        else:
            self.journal.unneeded(origin, "--use_lm", shown, "none is used")
        for name in ("lm_config", "lm_args", "lm_train_text", "lm_dev_text", "inference_lm"):
            option = recipe.options.get(name)
            if option:
                note = "of the language model"
                self.journal.left_out(option.origin, f"--{name}", option.value, note)

    def _outputs(self) -> dict[str, Any]:
        recipe = self.recipe
        wav = {"type": "wav", "sample_rate": recipe.sample_rate}
        if recipe.task == "tts":
            return {"output_artifacts": {"wav": wav}}
        if recipe.task == "spk":
            return {"output_artifacts": {"embedding": {"type": "npy"}}}
        if recipe.task == "enh":
            return {"output_artifacts": dict.fromkeys(self._enhanced(), wav)}
        return {"output_keys": ["hyp", "ref"]}

    def _enhanced(self) -> list[str]:
        number = int(self.recipe.number("spk_num"))
        return ["enhanced"] if number == 1 else [f"spk{n}" for n in range(1, number + 1)]

    def _metrics(self) -> None:
        task, entries = self.recipe.task, list[dict[str, Any]]()
        folders = {name.replace("/", "_"): self.place(name) for name in self.test}
        roots = {place.removesuffix(name.replace("_", "/")) for name, place in folders.items()}
        root = next(iter(roots)).rstrip("/") if len(roots) == 1 else str(Path(self.place(
            self.test[0])).parent)  # fmt: skip
        old = f"{self.recipe.folder.resolve()}/{root}/{{test_set}}"
        if task in ("st", "mt"):
            entries.append({"metric": {"_target_": f"{_METRICS}.bleu.BLEU"}})
        elif task in ("slu", "asr2"):
            entries += [
                {"metric": {"_target_": "espnet3.systems.asr.metrics.wer.WER"}},
                {"metric": {"_target_": "espnet3.systems.asr.metrics.cer.CER"}},
            ]
        elif task == "enh":
            names = self._enhanced()
            references = [f"ref{n}" for n in range(1, len(names) + 1)]
            metric = {"_target_": f"{_METRICS}.si_snr.SISNR", "ref_key": _one(references),
                      "hyp_key": _one(names)}  # fmt: skip
            inputs = {ref: f"{old}/spk{n}.scp" for n, ref in enumerate(references, 1)}
            entries.append({"metric": metric, "inputs": inputs})
        elif task == "spk":
            trials = f"{old}/trial_label"
            entries.append({"metric": {"_target_": f"{_METRICS}.eer.EER", "trials": trials}})
        if entries:
            self.new.add_config("metrics", "What `measure` computes.", {"metrics": entries})

    def _commands(self, model: dict[str, Any]) -> None:
        first = ["train_tokenizer"] if self.tokens.is_trained else []
        if "stats_file" in str(model):
            first.append("collect_stats")
        files = [name for name in ("training", "inference", "metrics")
                 if f"conf/{name}.yaml" in self.new.files]  # fmt: skip
        configs = " ".join(f"--{name}_config conf/{name}.yaml" for name in files)
        last = {"training": "train", "inference": "train-infer", "metrics": "train-measure"}
        stages = [*first, last[files[-1]]]
        line = f"python run.py --stages {' '.join(stages)} {configs}"
        self.new.commands = [(line, "everything; --dry-run shows it first"), *self.new.commands]
        asr_options.stages_line(self.recipe)


def _one(names: list[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else names


def _problem(folder: Path, files: list[File]) -> str:
    """Return what a data directory lacks; empty if it has all."""
    for name, _, type in files:
        if not (folder / name).is_file():
            return f"{name} is not there yet."
        try:
            table = read_table(folder / name)
            if type == "sound":
                check_wav_values(table, folder / name)
        except RecordError as error:
            return str(error)
    if any(type == "sound" for _, _, type in files) and (folder / "segments").is_file():
        return "its segments are cut by the old recipe's formatting, stage 3 or 4."
    return ""
