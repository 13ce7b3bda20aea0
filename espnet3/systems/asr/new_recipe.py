"""Write the config files of a recogniser for a corpus, with what was chosen and why in comments."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet3.components.data.survey import Survey, shared_speakers
from espnet3.systems.asr.recipe_choices import Choices, choose
from espnet3.text import count, duration, first_few

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
