"""A recipe whose stages only print; and one that decodes words, for `infer`."""

import json
import os
import subprocess
import sys
from pathlib import Path

RUN = """\
from espnet3.cli.recipe import run_recipe
from src.system import Words

if __name__ == "__main__":
    raise SystemExit(run_recipe(Words))
"""
SYSTEM = """\
import logging
import os
import time
import warnings
from pathlib import Path

from espnet3.errors import ConfigError
from espnet3.systems.base.stages import Skipped, stage
from espnet3.systems.base.system import BaseSystem

logger = logging.getLogger(__name__)


class Words(BaseSystem):
    def create_dataset(self):
        if (self.recipe_dir / "data").exists():
            return Skipped("data/ is there already")
        (self.recipe_dir / "data").mkdir()
        os.chdir("/")

    def train(self):
        logger.info("training with seed %s", self.training.config.seed)
        if self.training.config.get("wait"):
            Path("waiting").touch()
            time.sleep(60)
        warnings.warn("a warning of Python")

    def infer(self):
        from src.decode import decode

        decode(self.inference.config)

    def describe_infer(self):
        return [f"decodes with beam {self.inference.config.beam_size}"]

    def measure(self):
        print("exp_tag:", self.metrics.config.exp_tag, self.metrics.config.inference_dir)

    @stage(config="inference", after="infer", help="Rescore the hypotheses")
    def rescore(self):
        raise ConfigError("lm is not set. Write: lm: FILE")

    def check_train(self):
        if self.training.config.get("seed") is None:
            raise ConfigError("seed is not set. Write: seed: 1")
"""
DECODE = """\
def decode(config):
    if config.beam_size > 100:
        raise ValueError("beam is too wide")
    print("decoded", config.beam_size, config.exp_dir)


class Model:
    pass
"""
FILES = {
    "run.py": RUN,
    "src/__init__.py": "",
    "src/system.py": SYSTEM,
    "src/decode.py": DECODE,
    "conf/training.yaml": "exp_tag: words v1\nseed: 7\n",
    "conf/inference.yaml": "beam_size: 4\nmodel: {_target_: src.decode.Model}\n",
    "conf/wide.yaml": "beam_size: 400\n",
    "conf/metrics.yaml": "metrics: []\n",
}


class Recipe:
    """A recipe in a folder with an awkward name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def start(self, *arguments, cwd=None, program=(sys.executable, "run.py")) -> subprocess.Popen:
        return subprocess.Popen(
            [*map(str, program), *map(str, arguments)],
            cwd=cwd or self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        )

    def run(self, *arguments, code=0, **how) -> subprocess.CompletedProcess:
        process = self.start(*arguments, **how)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, out + err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def record(self, stage, tag="inference"):
        return json.loads((self.folder / "exp" / tag / "config" / f"{stage}.json").read_text())

    def files(self):
        return sorted(p for p in self.folder.rglob("*") if "__pycache__" not in p.parts)


INFERENCE = """\
import time
from pathlib import Path

from espnet3.systems.base.inference_provider import InferenceProvider

WORDS = ["speech", "is silver", "silence", "is", "golden", "or so", "they", "say"]


class Provider(InferenceProvider):
    @staticmethod
    def build_dataset(config):
        return [{"utt_id": f"utt_{i}", "speech": w, "text": w} for i, w in enumerate(WORDS)]


class Model:
    def __init__(self, device):
        assert device

    def __call__(self, speech):
        while speech == "golden" and Path("hold").exists():
            Path("held").touch()
            time.sleep(0.01)
        return speech.replace("silver", "gold")
"""
CONFIG = """\
provider: {_target_: src.inference.Provider}
model: {_target_: src.inference.Model, device: cpu}
test_set: proverbs
metrics: [{metric: {_target_: espnet3.systems.asr.metrics.wer.WER}}]
"""
