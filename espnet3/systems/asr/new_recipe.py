"""Write the configs of a recogniser for a corpus, what was chosen and why in their comments."""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from espnet3.components.data.survey import Survey, shared_speakers
from espnet3.components.text.spelling import Speller
from espnet3.errors import ConfigError
from espnet3.text import count, duration, first_few

# Frames of 10 ms, joined by four: with fewer frames than characters CTC learns nothing.
_FRAMES_PER_SECOND = 100
_LEAST_FRAMES = 1.2  # for each character, of all but one utterance in fifty
_TAG = re.compile(r"<[^<>\s]*>")
_INNER_APOSTROPHE = re.compile(r"(?<=\w)['\u2019](?=\w)")
# Scripts of words that have no letters: pieces of them would be words.
_MANY_CHARACTERS = 300

# By hours of speech.
_PIECES_FROM = 20.0
_LARGE_FROM = 100.0


@dataclass(frozen=True)
class Choice:
    """A value and why it was chosen."""

    value: str
    why: str


@dataclass(frozen=True)
class Choices:
    """Settings of a written config that follow from the survey of a corpus."""

    clean_types: Choice
    tokenizer: Choice
    speed: Choice
    batch_seconds: Choice
    valid_batch_seconds: int
    n_loaders: int
    n_mels: int
    encoder: Choice
    spec_augment: Choice
    learning_rate: Choice
    max_epochs: Choice
    is_small: bool
    """Whether a CPU is enough for training and decoding."""


def choose(train: Survey, longest: float) -> Choices:
    """Choose settings for a training set.

    Args:
        train: The training set.
        longest: Seconds of the longest utterance of any set.

    Raises:
        ConfigError: Nothing is left of some texts once they are cleaned.
    """
    cleaners = find_cleaners(train.texts)
    texts = _cleaned(train, cleaners)
    hours = train.hours
    batch = _batch_seconds(train)
    is_small = hours < _PIECES_FROM
    n_mels = 40 if hours < 5 else 80
    return Choices(
        clean_types=cleaners_choice(cleaners),
        tokenizer=_tokenizer(train, texts),
        speed=_speed(hours),
        batch_seconds=batch,
        valid_batch_seconds=max(60, int(longest) + 1) if is_small else 240,
        n_loaders=1 if is_small else 4,
        n_mels=n_mels,
        encoder=_encoder(hours, n_mels, _subsampling(train, texts)),
        spec_augment=_spec_augment(train),
        learning_rate=_learning_rate(hours),
        max_epochs=_epochs(hours),
        is_small=is_small,
    )


def find_cleaners(texts: Sequence[str]) -> list[str]:
    """Return the `clean_types` that bring texts to words without case and punctuation."""
    joined = _INNER_APOSTROPHE.sub("", " ".join(texts))
    cleaners = []
    if _TAG.search(joined):
        cleaners.append("no_tags")
        joined = _TAG.sub(" ", joined)
    characters = set(joined)
    if any(c.islower() for c in characters) and any(c.isupper() for c in characters):
        cleaners.append("lower")
    if any(unicodedata.category(c).startswith("P") for c in characters):
        cleaners.append("no_punctuation")
    return cleaners


def cleaners_choice(cleaners: Sequence[str]) -> Choice:
    """Return the cleaners as a list of YAML, with what they do."""
    found = {
        "no_tags": "tags such as <noise> are no words",
        "lower": "upper and lower case are mixed",
        "no_punctuation": "there is punctuation",
    }
    why = "; ".join(found[name] for name in cleaners) or "texts are without case and punctuation"
    return Choice(f"[{', '.join(cleaners)}]", why)


def _cleaned(train: Survey, cleaners: Sequence[str]) -> list[str]:
    spell = Speller(cleaners)
    texts = [spell(text) for text in train.texts]
    empty = [id for id, text in zip(train.ids, texts, strict=True) if not text]
    if empty:
        raise ConfigError(
            f"Of the texts of {count(len(empty), 'utterance')}, nothing is left without "
            f"punctuation and tags: {first_few(empty, 3)}.",
            fix="Leave them out where the data is made.",
        )
    return texts


def _tokenizer(train: Survey, texts: Sequence[str]) -> Choice:
    n_characters = len({c for text in texts for c in text if c != " "})
    n_words = len({word for text in texts for word in text.split()})
    speech = f"{duration(train.hours * 3600)} of speech"
    found = f"{speech}, {n_characters} characters, {n_words:,} words"
    size = 500 if train.hours < _LARGE_FROM else 1000 if train.hours < 1000 else 5000
    if train.hours < _PIECES_FROM:
        why = "word pieces need more to learn from"
    elif n_characters > _MANY_CHARACTERS:
        why = "these are words already"
    elif n_words < 4 * size:
        why = f"{size} word pieces would be the words themselves"
    else:
        return Choice(f"bpe\n  vocab_size: {size}", f"word pieces: {found}")
    return Choice("characters", f"{found}: {why}")


def _batch_seconds(train: Survey) -> Choice:
    if train.hours >= _PIECES_FROM:
        seconds = max(240 if train.hours >= _LARGE_FROM else 120, int(2 * train.longest))
        return Choice(str(seconds), "of audio on each GPU; less if its memory is not enough")
    # Some hundred steps in an epoch: CTC needs steps before it says anything but blanks.
    wanted = train.hours * 3600 / 250
    least = max(6.0, 4 * train.quantile(0.5))
    seconds = max(int(min(60.0, max(wanted, least))), int(train.longest)) + 1
    steps = max(1, round(train.hours * 3600 / seconds))
    return Choice(str(seconds), f"small: about {steps:,} steps an epoch")


def _speed(hours: float) -> Choice:
    if hours < _PIECES_FROM:
        return Choice("[0.88, 0.92, 0.96, 1.0, 1.04, 1.08, 1.12]", "more voices than were recorded")
    return Choice("[0.9, 1.0, 1.1]", "the usual three speeds")


def _subsampling(train: Survey, texts: Sequence[str]) -> Choice:
    """Return how many frames may be joined so that CTC has one for each character."""
    ratios = sorted(
        seconds * _FRAMES_PER_SECOND / _frames_needed(text)
        for text, seconds in zip(texts, train.seconds, strict=True)
    )
    fast = ratios[len(ratios) // 50]
    factor = next((n for n in (4, 2) if fast / n >= _LEAST_FRAMES), 1)
    return Choice(str(factor), f"the fastest speech has {fast:.0f} frames of 10 ms a character")


def _frames_needed(text: str) -> int:
    # Between two equal characters CTC needs a blank.
    return len(text) + sum(a == b for a, b in pairwise(text))


def _encoder(hours: float, n_mels: int, subsampling: Choice) -> Choice:
    if hours < _PIECES_FROM:
        n_channels, n_layers = (128, 6) if hours < 5 else (256, 8)
        size = "0.6 million" if hours < 5 else "3 million"
        lines = [f"n_channels: {n_channels}", f"n_layers: {n_layers}"]
        target, why = "tdnn.TDNN", f"{size} parameters: small corpora want small models"
    else:
        hidden = 144 if hours < _LARGE_FROM else 256
        lines = [f"hidden: {hidden}", "n_layers: 12", "n_heads: 4", "kernel_size: 31"]
        target, why = "conformer.Conformer", f"enough speech for a Conformer of width {hidden}"
    above = [f"_target_: espnet3.components.models.{target}", f"input_size: {n_mels} # n_mels"]
    below = [f"subsampling: {subsampling.value} # {subsampling.why}"]
    return Choice("\n    ".join([*above, *lines, *below]), why)


def _spec_augment(train: Survey) -> Choice:
    if train.hours >= _PIECES_FROM:
        return Choice(_masks((2, 27, 5, 50), part=0.05), "the usual masks of larger corpora")
    bins = 5 if train.hours < 5 else 10
    median = train.quantile(0.5)
    if median < 2:
        why = f"narrow: in {median:.1f} s, the median, a wide mask hides a word"
        return Choice(_masks((1, bins, 1, 5)), why)
    return Choice(_masks((2, bins + 1, 2, 10)), "two bands and two spans of 0.1 s")


def _masks(sizes: tuple[int, int, int, int], part: float | None = None) -> str:
    names = ("n_freq_masks", "max_freq_width", "n_time_masks", "max_time_width")
    lines = [f"{name}: {size}" for name, size in zip(names, sizes, strict=True)]
    return "\n    ".join([*lines, *([f"max_time_part: {part}"] if part else [])])


def _learning_rate(hours: float) -> Choice:
    rate = "0.003" if hours < 5 else "0.002" if hours < _PIECES_FROM else "0.001"
    return Choice(rate, "the peak of a schedule that rises, then falls to the end")


def _epochs(hours: float) -> Choice:
    if hours < 2:
        epochs = min(60, max(8, round(16 / hours)))
        return Choice(str(epochs), "fewer in a first try; the schedule ends with the last one")
    epochs = 20 if hours < _PIECES_FROM else 30
    return Choice(str(epochs), "choose it by the time that you have")


ARGUMENTS = (
    "--stages train_tokenizer train-report --training_config conf/training.yaml "
    "--inference_config conf/inference.yaml --metrics_config conf/metrics.yaml"
)
"""Of `run.py`, from a corpus to a number and a report."""
HELD_OUT_FILE = "conf/held_out.txt"

# A twentieth is for validation, but enough to tell two epochs apart, and quick to decode.
_HELD_OUT_SHARE = 0.05
_MOST_HELD_OUT = 1_000
_LEAST_SPEAKERS = 10


@dataclass(frozen=True)
class CorpusSet:
    """One set of a corpus: where it is, and what was seen of it."""

    path: str
    seen: Survey
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of its `Dataset`, beside path, rate and channel."""
    name: str = ""
    """Of a test set."""


@dataclass(frozen=True)
class NewCorpus:
    """The sets of a new recipe, and the form that all of its audio is brought to."""

    data_src: str
    train: CorpusSet
    valid: CorpusSet | None
    tests: Sequence[CorpusSet]
    sample_rate: int
    resample: bool = False
    channel: str | None = None

    @property
    def sets(self) -> list[CorpusSet]:
        """All that were given."""
        return [self.train, *([self.valid] if self.valid else []), *self.tests]


@dataclass(frozen=True)
class HeldOut:
    """Utterances taken out of the training set for validation."""

    name: str
    """`speaker` or `utt_id`."""
    values: Sequence[str]
    n_utterances: int

    @property
    def told(self) -> str:
        """Sentence about it, in the config and on the terminal."""
        if self.name == "speaker":
            who = f"{count(len(self.values), 'speaker')} ({first_few(self.values, 5)})"
        else:
            who = f"{count(len(self.values), 'utterance')}, listed in {HELD_OUT_FILE}"
        return (
            f"No --valid was given, so part of the training set is held out for validation: {who}."
        )


def hold_out(train: Survey) -> HeldOut | None:
    """Choose speakers of a training set for validation, or utterances where speakers are few.

    Returns:
        None if there is too little to hold out: less than 20 utterances.
    """
    if train.n_utterances < 20:
        return None
    n_seen = len(train.ids)
    wanted = min(_MOST_HELD_OUT, max(1, round(_HELD_OUT_SHARE * n_seen)))
    speakers = sorted(train.speaker_counts)
    if len(speakers) >= _LEAST_SPEAKERS:
        # Evenly spaced: ids often begin with what speakers have in common.
        n_speakers = min(max(2, round(_HELD_OUT_SHARE * len(speakers))), 40)
        step = len(speakers) / n_speakers
        chosen = [speakers[int(i * step + step / 2)] for i in range(n_speakers)]
        n_held = sum(train.speaker_counts[speaker] for speaker in chosen)
        return HeldOut("speaker", chosen, n_held)
    step = n_seen / wanted
    return HeldOut("utt_id", [train.ids[int(i * step)] for i in range(wanted)], wanted)


def recipe_files(corpus: NewCorpus) -> tuple[dict[str, str], list[str]]:
    """Return the files of the recipe by name, and what is to be said of the corpus.

    Raises:
        ConfigError: The texts do not suit a recogniser.
    """
    held_out = hold_out(corpus.train.seen) if corpus.valid is None else None
    longest = max(one.seen.longest for one in corpus.sets)
    choices = choose(corpus.train.seen, longest)
    found = [_described("train", corpus.train.seen)]
    if corpus.valid is not None:
        found.append(_described("valid", corpus.valid.seen))
    found += [_described(test.name, test.seen) for test in corpus.tests]
    notes = _notes(corpus, held_out)
    files = {
        "conf/training.yaml": _training(corpus, choices, held_out, [*found, *notes]),
        "conf/inference.yaml": _inference(corpus, choices, held_out),
        "conf/metrics.yaml": _metrics(corpus, choices),
        "README.md": _readme(found, notes),
    }
    if held_out is not None and held_out.name == "utt_id":
        files[HELD_OUT_FILE] = "".join(f"{id}\n" for id in held_out.values)
    return files, [*found, *notes]


def _described(name: str, seen: Survey) -> str:
    about = "about " if seen.is_sampled else ""
    parts = [
        f"{name}: {count(seen.n_utterances, 'utterance')}",
        f"{about}{duration(seen.hours * 3600)}",
        f"{min(seen.seconds):.1f} to {seen.longest:.1f} s each, median {seen.quantile(0.5):.1f} s",
        count(len(seen.speaker_counts), "speaker") if seen.speaker_counts else "speakers unknown",
        f"{len(seen.alphabet)} characters",
        f"{seen.n_words:,} words",
    ]
    return ", ".join(parts)


def _notes(corpus: NewCorpus, held_out: HeldOut | None) -> list[str]:
    notes = [held_out.told] if held_out else []
    for one in corpus.tests:
        shared = shared_speakers(corpus.train.seen, one.seen)
        if shared:
            notes.append(
                f"{one.name} shares {count(len(shared), 'speaker')} with the training set: its "
                "rates say little of people that were not recorded."
            )
    if not corpus.tests:
        notes.append(
            "No --test was given: the validation set is decoded, which chose the weights; its rate "
            "is too good."
        )
    if corpus.resample:
        notes.append(f"Audio of other rates is resampled to {corpus.sample_rate} Hz.")
    if corpus.channel:
        notes.append("There are several channels: their mean is taken (channel: mix).")
    too_long = sum(s > 40 for s in corpus.train.seen.seconds)
    if too_long:
        notes.append(
            f"{count(too_long, 'utterance')} of the training set are longer than 40 s, which takes "
            "memory and trains badly; cut them if you can."
        )
    return notes


def _entry(corpus: NewCorpus, one: CorpusSet, indent: str, extra: Iterable[str] = ()) -> str:
    arguments: dict[str, Any] = {"path": one.path, **one.arguments}
    arguments["sample_rate"] = corpus.sample_rate
    if corpus.resample:
        arguments["resample"] = True
    if corpus.channel:
        arguments["channel"] = corpus.channel
    inside = ", ".join(f"{key}: {_flow(value)}" for key, value in arguments.items())
    lines = [f"data_src: {corpus.data_src}", f"data_src_args: {{{inside}}}", *extra]
    if one.name:
        lines.insert(0, f"name: {_flow(one.name)}")
    return f"{indent}- " + f"\n{indent}  ".join(lines) + "\n"


def _flow(value: Any) -> str:
    """Return a value inside of braces or brackets; texts are quoted, since 07 is a speaker."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(one)}" for key, one in value.items()) + "}"
    # In YAML as in JSON; an interpolation of ours would begin with a dollar and a brace.
    return json.dumps(value, ensure_ascii=False).replace("${", "\\\\${")


def _selected(held_out: HeldOut | None, how: str) -> list[str]:
    if held_out is None:
        return []
    if held_out.name == "utt_id":
        return [f"{how}: {{utt_id: {HELD_OUT_FILE}}}"]
    return [f"{how}: {{speaker: [{', '.join(map(_flow, held_out.values))}]}}"]


def _valid_entry(corpus: NewCorpus, held_out: HeldOut | None, indent: str, name: str = "") -> str:
    given = corpus.valid or corpus.train
    one = CorpusSet(given.path, given.seen, given.arguments, name)
    return _entry(corpus, one, indent, _selected(held_out, "only"))


def _training(
    corpus: NewCorpus, choices: Choices, held_out: HeldOut | None, found: Sequence[str]
) -> str:
    speed = (
        "transform:",
        "  _target_: espnet3.components.data.augmentation.SpeedPerturb",
        f"  factors: {choices.speed.value} # {choices.speed.why}",
    )
    train = _entry(corpus, corpus.train, "    ", [*_selected(held_out, "leave_out"), *speed])
    lines = "\n".join(f"# {line}" for line in found)
    rate = corpus.sample_rate
    return f"""\
# Written by espnet3 init, for {corpus.data_src} data of {rate} Hz. What was seen:
{lines}
# All choices below can be changed; what each key does: docs/training.md of espnet3.
seed: 0

tokenizer: # {choices.tokenizer.why}
  model_type: {choices.tokenizer.value}
  clean_types: {choices.clean_types.value} # {choices.clean_types.why}
  save_path: ${{data_dir}}/tokenizer

dataset:
  train:
{train}  valid:
{_valid_entry(corpus, held_out, "    ")}  preprocessor:
    _target_: espnet3.systems.asr.preprocessor.Tokenize
    tokenizer: ${{tokenizer.save_path}}

dataloader: # seconds of audio in a batch, padding included
  train:
    batch_seconds: {choices.batch_seconds.value} # {choices.batch_seconds.why}
    num_workers: {choices.n_loaders} # processes that read ahead
  valid: {{batch_seconds: {choices.valid_batch_seconds}}}

model:
  _target_: espnet3.systems.asr.model.ASRModel
  tokenizer: ${{tokenizer.save_path}}
  frontend:
    _target_: espnet3.components.models.log_mel.LogMel
    sample_rate: {rate} # that of the audio
    n_mels: {choices.n_mels}
  normalize: {{_target_: espnet3.components.models.normalization.UtteranceNormalization}}
  spec_augment: # {choices.spec_augment.why}
    _target_: espnet3.components.models.spec_augment.SpecAugment
    {choices.spec_augment.value}
  encoder: # {choices.encoder.why}
    {choices.encoder.value}

optimizer: {{_target_: torch.optim.AdamW, lr: {choices.learning_rate.value}, weight_decay: 0.01}}
scheduler: # {choices.learning_rate.why}
  _target_: torch.optim.lr_scheduler.OneCycleLR
  max_lr: {choices.learning_rate.value}

best_model_criterion: [[valid/loss, 3, min]] # these three are averaged, and used by infer

trainer: # arguments of lightning.pytorch.Trainer
  accelerator: auto # a GPU, if there is one
  devices: 1
  max_epochs: {choices.max_epochs.value} # {choices.max_epochs.why}
  gradient_clip_val: 5.0
  log_every_n_steps: 20
"""


def _inference(corpus: NewCorpus, choices: Choices, held_out: HeldOut | None) -> str:
    tests = "".join(_entry(corpus, one, "    ") for one in corpus.tests)
    tests = tests or _valid_entry(corpus, held_out, "    ", "valid")
    keys = "[hyp, ref, speaker]" if _has_speakers(corpus) else "[hyp, ref]"
    device = (
        "device: cpu # enough for a model of this size; with conf/parallel_gpu.yaml: GPUs\n"
        if choices.is_small
        else ""
    )
    n_workers = "${n_cores:8} # as many as there are cores, at most 8" if choices.is_small else "1"
    return f"""\
dataset:
  test:
{tests}
model: # built with these arguments and device=, once in each worker
  _target_: espnet3.systems.asr.inference.Speech2Text
  weights: ${{exp_dir}}/valid.loss.ave_3best.safetensors # exp_dir is that of the training
  decoder: {{_target_: espnet3.components.decoding.ctc_greedy.GreedyCTC}}

{device}input_key: speech
output_fn: espnet3.systems.asr.inference.output_fn
output_keys: {keys} # each becomes <key>.scp
batch_seconds: {choices.valid_batch_seconds} # of audio in a batch, padding included

parallel: # conf/parallel_*.yaml: elsewhere
  env: local
  n_workers: {n_workers}
"""


def _has_speakers(corpus: NewCorpus) -> bool:
    measured = [one.seen for one in corpus.tests] or [(corpus.valid or corpus.train).seen]
    return all(seen.speaker_counts for seen in measured)


def _metrics(corpus: NewCorpus, choices: Choices) -> str:
    by = "[speaker, length]" if _has_speakers(corpus) else "[length] # speakers are not known"
    cleaners = choices.clean_types.value
    return f"""\
metrics:
  - metric:
      _target_: espnet3.systems.asr.metrics.wer.WER
      clean_types: {cleaners} # as of the tokenizer: it is how texts come back
      by: {by}
  - metric:
      _target_: espnet3.systems.asr.metrics.cer.CER
      clean_types: {cleaners}
"""


def _readme(found: Sequence[str], notes: Sequence[str]) -> str:
    lines = "\n".join(f"- {line}" for line in [*found, *notes])
    return f"""\
# A recogniser for this corpus

Written by `espnet3 init`, after a look at the data:

{lines}

```sh
python run.py {ARGUMENTS.replace(" --inf", f" {chr(92)}{chr(10)}  --inf")}
```

`exp/training/inference/RESULTS.md` then has the error rates, `report.html` beside it the curves,
the errors and the audio. The same line again reuses finished work; after a kill, it resumes. A
training with other settings gets a name of its own: `exp_tag=deep model.encoder.n_layers=8`.

| file | content |
|---|---|
| `conf/training.yaml` | data, tokenizer, model, training: each choice with its reason |
| `conf/inference.yaml` | test sets, decoder |
| `conf/metrics.yaml` | error rates, and how texts are cleaned before they are compared |
| `conf/parallel_*.yaml` | after one of them: other workers, such as jobs of Slurm |
"""


def test_name(path: str, taken: Iterable[str]) -> str:
    """Return what a test set is called: the name of its file or folder, made unique."""
    name = Path(path).name.split(".")[0] or "test"
    name = "_".join("".join(c if c.isprintable() else " " for c in name).split()) or "test"
    number, unique = 2, name
    while unique in set(taken):
        unique, number = f"{name}_{number}", number + 1
    return unique
