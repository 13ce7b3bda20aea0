"""Compare a migrated recipe with the settings that the old one was made from."""

import math
import re
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.census_recipe import sample_rate
from tests.helpers.census_settings import Settings

_CHANGES = "LEFT OUT, CHANGES RESULTS"
_OPTIMIZERS = {"adam": "Adam", "adadelta": "Adadelta", "adamw": "AdamW"}


class Oracle:
    """What the settings of a recipe must have become.

    Args:
        settings: Of the old recipe.
        new: The folder of the migrated one.
        model: `espnet2` or `native`.
    """

    def __init__(self, settings: Settings, new: Path, model: str) -> None:
        self.settings = settings
        self.is_kept = model == "espnet2"
        self.configs = {
            path.stem: yaml.safe_load(path.read_text()) for path in (new / "conf").glob("*.yaml")
        }
        self.training, self.inference = self.configs["training"], self.configs["inference"]
        text = (new / "MIGRATION.md").read_text()
        self.rows = [line for line in text.splitlines() if line.startswith("| ")]
        self.wrong: list[str] = []

    def faults(self, code: int) -> list[str]:
        """Return what is wrong, and told nowhere; the exit code of `migrate` too."""
        for check in (self.data, self.tokens, self.loop, self.batches, self.jobs, self.decoding):
            check()
        if self.is_kept:
            self.kept_model()
            expected = 3 if self.left_out() else 0
            if code != expected:
                self.wrong.append(f"exit code {code}, not {expected}: {self.left_out()}")
        for name in self.settings.options:
            if not self.rows_of(f"--{name}"):
                self.wrong.append(f"--{name} is not in MIGRATION.md")
        for name in self.settings.unknown:
            self.expect(f"--{name}", "told", self.is_told(f"--{name}"), True)
        return self.wrong

    # --- Asking --------------------------------------------------------------------------------

    def rows_of(self, name: str) -> list[str]:
        return [row for row in self.rows if f"| {name} |" in row]

    def is_told(self, name: str) -> bool:
        return any(_CHANGES in row for row in self.rows_of(name))

    def expect(self, name: str, key: str, found: Any, expected: Any) -> None:
        """Compare, unless the name is listed as left out."""
        same = found == expected
        if isinstance(expected, float) and isinstance(found, int | float):
            same = math.isclose(found, expected, rel_tol=1e-3)
        if not same and not (
            self.is_told(name) or name.removeprefix("--") in self.settings.unknown
        ):
            self.wrong.append(f"{name}: {key} is {found!r}, not {expected!r}")

    def left_out(self) -> list[str]:
        """Return why the exit code must be 3, as far as the model is ESPnet2's."""
        s, train = self.settings, self.settings.train
        has_tokens = "tokens" in s.has
        kind = s.get("token_type", "bpe")
        symbols = s.get("nlsyms_txt", "none") != "none"
        metric = re.match(r"valid\.(\w+)\.", s.get("inference_asr_model", "valid.acc.ave.pth"))
        kept = train.get("best_model_criterion", [["valid", "loss"], ["valid", "acc"]])
        longest = float(s.get("max_wav_duration", "20"))
        seconds = self.batch_seconds()
        reasons = {
            "unknown values": s.unknown - {"lang"} or ("lang" in s.unknown),
            "commands": s.commands,
            "features": s.get("feats_type", "raw") not in ("raw", "raw_copy"),
            "symbols": symbols and kind == "char" and not has_tokens,
            "symbols of word pieces": "bpe_nlsyms" in s.options
            and kind == "bpe"
            and not has_tokens,
            "a word model": s.get("use_word_lm") == "true" and s.uses_lm,
            "streaming": s.get("use_streaming") == "true",
            "checkpoint": metric and metric[1] not in [one[1] for one in kept if one[0] == "valid"],
            "clip": train.get("grad_clip", 5) < 0,
            "initialisation": train.get("init") not in (None, "none", "xavier_uniform", "chainer"),
            "small batches": seconds is not None and seconds < longest,
            "cleaning": s.get("cleaner", "none") != "none"
            and not has_tokens
            and kind in ("char", "bpe"),
            "a language model": s.uses_lm and self.lm_is_lost(),
        }
        return [reason for reason, holds in reasons.items() if holds]

    def lm_is_lost(self) -> bool:
        """Tell whether the batches of a language model that we train are others."""
        s = self.settings
        is_ours = "lm" not in s.has and "lm_config" in s.options
        return is_ours and s.lm["batch_type"] == "numel"

    def world(self) -> int:
        ngpu = max(1, int(self.settings.get("ngpu", "1")))
        return ngpu * int(self.settings.get("num_nodes", "1"))

    def batch_seconds(self) -> float | None:
        train, s = self.settings.train, self.settings
        rate = sample_rate(s.get("fs", "16k"))
        kind = train.get("batch_type", "folded")
        if kind in ("numel", "length"):
            return max(1.0, round(train["batch_bins"] / rate / self.world(), 1))
        if kind == "folded":
            size = max(1, train["batch_size"] // self.world())
            return max(1.0, size * int(s.get("asr_speech_fold_length", "800")) * 100 / rate)
        return None

    # --- Checks --------------------------------------------------------------------------------

    def data(self) -> None:
        s, dataset = self.settings, self.training["dataset"]
        for split, option in (("train", "train_set"), ("valid", "valid_set")):
            paths = [one["data_src_args"]["path"] for one in dataset[split]]
            self.expect(
                f"--{option}", "path", [p.rpartition("/")[2] for p in paths], [s.get(option)]
            )
        names = [name.replace("/", "_") for name in s.get("test_sets").split()]
        valid = s.get("valid_set").replace("/", "_")
        if s.get("eval_valid_set") == "true" and valid not in names:
            names.append(valid)
        found = [one["name"] for one in self.inference["dataset"]["test"]]
        self.expect("--test_sets", "names", found, names)
        rate = sample_rate(s.get("fs", "16k"))
        for entry in (*dataset["train"], *dataset["valid"], *self.inference["dataset"]["test"]):
            self.expect("--fs", "sample_rate", entry["data_src_args"]["sample_rate"], rate)
        factors = [float(word) for word in s.get("speed_perturb_factors").split()]
        first = dataset["train"][0]
        found = first.get("transform", {}).get("factors", [])
        self.expect("--speed_perturb_factors", "factors", found, factors)
        self.expect("--speed_perturb_factors", "weight", first.get("weight", 1), len(factors) or 1)

    def tokens(self) -> None:
        s, kind = self.settings, self.settings.get("token_type", "bpe")
        block = self.training.get("tokenizer", {})
        if kind == "bpe":
            self.expect("--nbpe", "vocab_size", block.get("vocab_size"), int(s.get("nbpe", "30")))
            mode = s.get("bpemode", "unigram")
            self.expect("--bpemode", "model_type", block.get("model_type"), mode)
        elif kind == "char":
            self.expect("--token_type", "model_type", block.get("model_type"), "characters")
        if self.is_kept:
            model = self.training["model"]
            self.expect("--token_type", "model.token_type", model["token_type"], kind)
            is_old = "espnet2_dir" in model["token_list"]
            if "lang" not in s.unknown and "nbpe" not in s.unknown:
                wanted = "tokens" in s.has or kind not in ("bpe", "char")
                self.expect("--token_type", "the old token list", is_old, wanted)

    def loop(self) -> None:
        train, ours = self.settings.train, self.training
        name = train.get("optim", "adadelta")
        target = f"torch.optim.{_OPTIMIZERS[name]}"
        self.expect("optim", "optimizer", ours["optimizer"]["_target_"], target)
        rate = float(train.get("optim_conf", {}).get("lr", 1.0 if name == "adadelta" else 0.001))
        schedule = train.get("scheduler")
        conf = train.get("scheduler_conf", {})
        if schedule == "noamlr":
            rate *= conf["model_size"] ** -0.5 * conf["warmup_steps"] ** -0.5
        self.expect("optim_conf", "lr", ours["optimizer"]["lr"], rate)
        decay = train.get("optim_conf", {}).get("weight_decay")
        self.expect("optim_conf", "weight_decay", ours["optimizer"].get("weight_decay"), decay)
        found = ours.get("scheduler", {})
        target = {"warmuplr": "WarmupLR", "noamlr": "WarmupLR", "reducelronplateau":
                  "ReduceLROnPlateau", None: ""}[schedule]  # fmt: skip
        self.expect("scheduler", "class", found.get("_target_", "").rpartition(".")[2], target)
        warmup = conf.get("warmup_steps")
        self.expect("scheduler_conf", "warmup_steps", found.get("warmup_steps"), warmup)
        self.trainer()

    def trainer(self) -> None:
        train, s, trainer = self.settings.train, self.settings, self.training["trainer"]
        gpus = int(s.get("ngpu", "1"))
        self.expect("--ngpu", "devices", trainer["devices"], max(1, gpus))
        self.expect("--ngpu", "accelerator", trainer["accelerator"], "auto" if gpus else "cpu")
        nodes = int(s.get("num_nodes", "1"))
        self.expect("--num_nodes", "num_nodes", trainer.get("num_nodes", 1), nodes)
        pairs = (
            ("max_epoch", "max_epochs", 40), ("accum_grad", "accumulate_grad_batches", None),
            ("num_iters_per_epoch", "limit_train_batches", None),
            ("log_interval", "log_every_n_steps", None), ("grad_clip", "gradient_clip_val", 5.0),
        )  # fmt: skip
        for theirs, ours, default in pairs:
            self.expect(theirs, ours, trainer.get(ours), train.get(theirs, default))
        patience = train.get("patience")
        found = [c["patience"] for c in trainer.get("callbacks", [])]
        self.expect("patience", "callbacks", found, [patience] if isinstance(patience, int) else [])
        self.expect("use_amp", "training_amp", "training_amp" in self.configs, "use_amp" in train)
        self.expect("seed", "seed", self.training["seed"], train.get("seed", 0))
        criteria = [one[0] for one in self.training["best_model_criterion"]]
        listed = train.get("best_model_criterion", [["valid", "loss"], ["valid", "acc"]])
        wanted = [f"valid/{one[1]}" for one in listed if one[0] == "valid"]
        if self.is_kept:
            self.expect("best_model_criterion", "criteria", criteria, wanted)

    def batches(self) -> None:
        train, s = self.settings.train, self.settings
        block, kind = self.training["dataloader"]["train"], train.get("batch_type", "folded")
        seconds = self.batch_seconds()
        key = "batch_bins" if kind in ("numel", "length") else "batch_size"
        if seconds is not None:
            self.expect(key, "batch_seconds", block.get("batch_seconds"), float(seconds))
        if key == "batch_size":
            size = max(1, train["batch_size"] // self.world())
            self.expect(key, "batch_size", block.get("batch_size"), size)
        for name, key, default in (("max", "max_seconds", "20"), ("min", "min_seconds", "0.1")):
            option = f"{name}_wav_duration"
            self.expect(f"--{option}", key, block[key], float(s.get(option, default)))
        self.expect("num_workers", "num_workers", block["num_workers"], train.get("num_workers", 1))

    def jobs(self) -> None:
        s = self.settings
        for config, option in ((self.training, "nj"), (self.inference, "inference_nj")):
            found = config["parallel"]["n_workers"]
            self.expect(f"--{option}", "n_workers", found, f"${{n_cores:{s.get(option, '32')}}}")
        env = s.backend if s.backend in ("slurm", "sge", "pbs") else "slurm"
        name = f"parallel_{env}"
        self.expect("decode_cmd", name, name in self.configs, True)
        if s.backend in ("slurm", "sge", "pbs") and name in self.configs:
            block = self.configs[name]["parallel"]
            most = min(10, int(s.get("inference_nj", "32")))
            self.expect("--inference_nj", "n_workers", block["n_workers"], most)
            self.expect("decode_cmd", "memory", block["options"].get("memory"), "4GB")
        is_gpu = s.get("gpu_inference") == "true"
        self.expect("--gpu_inference", "parallel_gpu", "parallel_gpu" in self.configs, is_gpu)

    def decoding(self) -> None:
        s, model = self.settings, self.inference["model"]
        name = s.get("inference_asr_model", "valid.acc.ave.pth")
        found = model["weights"].rpartition("/")[2]
        kind = re.match(r"valid\.(\w+)\.(best|ave_(\d+)best|ave)", name)
        if name == "latest.pth":
            self.expect("--inference_asr_model", "weights", found, "last.ckpt")
        elif kind and self.is_kept:
            kept = s.train.get("keep_nbest_models", 10)
            most = max(kept) if isinstance(kept, list) else kept
            number = 1 if kind[2] == "best" else int(kind[3] or most)
            wanted = f"valid.{kind[1]}.ave_{number}best.safetensors"
            self.expect("--inference_asr_model", "weights", found, wanted)
        if self.is_kept:
            for key, value in s.decode.items():
                if key not in ("batch_size", "lm_weight", "ngram_weight"):
                    self.expect(key, f"model.{key}", model.get(key), value)
            has_lm = "lm_file" in model
            self.expect("--use_lm", "model.lm_file", has_lm, s.uses_lm)
            if s.uses_lm and "lm_weight" in s.decode:
                self.expect("lm_weight", "lm_weight", model.get("lm_weight"), s.decode["lm_weight"])

    def kept_model(self) -> None:
        train, s, model = self.settings.train, self.settings, self.training["model"]
        parts = ("encoder", "decoder", "frontend", "specaug", "preencoder", "model", "joint_net")
        for part in parts:
            for key in (part, f"{part}_conf"):
                expected = train.get(key)
                if key == "frontend_conf" and train.get("frontend", "default") is not None:
                    expected = {**(expected or {}), "fs": sample_rate(s.get("fs", "16k"))}
                self.expect(key, f"model.{key}", model.get(key), expected)
        init = train.get("init")
        self.expect("init", "model.init", model.get("init"), None if init == "none" else init)
        is_global = s.get("feats_normalize", "global_mvn") == "global_mvn"
        expected = "global_mvn" if is_global else "utterance_mvn"
        self.expect("--feats_normalize", "model.normalize", model.get("normalize"), expected)
        frozen = [f"network.{name}.*" for name in train.get("freeze_param", [])]
        self.expect("freeze_param", "freeze", self.training.get("freeze", []), frozen)
