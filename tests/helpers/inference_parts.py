"""A dataset, models and functions for tests of inference; importable, so that workers find them."""

import time

import numpy as np

from espnet3.parallel.base_runner import BaseRunner
from espnet3.systems.base.inference_provider import InferenceProvider

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


class Dataset:
    """Utterances of `n` different lengths: the samples of item i all are i."""

    def __init__(self, n=40, offset=0, knows_durations=True, prefix="utt", speech_like=False):
        self.n, self.offset, self.prefix = n, offset, prefix
        self.speech_like = speech_like
        if not knows_durations:
            self.durations = None

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        value = index + self.offset
        return {
            "utt_id": f"{self.prefix}{index}",
            "speech": np.full(100 + 37 * index % 400, value, dtype=np.float32),
            "text": spell(value),
            "speaker": f"spk{index % 3}",
        }

    def durations(self):
        if self.speech_like:  # about those of read speech: 11 s in the middle, 1 to 35 s
            random = np.random.default_rng(0)
            return random.lognormal(np.log(11), 0.55, self.n).clip(1, 35).tolist()
        return [(100 + 37 * index % 400) / 100 for index in range(self.n)]


def spell(number):
    return " ".join(WORDS[int(digit)] for digit in str(number))


class Speller:
    """Says what number the samples are."""

    def __init__(self, device, beam_size=5, checkpoint=None, suffix=""):
        self.device, self.beam_size, self.suffix = device, beam_size, suffix

    def __call__(self, speech, beam_size=None):
        if isinstance(speech, list):
            return [self(one) for one in speech]
        return spell(int(speech[0])) + self.suffix


class Dict(Speller):
    def __call__(self, speech):
        text = super().__call__(speech)
        return {"hyp": text, "n_samples": len(speech), "wav": speech / 100}


class Keyed(Speller):
    def __call__(self, speech, api_key):
        return super().__call__(speech)


class NBest(Speller):
    def __call__(self, speech):
        text = super().__call__(speech)
        return [text, f"{text} two", f"{text} three"]


class WithText(Speller):
    """Takes two inputs."""

    def __call__(self, speech, text):
        return f"{super().__call__(speech)} / {text}"


class Slow(Speller):
    def __call__(self, speech):
        time.sleep(0.02)
        return super().__call__(speech)


class Picky(Speller):
    def __call__(self, speech):
        if int(speech[0]) == 7:
            raise ValueError("seven again")
        return super().__call__(speech)


class PickyInBatches(Picky):
    def __call__(self, speech):
        if isinstance(speech, list):
            return [Picky.__call__(self, one) for one in speech]
        return super().__call__(speech)


def output_fn(data, model_output, idx):
    if isinstance(idx, list):
        return [output_fn(*item) for item in zip(data, model_output, idx, strict=True)]
    return {"utt_id": data["utt_id"], "words": str(len(model_output.split())), "index": idx}


def not_enough(data, model_output, idx):
    return [{"hyp": "only one"}]


def write_upper(value, output_path):
    output_path.write_text(str(value).upper())


class OddRunner(BaseRunner):
    """Needs no id: it writes what it likes, as `results.jsonl`."""

    @staticmethod
    def forward(idx, dataset, model, **env):
        return [idx, model(dataset[idx]["speech"]), sorted(env)]


class Every2nd(InferenceProvider):
    @staticmethod
    def build_dataset(config):
        whole = InferenceProvider.build_dataset(config)
        return [whole[i] for i in range(0, len(whole), 2)]


class NoNames(InferenceProvider):
    """Builds its one dataset itself; the config lists no test sets."""

    @staticmethod
    def build_dataset(config):
        return Dataset(5)
