"""The shipped recipes, each with two utterances of data for every test set that it lists."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from espnet3.config.load import load_config
from espnet3.config.resolve import resolved
from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.base.context import DEFAULTS
from espnet3.systems.base.system import BaseSystem
from tests.helpers.recipe_copy import ROOT, RecipeCopy

DECODING = sorted(
    path.parent.parent.relative_to(ROOT / "egs3").as_posix()
    for path in (ROOT / "egs3").glob("*/*/conf/inference.yaml")
)
"""Recipes that can decode, such as `digits/asr`."""
INFER = ("--stage", "6", "--config", "conf/inference.yaml")
HERE = ("parallel={env: local, n_workers: 1}", "output_fn=null", "output_keys=[hyp, ref]")
"""Decode in this process, and keep what a model says that returns text."""
SECONDS = (0.4, 0.8)

MODEL = """
class Model:
    def __init__(self, device, **others):
        self.device, self.lm = device, ""

    def load_language_model(self, path):
        self.lm = open(path).read()

    def eval(self):
        return self

    def __call__(self, speech, **others):
        if isinstance(speech, list):
            return [self(one) for one in speech]
        return f"{len(speech)} samples{self.lm}"
"""


class ShippedRecipe(RecipeCopy):
    """A copy of `egs3/<name>` with data, and with `src.guide.Model`, which needs no training."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        text = (folder / "run.py").read_text(encoding="utf-8")
        self.system = ASRSystem if "ASRSystem" in text else BaseSystem
        (folder / "src").mkdir(exist_ok=True)
        (folder / "src" / "__init__.py").touch()
        (folder / "src" / "guide.py").write_text(MODEL)
        self.entries = self._entries()
        for entry in self.entries:
            self._write(entry.get("data_src"), entry.get("data_src_args", {}))

    def add(self, file: str, text: str) -> None:
        """Add to a file, or make it."""
        with (self.folder / file).open("a", encoding="utf-8") as out:
            out.write(text)

    def infer(self, *words: str, code: int = 0, model: bool = True) -> None:
        """Run stage 6 here, with the small model instead of the recipe's own."""
        small = ("model._target_=src.guide.Model",) if model else ()
        self.run_here(self.system, *INFER, *HERE, *small, *words, code=code)

    def hyps(self, test_set: str = "", tag: str = "inference") -> dict[str, str]:
        """Return what a test set, the first by default, was heard as."""
        name = test_set or self.entries[0]["name"]
        # The results of a config that has an experiment of its own are in its folder itself.
        results = Path("exp", *dict.fromkeys([tag, "inference"]))
        file = self.folder / results / name / "hyp.scp"
        lines = file.read_text(encoding="utf-8").splitlines()
        return {key: value for key, _, value in (line.partition(" ") for line in lines)}

    def _entries(self):
        below = {**DEFAULTS, "recipe_dir": str(self.folder)}
        loaded = load_config(self.folder / "conf" / "inference.yaml", below=below)
        return resolved(loaded.config)["dataset"]["test"]

    def _write(self, source, arguments) -> None:
        path, rate = Path(arguments["path"]), arguments.get("sample_rate", 16000)
        if source == "jsonl":
            folder = path.parent
            rows = self._audio(folder, rate, "wav", "audio")
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        elif source == "kaldi":
            rows = self._audio(path, rate, "wav", "audio")
            for name, key in (("wav.scp", "audio"), ("text", "text"), ("utt2spk", "speaker")):
                value = {row["utt_id"]: row[key] for row in rows}
                lines = [f"{k} {path / v if key == 'audio' else v}\n" for k, v in value.items()]
                (path / name).write_text("".join(lines))
        elif (self.folder / "dataset" / "dataset.py").read_text().find("trans.txt") >= 0:
            folder = path / "1" / "2"
            rows = self._audio(folder, rate, "flac", "audio")
            lines = [f"{row['utt_id']} {row['text']}\n" for row in rows]
            (folder / "1-2.trans.txt").write_text("".join(lines))
        else:
            rows = self._audio(path, 8000, "wav", "audio")
            (path / "manifest.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    @staticmethod
    def _audio(folder: Path, rate: int, kind: str, key: str) -> list[dict[str, Any]]:
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for i, seconds in enumerate(SECONDS):
            speech = np.sin(np.arange(int(seconds * rate)) / 5).astype(np.float32) / 2
            soundfile.write(folder / f"1-2-{i}.{kind}", speech, rate)
            row = {"utt_id": f"1-2-{i}", key: f"1-2-{i}.{kind}", "text": "one two"}
            rows.append({**row, "speaker": "1", "accent": "en", "duration": seconds})
        return rows
