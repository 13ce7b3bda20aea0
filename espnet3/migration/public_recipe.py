"""Turn a recipe of the public ESPnet3, `egs3/CORPUS/asr`, into one that runs here.

Its `run.py` takes stages from a TEMPLATE, and each of its configs is merged over the TEMPLATE's
file of the same name, so it holds only what differs. Most keys are the same here; what the
TEMPLATE adds is written out, and what has another form here is translated.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import espnet3
from espnet3.config.known_keys import OWN
from espnet3.migration.journal import Journal, Origin
from espnet3.migration.new_recipe import RUN_PY, NewRecipe
from espnet3.migration.source_recipe import ConfigFile, MigrationError, read_config

_SYSTEM = "espnet3.systems.espnet2"
_WARMUP = "espnet3.components.schedulers.WarmupLR"
_SPEED = "espnet3.components.data.augmentation.SpeedPerturb"
_CONTEXT = (
    "recipe_dir", "data_dir", "dataset_dir", "exp_tag", "exp_dir", "stats_dir", "inference_dir",
    "seed", "num_device", "num_nodes", "vars", "defaults", "dataset", "model",
)  # fmt: skip
_TEMPLATE: Mapping[str, dict[str, Any]] = {
    "training": {
        "optimizer": {"_target_": "torch.optim.Adam", "lr": 0.002},
        "scheduler": {"_target_": "espnet2.schedulers.warmup_lr.WarmupLR", "warmup_steps": 15000},
        "scheduler_interval": "step",
        "best_model_criterion": [["valid/loss", 3, "min"]],
        "trainer": {"max_epochs": 100, "gradient_clip_val": 1.0},
    },
    "inference": {"model": {"_target_": "espnet2.bin.asr_inference.Speech2Text"}},
    "metrics": {},
}
"""Defaults of the TEMPLATE, for recipes whose TEMPLATE is not beside them."""
_TASKS = {"enhancement": "enh", "speaker": "spk"}
_PREPROCESSOR = {
    "text_cleaner": "cleaner", "g2p_type": "g2p",
    **{key: key for key in (
        "token_type", "token_list", "bpemodel", "non_linguistic_symbols", "rir_scp",
        "rir_apply_prob", "noise_scp", "noise_apply_prob", "noise_db_range", "short_noise_thres",
        "speech_volume_normalize",
    )},
}  # fmt: skip
"""Arguments of ESPnet2's CommonPreprocessor that are keys of its configs."""
_DECODING = (
    "beam_size", "ctc_weight", "lm_weight", "penalty", "maxlenratio", "minlenratio", "nbest",
    "token_type", "bpemodel", "lm_train_config", "lm_file",
)  # fmt: skip
_BATCHES = ("numel", "length", "sorted", "unsorted", "folded")
_COPIED = (".py", ".yaml", ".yml", ".txt", ".json", ".md", ".sh", ".toml")
_OUTPUT = "src/migrated_output.py"
_OUTPUT_PY = '''"""Give an output_fn that was written for ESPnet2's Speech2Text what it expects."""

from {module} import {name} as original


def build_output(*, data, model_output, idx):
    """Call `{name}` with the tuples of ESPnet2: text, tokens, ids, hypothesis."""
    tuples = [(one.text, list(one.tokens), None, one) for one in model_output.n_best]
    return original(data=data, model_output=tuples, idx=idx)
'''


def is_public_recipe(folder: Path) -> bool:
    """Tell whether a folder is a recipe of the public ESPnet3: its run.py uses a TEMPLATE."""
    script = folder / "run.py"
    if not script.is_file() or (folder / "run.sh").exists() or not (folder / "conf").is_dir():
        return False
    return "TEMPLATE" in script.read_text(encoding="utf-8", errors="replace")


def build_public_recipe(folder: Path) -> NewRecipe:
    """Return the recipe with all that the TEMPLATE adds written out.

    Raises:
        MigrationError: There is no training config, or one is no YAML.
    """
    return _Public(folder).build()


class _Public:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal()
        self.new = NewRecipe(folder, self.journal, {"run.py": RUN_PY})
        self.new.model_note = "Models are ESPnet2's own, which need the extra espnet2."
        self.world = 1
        self.file = ""
        self.config = ConfigFile("", {})

    def build(self) -> NewRecipe:
        names = sorted(path.stem for path in (self.folder / "conf").glob("*.yaml"))
        if "training" not in names and not any(n.startswith("train") for n in names):
            raise MigrationError(
                f"{self.folder}/conf has no training config, so it is half a recipe.",
                fix="Give the folder of a whole recipe: espnet3 migrate egs3/mini_an4/asr an4/asr",
            )
        for name in names:
            kind = next((k for k in ("training", "inference", "metrics") if name.startswith(k)), "")
            kind = kind or ("training" if name.startswith("train") else "")
            if kind:
                self._write(name, kind)
            else:
                self._other(name)
        self._run_py()
        self._code()
        self._commands(names)
        return self.new

    # --- Configs -------------------------------------------------------------------------------

    def _write(self, name: str, kind: str) -> None:
        self.file = f"conf/{name}.yaml"
        self.config = read_config(self.folder, self.file, f"{self.folder}: {self.file}")
        values = self._with_template(kind, self.config.values)
        translate = {"training": self._training, "inference": self._inference}
        if kind in translate:
            values = translate[kind](values)
        values = self._known(values)
        self._note_rest(values)
        comment = (
            f"Written by `espnet3 migrate` from {self.file} of a recipe of the public ESPnet3,\n"
            "with what its TEMPLATE adds. MIGRATION.md says where each value comes from."
        )
        self.new.add_config(name, comment, values)

    def _with_template(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        file = self.folder.resolve().parents[1] / "TEMPLATE" / self.folder.resolve().name
        beside = file / "conf" / f"{kind}.yaml"
        origin = "TEMPLATE, as it is known"
        hidden = _TEMPLATE[kind]
        if beside.is_file():
            origin = f"TEMPLATE/{file.name}/conf/{kind}.yaml"
            hidden = read_config(file, f"conf/{kind}.yaml", str(beside)).values
        for key, value in hidden.items():
            if key not in values or isinstance(value, dict):
                self.journal.taken(Origin(origin), key, value, f"{self.file}: {key}",
                                   "hidden in the TEMPLATE; written out")  # fmt: skip
        return _merged(hidden, values)

    def _took(self, key: str, value: Any, became: str, note: str = "") -> None:
        origin = self.config.origin(key.partition(".")[0])
        self.journal.taken(origin, key, value, became, note)

    def _lost(self, key: str, value: Any, note: str, became: str = "") -> None:
        self.journal.changes(self.config.origin(key.partition(".")[0]), key, value, note, became)

    def _known(self, values: dict[str, Any]) -> dict[str, Any]:
        """Leave out keys that would be refused here, and list them."""
        kept = {}
        for key, value in values.items():
            if key in OWN[""] or key in _CONTEXT:
                kept[key] = value
            elif value in (None, {}, []):
                self.journal.unneeded(self.config.origin(key), key, value, "nothing is set")
            elif key in ("stage_log_mode", "device_index"):
                note = "not here; each stage has its log" if key == "stage_log_mode" else (
                    "the process chooses its GPU: CUDA_VISIBLE_DEVICES")  # fmt: skip
                self.journal.left_out(self.config.origin(key), key, value, note)
            else:
                self._lost(key, value, "is no key of a config here; write it below vars if other "
                           "keys refer to it")  # fmt: skip
        return kept

    def _note_rest(self, values: Mapping[str, Any]) -> None:
        noted = {e.name.partition(".")[0] for e in self.journal.entries if
                 e.origin.file == self.file}  # fmt: skip
        for key, value in self.config.values.items():
            if key not in noted and key in values:
                self._took(key, value, key, "as it is")

    def _training(self, values: dict[str, Any]) -> dict[str, Any]:
        counts = [values.get(key, 1) for key in ("num_device", "num_nodes")]
        self.world = 1
        for number in counts:
            self.world *= number if isinstance(number, int) else 1
        values = self._model(dict(values))
        values["dataset"] = self._dataset(_mapping(values.get("dataset")))
        values = self._dataloader(values)
        self._warmup(values)
        return values

    def _model(self, values: dict[str, Any]) -> dict[str, Any]:
        task = values.pop("task", None)
        model = _mapping(values.get("model"))
        if "_target_" in model or (task is None and not model):
            return values
        name = str(task or "asr").rpartition(".")[2].removesuffix("Task").lower()
        name = _TASKS.get(name, name)
        self._took("task", task, f"model.task: {name}")
        self._took("model", "", f"model: {_SYSTEM}.model.ESPnet2Model", "its keys as they are")
        preprocessor = _mapping(_mapping(values.get("dataset")).get("preprocessor"))
        tokens = {
            key: preprocessor[key]
            for key in ("token_type", "token_list", "bpemodel")
            if preprocessor.get(key) is not None
        }
        block = {"_target_": f"{_SYSTEM}.model.ESPnet2Model", "task": name, **tokens, **model}
        if isinstance(values.get("init"), str) and "init" not in model:
            block["init"] = values.pop("init")
            self._took("init", block["init"], "model.init", "ESPnet2's own initialisation")
        return {**values, "model": block}

    def _dataset(self, dataset: dict[str, Any]) -> dict[str, Any]:
        block = _mapping(dataset.get("preprocessor"))
        if not str(block.get("_target_", "")).endswith("CommonPreprocessor"):
            return dataset
        given: dict[str, Any] = {"_target_": f"{_SYSTEM}.preprocessor.ESPnet2Preprocessor",
                                 "task": "asr"}  # fmt: skip
        conf: dict[str, Any] = {}
        train = [dict(entry) for entry in dataset.get("train") or []]
        for key, value in block.items():
            full = f"dataset.preprocessor.{key}"
            if key in _PREPROCESSOR:
                given[_PREPROCESSOR[key]] = value
            elif key == "data_aug_effects" and value:
                self._speeds(value, train)
            elif key in ("_target_", "train", "data_aug_num", "data_aug_prob") or value is None:
                continue
            else:
                conf[key] = value
            self._took(full, value, full)
        if conf:
            given["preprocessor_conf"] = conf
        target = "dataset.preprocessor: ESPnet2Preprocessor"
        self._took("dataset.preprocessor", block["_target_"], target)
        return {**dataset, **({"train": train} if train else {}), "preprocessor": given}

    def _speeds(self, effects: Any, train: list[dict[str, Any]]) -> None:
        """Turn effects that change the speed into the transform of the training sets."""
        key = "dataset.preprocessor.data_aug_effects"
        factors = [_speed_of(effect) for effect in effects] if isinstance(effects, list) else [None]
        if None in factors or any("transform" in entry for entry in train):
            note = "only changes of speed are here, as the transform of a training set"
            self._lost(key, effects, note)
            return
        for entry in train:
            entry["transform"] = {"_target_": _SPEED, "factors": factors}
        self._took(key, effects, "dataset.train.0.transform: SpeedPerturb",
                   "each with the same probability")  # fmt: skip

    def _dataloader(self, values: dict[str, Any]) -> dict[str, Any]:
        loader = _mapping(values.get("dataloader"))
        collate = _mapping(loader.get("collate_fn"))
        if str(collate.get("_target_", "")).endswith("CommonCollateFn"):
            loader.pop("collate_fn")
            self._took("dataloader.collate_fn", collate["_target_"], "", "batches are padded alike")
        for split in ("train", "valid"):
            block = _mapping(loader.get(split))
            if block.get("iter_factory"):
                loader[split] = self._batches(split, block, values)
            elif block:
                loader[split] = {k: v for k, v in block.items() if k != "iter_factory"}
                self._global(split, loader[split])
        for split in ("train",):
            block = _mapping(loader.get(split))
            if not any(key in block for key in ("batch_size", "batch_bins", "batch_seconds")):
                self.journal.todo(
                    f"{self.file} sets no size of a batch, and that of the TEMPLATE is not known: "
                    "write dataloader: {train: {batch_size: 20}}"
                )
        return {**values, "dataloader": loader} if loader else values

    def _batches(self, split: str, block: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        factory = _mapping(block.pop("iter_factory"))
        batches = _mapping(factory.pop("batches", None))
        key = f"dataloader.{split}"
        kind = batches.pop("type", "sorted")
        made: dict[str, Any] = {k: v for k, v in block.items() if k in OWN["dataloader.train"]}
        lost = {k: v for k, v in block.items() if k not in made and v not in (None, False, 1)}
        files = batches.pop("shape_files", None)
        bins, size = batches.pop("batch_bins", None), batches.pop("batch_size", None)
        if kind in ("numel", "length") and bins:
            made |= {"shape_file": files, "batch_bins": bins}
        elif size:
            made |= {"batch_size": size} | ({"max_padding": 0.08} if kind == "sorted" else {})
        if kind not in _BATCHES or kind == "folded":
            self._lost(key, kind, "batches of the same number of utterances taken", key)
        self._took(f"{key}.iter_factory", factory.pop("_target_", ""), key,
                   f"type {kind}, by its batches block")  # fmt: skip
        for name in ("num_workers", "shuffle"):
            if factory.get(name) is not None:
                made[name] = factory[name]
            factory.pop(name, None)
        limit = factory.pop("num_iters_per_epoch", None)
        if limit:
            values.setdefault("trainer", {})["limit_train_batches"] = limit
        for name in ("collate_fn", "seed"):
            factory.pop(name, None)
        usual = ("sort_in_batch", "sort_batch", "min_batch_size", "drop_last", "padding")
        lost |= {**factory, **{k: v for k, v in batches.items() if k not in usual and v}}
        for name, value in lost.items():
            self._lost(f"{key}.{name}", value, "without a counterpart")
        self._global(split, made)
        return made

    def _global(self, split: str, block: dict[str, Any]) -> None:
        """Let a batch be shared among the processes, as it is there."""
        sizes = [key for key in ("batch_bins", "batch_size") if key in block]
        if self.world > 1 and sizes:
            block["batch_is_global"] = True
            self._took(f"dataloader.{split}.{sizes[0]}", block[sizes[0]],
                       f"dataloader.{split}.batch_is_global",
                       f"{self.world} processes share a batch there")  # fmt: skip

    def _warmup(self, values: dict[str, Any]) -> None:
        scheduler = _mapping(values.get("scheduler"))
        if str(scheduler.get("_target_", "")).endswith("warmup_lr.WarmupLR"):
            values["scheduler"] = {**scheduler, "_target_": _WARMUP}
            self._took("scheduler", scheduler["_target_"], f"scheduler: {_WARMUP}",
                       "the same formula")  # fmt: skip

    def _inference(self, values: dict[str, Any]) -> dict[str, Any]:
        model = _mapping(values.get("model"))
        if not str(model.get("_target_", "")).startswith("espnet2.bin."):
            return values
        config = model.pop("asr_train_config", "${exp_dir}/config.yaml")
        weights = model.pop("asr_model_file", "${exp_dir}/valid.loss.ave_3best.safetensors")
        if str(weights).startswith("${exp_dir}"):
            weights = re.sub(r"\.(pth|ckpt)$", ".safetensors", str(weights))
        target = str(model.pop("_target_"))
        given: dict[str, Any] = {"_target_": f"{_SYSTEM}.inference.ESPnet2Inference", "task": "asr",
                                 "config": config, "weights": weights}  # fmt: skip
        options = {}
        for key, value in model.items():
            if key in _DECODING:
                given[key] = value
            elif key not in ("device", "batch_size", "dtype") and value is not None:
                options[key] = value
        self._took("model", target, f"model: {given['_target_']}", "the same options of decoding")
        return self._output({**values, "model": given | ({"options": options} if options else {})})

    def _output(self, values: dict[str, Any]) -> dict[str, Any]:
        """Let an output_fn of the recipe have what ESPnet2's class gives it."""
        function = str(values.get("output_fn") or "")
        module, _, name = function.rpartition(".")
        if not module.startswith("src"):
            return {**values, "output_fn": f"{_SYSTEM}.inference.output_fn"}
        self.new.files[_OUTPUT] = _OUTPUT_PY.format(module=module, name=name)
        became = _OUTPUT.removesuffix(".py").replace("/", ".") + ".build_output"
        self._took("output_fn", function, f"output_fn: {became}", f"which calls {function}")
        return {**values, "output_fn": became}

    def _other(self, name: str) -> None:
        """Note configs of other stages."""
        self.file = f"conf/{name}.yaml"
        config = read_config(self.folder, self.file, f"{self.folder}: {self.file}")
        if name.startswith("parallel") or set(config.values) == {"parallel"}:
            self.new.add_config(name, "After another file.", config.values)
            self.journal.taken(Origin(self.file), "parallel", "", self.file, "as it is")
            return
        for key, value in config.values.items():
            note = "stages of publication have other keys here: docs/recipes.md"
            note = note if name.startswith("publi") else "not read: no stage here has such a config"
            self.journal.left_out(config.origin(key), key, value, note)

    # --- Code ----------------------------------------------------------------------------------

    def _run_py(self) -> None:
        text = (self.folder / "run.py").read_text(encoding="utf-8", errors="replace")
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            raise MigrationError(
                f"{self.folder / 'run.py'}:{error.lineno} is no Python: {error.msg}.",
                fix="Correct the file; nothing was written.",
            ) from error
        self.journal.taken(Origin("run.py"), "file", "", "run.py", "stages of ASRSystem")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                note = "a class of run.py: subclass ASRSystem in the new run.py for its stages"
                self.journal.changes(Origin("run.py", node.lineno), node.name, "", note)

    def _code(self) -> None:
        """Copy the code of the recipe, and list imports that are not here."""
        for place in ("dataset", "src"):
            for file in sorted((self.folder / place).rglob("*")):
                name = file.relative_to(self.folder).as_posix()
                if "__pycache__" in name or not file.is_file():
                    continue
                if file.suffix not in _COPIED:
                    self.journal.todo(f"copy {name} into the new recipe: it is no text")
                    continue
                text = file.read_text(encoding="utf-8", errors="replace")
                self.new.files[name] = text
                self.journal.taken(Origin(name), "file", "", name, "copied")
                if file.suffix == ".py":
                    self._imports(name, text)
        for file in sorted(self.folder.glob("*.md")):
            self.journal.left_out(Origin(file.name), "file", "", "not copied")

    def _imports(self, name: str, text: str) -> None:
        try:
            tree = ast.parse(text)
        except SyntaxError:
            self.journal.todo(f"{name} is no Python: correct it in the new recipe")
            return
        for node in ast.walk(tree):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else (
                [one.name for one in node.names] if isinstance(node, ast.Import) else []
            )  # fmt: skip
            for module in modules:
                if module.startswith("espnet3.") and not _is_here(module):
                    self.journal.todo(
                        f"{name}:{getattr(node, 'lineno', 0)} imports {module}, which is not here"
                    )

    def _commands(self, names: list[str]) -> None:
        training = "training" if "training" in names else next(n for n in names if "train" in n)
        configs = f"--training_config conf/{training}.yaml"
        last = "train"
        if "inference" in names:
            configs, last = f"{configs} --inference_config conf/inference.yaml", "infer"
        if "metrics" in names:
            configs, last = f"{configs} --metrics_config conf/metrics.yaml", "report"
        line = f"python run.py --stages create_dataset-{last} {configs}"
        self.new.commands = [(line, "everything; --dry-run shows it first")]


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings one by one; a block with another `_target_` is replaced."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if not isinstance(under, Mapping) or not isinstance(value, Mapping):
            merged[key] = value
        elif value.get("_target_", under.get("_target_")) == under.get("_target_"):
            merged[key] = _merged(under, value)
        else:
            merged[key] = value
    return merged


def _speed_of(effect: Any) -> float | None:
    """Return the factor of an effect such as `[1.0, speed_perturb, {factor: 0.9}]`."""
    if not isinstance(effect, list | tuple) or len(effect) < 2 or "speed" not in str(effect[1]):
        return None
    arguments = effect[2] if len(effect) > 2 and isinstance(effect[2], Mapping) else {}
    factor = arguments.get("factor")
    return float(factor) if isinstance(factor, int | float) and factor > 0 else None


def _is_here(module: str) -> bool:
    """Tell whether a module of this package exists, without importing it."""
    root = Path(espnet3.__path__[0]).joinpath(*module.split(".")[1:])
    return root.is_dir() or root.with_suffix(".py").is_file()
