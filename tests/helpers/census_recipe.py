"""Write a made-up recipe of ESPnet2 to disk: `run.sh`, configs, links, data, tokens."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import yaml

from tests.helpers.census_settings import Settings
from tests.helpers.census_shell import CMD, Speller
from tests.helpers.espnet2_recipe import SLURM, WORDS

_PBS = "command qsub -V -v PATH -S /bin/bash\noption mem=* -l mem=$0\n"
_QUEUE = "command qsub -v PATH -cwd -S /bin/bash\noption mem=* -l mem_free=$0,ram_free=$0\n"


def write_census_recipe(folder: Path, settings: Settings, words: Path) -> Speller:
    """Write the recipe; return how its shell was spelled.

    Args:
        folder: Of the recipe, not there yet.
        settings: What it means.
        words: A trained SentencePiece model, for recipes with word pieces.
    """
    rng = random.Random(settings.number)
    (folder / "conf" / "tuning").mkdir(parents=True)
    (folder / "local").mkdir()
    speller = Speller(settings)
    options = settings.options
    train = _arguments(rng, settings, "asr_args", settings.train)
    decode = _arguments(rng, settings, "inference_args", settings.decode)
    if rng.random() < 0.06:
        decode = {key.replace("_", "-"): value for key, value in decode.items()}
    _write_config(folder, rng, "train_asr", train)
    _write_config(folder, rng, "decode_asr", decode)
    _write_config(folder, rng, "train_lm", settings.lm)
    (folder / "run.sh").write_text(speller.script())
    for name, text in speller.files.items():
        (folder / name).write_text(text)
    (folder / "cmd.sh").write_text(CMD.format(backend=settings.backend))
    for name, text in (("slurm", SLURM), ("pbs", _PBS), ("queue", _QUEUE)):
        (folder / "conf" / f"{name}.conf").write_text(text)
    for name in ("path.sh", "db.sh", "utils", "steps", "asr.sh"):
        # Into the TEMPLATE, which a copy of one recipe does not have: dangling.
        os.symlink(f"../../TEMPLATE/asr1/{name}", folder / name)
    (folder / "local" / "data.sh").write_text("#!/usr/bin/env bash\nexit 0\n")
    if settings.has & {"data", "dump"}:
        _write_data(folder, settings)
    if "tokens" in settings.has:
        _write_tokens(folder, settings, words)
    if "exp" in settings.has:
        _write_trained(folder, settings)
    if options.get("nlsyms_txt", "none") != "none":
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data" / "nlsyms.txt").write_text("<noise>\n<laugh>\n")
    return speller


def _arguments(
    rng: random.Random, settings: Settings, option: str, config: dict[str, Any]
) -> dict[str, Any]:
    """Move a key of a config to the option that overrides it, now and then."""
    plain = [k for k, v in config.items() if isinstance(v, int | float) and not isinstance(v, bool)]
    if not plain or rng.random() > 9 / 142:
        return dict(config)
    key = rng.choice(plain)
    settings.options[option] = f"--{key} {config[key]}"
    return {**config, key: config[key] + 1}


def _write_config(folder: Path, rng: random.Random, name: str, values: dict[str, Any]) -> None:
    text = yaml.safe_dump(values, sort_keys=False) if values else "# all of it as ESPnet2 has it\n"
    if rng.random() < 0.5:
        (folder / "conf" / "tuning" / f"{name}_1.yaml").write_text(text)
        os.symlink(f"tuning/{name}_1.yaml", folder / "conf" / f"{name}.yaml")
    else:
        (folder / "conf" / f"{name}.yaml").write_text(text)


def _write_data(folder: Path, settings: Settings) -> None:
    root = folder / (
        "data" if "data" in settings.has else f"dump/{settings.get('feats_type', 'raw')}"
    )
    names = [settings.get("train_set"), settings.get("valid_set")]
    rate = sample_rate(settings.get("fs", "16k"))
    audio = folder / "audio"
    audio.mkdir()
    for number in range(2):
        samples = np.random.default_rng(number).normal(0, 0.1, int(rate * (0.9 + 0.2 * number)))
        soundfile.write(audio / f"{number}.wav", samples, rate)
    for name in dict.fromkeys([*names, *settings.get("test_sets").split()]):
        place = root / name
        place.mkdir(parents=True, exist_ok=True)
        ids = [f"{name.replace('/', '_')}-{number:03d}" for number in range(4)]
        tables = {
            "wav.scp": [f"{id} {audio}/{n % 2}.wav" for n, id in enumerate(ids)],
            "text": [f"{id} {WORDS[n]} {WORDS[n - 1]}" for n, id in enumerate(ids)],
            "utt2spk": [f"{id} spk{n % 2}" for n, id in enumerate(ids)],
        }
        for file, lines in tables.items():
            (place / file).write_text("".join(f"{line}\n" for line in lines))


def _write_tokens(folder: Path, settings: Settings, words: Path) -> None:
    kind = settings.get("token_type", "bpe")
    lang = settings.get("lang", "noinfo")
    names = {
        "bpe": f"bpe_{settings.get('bpemode', 'unigram')}{settings.get('nbpe', '30')}",
        "hugging_face": "hugging_face_bert-base-uncased",
    }
    place = folder / "data" / f"{lang}_token_list" / names.get(kind, kind)
    place.mkdir(parents=True)
    tokens = ["<space>", *sorted({*"".join(WORDS)})] if kind == "char" else list(WORDS)
    if kind == "bpe":
        (place / "bpe.model").write_bytes(words.read_bytes())
        tokens = words.with_suffix(".vocab").read_text().splitlines()
        tokens = [line.split("\t")[0] for line in tokens][3:]
    text = "".join(f"{one}\n" for one in ["<blank>", "<unk>", *tokens, "<sos/eos>"])
    (place / "tokens.txt").write_text(text)


def _write_trained(folder: Path, settings: Settings) -> None:
    """Write what trainings leave, as far as a migration looks at it."""
    wanted = settings.get("inference_asr_model", "valid.acc.ave.pth")
    for name, weights in (("asr_train_asr_raw", wanted), ("lm_train_lm", "valid.loss.ave.pth")):
        place = folder / "exp" / name
        place.mkdir(parents=True)
        (place / "config.yaml").write_text("encoder: conformer\n")
        (place / weights).write_bytes(b"")


def write_word_pieces(folder: Path) -> Path:
    """Train a small SentencePiece model, as ESPnet2's recipes do."""
    import sentencepiece

    text = folder / "text"
    text.write_text("".join(f"{a} {b}\n" for a in WORDS for b in WORDS))
    sentencepiece.SentencePieceTrainer.Train(
        input=str(text), model_prefix=str(folder / "bpe"), vocab_size=16, model_type="unigram",
        minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    return folder / "bpe.model"


def sample_rate(text: str) -> int:
    """Return the Hz of `16k`."""
    return int(text[:-1]) * 1000 if text.endswith("k") else int(text)
