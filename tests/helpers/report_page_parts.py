"""A recipe whose results are wrong in known places, for tests of the report; importable by workers.

Item 3 of each test set fails; the hypothesis of item 5 is HTML.
"""

import time
from pathlib import Path

import numpy as np

from espnet3.cli.recipe import run_recipe
from espnet3.systems.base.system import BaseSystem
from espnet3.trainer.reporting.history import HistoryEntry

RATE = 8000
SCRIPT = "<script>document.title='hacked'</script>"
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
VOICES = ("en-us+f3", "en-gb", "en-us+m7", "en-scotland", "en-029")


class Dataset:
    """Tones whose texts are digits; their rate follows from their durations only."""

    def __init__(self, n=24, seed=0):
        words = np.random.default_rng(seed).choice(WORDS, (n, 11))
        self.texts = [" ".join(row[: 2 + 7 * i % 10]) for i, row in enumerate(words)]
        self._durations = [0.25 * len(text.split()) for text in self.texts]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        time_axis = np.arange(round(self._durations[index] * RATE)) / RATE
        speech = 0.3 * np.sin(2 * np.pi * (300 + 20 * index) * time_axis)
        return {
            "utt_id": f"{VOICES[index % 5]}-{index:04d}",
            "speech": speech.astype(np.float32),
            "text": self.texts[index],
            "voice": VOICES[index % 5],
        }

    def durations(self):
        return self._durations


class Mishearing:
    """Repeats the text with errors that follow from its id."""

    def __init__(self, device, every=4, seconds=0.0):
        self.every, self.seconds = every, seconds

    def __call__(self, speech, text, utt_id):
        number = int(utt_id[-4:])
        time.sleep(self.seconds)
        if number == 3:
            raise ValueError(f"{utt_id} is <b>too</b> hard")
        if number == 5:
            return f"{text} {SCRIPT}"
        words = text.split()
        if number % self.every == 0:
            words[0] = "uh"
        if number % (2 * self.every) == 0:
            words = words[:-1] if number % 3 else [*words, "and", "more"]
        return " ".join(words)


def mean_length(data, test_name, inference_dir):
    """Measure something that is no error rate."""
    lengths = [len(text.split()) for text in data["hyp"]]
    return {"words_per_utterance": sum(lengths) / len(lengths)}


INFERENCE = """
dataset:
  test:
    - {{name: seen, data_src: tests.helpers.report_page_parts, data_src_args: {{n: {n}, seed: 1}}}}
    - name: held_out
      data_src: tests.helpers.report_page_parts
      data_src_args: {{n: {n}, seed: 2}}
model: {{_target_: tests.helpers.report_page_parts.Mishearing, every: 5, seconds: {seconds}}}
input_key: [speech, text, utt_id]
output_keys: [hyp, ref, voice]
output_fn: tests.helpers.report_page_parts.output_fn
runner: {{on_error: skip}}
parallel: {{env: local, n_workers: {n_workers}}}
"""

METRICS = """
metrics:
  - {metric: {_target_: espnet3.systems.asr.metrics.wer.WER, by: [voice]}, on_missing: skip}
  - {metric: {_target_: espnet3.systems.asr.metrics.cer.CER}, on_missing: skip}
"""


def output_fn(*, data, model_output, idx):
    return {"hyp": model_output, "ref": data["text"]}


def write_recipe(folder: Path, *, n: int = 24, seconds: float = 0.0, n_workers: int = 1) -> Path:
    """Write the configs, and the history of a training that never was."""
    conf = folder / "conf"
    conf.mkdir(parents=True)
    text = INFERENCE.format(n=n, seconds=seconds, n_workers=n_workers)
    (conf / "inference.yaml").write_text(text, encoding="utf-8")
    (conf / "metrics.yaml").write_text(METRICS, encoding="utf-8")
    return folder


def write_history(exp_dir: Path, n_points: int = 60) -> None:
    """Write what a training of two epochs would have logged."""
    exp_dir.mkdir(parents=True, exist_ok=True)
    lines = []
    for i in range(1, n_points + 1):
        values = {
            "train/loss": 40 / i + 0.05,
            "train/<i>acc</i>": 1 - 1 / i,
            "lr/optimizer": 1e-3 / i,
            "grad_norm/optimizer": 30 / i,
            "perf/audio_seconds_per_second": 400.0 + 40 * (i % 7),
            "perf/step_seconds": 0.05,
            "perf/data_wait_share": 0.05,
            "perf/padding_share": 0.03,
            "perf/memory_gb": 0.5,
        }
        lines.append(HistoryEntry(10 * i, 1 + 2 * i // n_points, 1.8e9 + i, values, 10 * i))
        if i % 10 == 0:
            valid = {"valid/loss": 50 / i + 0.08, "valid/<i>acc</i>": 0.9 - 1 / i}
            lines.append(HistoryEntry(10 * i, 1 + 2 * i // n_points, 1.8e9 + i, valid, 10 * i))
    text = "".join(entry.to_line() + "\n" for entry in lines)
    (exp_dir / "history.jsonl").write_text(text, encoding="utf-8")


def run(folder: Path, *stages: str, arguments: tuple[str, ...] = ()) -> int:
    """Run stages as `run.py` of the recipe would."""
    configs = ["--inference_config", str(folder / "conf/inference.yaml")]
    configs += ["--metrics_config", str(folder / "conf/metrics.yaml")]
    return run_recipe(BaseSystem, ["--stages", *stages, *configs, *arguments], recipe_dir=folder)
