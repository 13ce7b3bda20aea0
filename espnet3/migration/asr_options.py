"""Remarks of `espnet3 migrate` on each option of `asr.sh` that is not a part of a config file.

docs/espnet2.md has the same options with the words to type; a test compares both.
"""

from collections.abc import Mapping

from espnet3.config.advice import advise
from espnet3.migration.journal import Journal
from espnet3.migration.source_recipe import Option, SourceRecipe

STAGES = {
    1: "create_dataset", 5: "train_tokenizer", 10: "collect_stats", 11: "train", 12: "infer",
    13: "measure", 14: "pack_model", 15: "upload_model",
}  # fmt: skip
"""Our stage for those of `asr.sh` that have one; docs/espnet2.md says where the others are."""

_LATER = "a matter of the line that you type: --stages"
UNNEEDED = {
    "audio_format": "any format that soundfile reads; nothing is copied",
    "dumpdir": "there is no dump/ here; that of the old recipe is read",
    "local_data_opts": "of local/data.sh, which the old recipe runs",
    "post_process_local_data_opts": "of local/data.sh, which the old recipe runs",
    "num_splits_asr": "a large corpus: data in shards",
    "num_splits_lm": "a large corpus: data in shards",
    "python": "the interpreter that runs run.py",
    "asr_text_fold_length": "batches are limited by their padded seconds",
    "lm_fold_length": "batches are limited by their padded seconds",
    "word_vocab_size": "of a word language model, which is not here",
    "lm_test_text": "perplexity of the validation set is logged while training",
    "bpe_input_sentence_size": "all texts are used",
    "asr_stats_dir": "stats_dir=...",
    "lm_stats_dir": "not needed",
    **dict.fromkeys(
        (
            "skip_stages", "skip_data_prep", "skip_train", "skip_eval", "skip_packing",
            "skip_upload", "skip_upload_hf", "skip_lm_train",
        ),
        _LATER,
    ),
}  # fmt: skip
"""Options that nothing is missing without."""
LEFT_OUT = {
    "lang": "only for the model card: pack.language",
    "hf_repo": "upload.repo_id, for upload_model",
    "local_score_opts": "measure computes WER and CER; a metric of your own for local/score.sh",
    "asr_tag": "exp_tag=NAME on the line; else the name of the config is that of the experiment",
    "asr_exp": "exp_dir=FOLDER on the line",
    "expdir": "exp_dir=FOLDER on the line",
    "lm_tag": "exp_tag=NAME on the line of the language model",
    "lm_exp": "exp_dir=FOLDER on the line of the language model",
    "inference_tag": "inference_dir=FOLDER on the line",
    "ignore_init_mismatch": "weights that do not fit are reported and left out anyway",
    "feats_extract": "the front end is a part of the model",
}  # fmt: skip
"""Options that are missing without changing results."""
CHANGES = {
    "bpe_nlsyms": "symbols that are one token each are not here",
    "cleaner": "set tokenizer.clean_types, and clean_types of the metrics",
    "hugging_face_model_name_or_path": "a model of Hugging Face is another `model` here",
    "download_model": "download and unpack it, and give its folder",
    "g2p": "not here",
    "oov": "ids are fixed: 0 blank, 1 unknown, the last one start and end",
    "blank": "ids are fixed: 0 blank, 1 unknown, the last one start and end",
    "sos_eos": "ids are fixed: 0 blank, 1 unknown, the last one start and end",
    "asr_task": "only the task asr is migrated",
    "inference_ngram": "an n-gram of your own: model.decoder.ngram of a CTC decoder",
}  # fmt: skip
"""Options without which results are others."""
SWITCHES = {
    "use_word_lm": "a word language model is not here",
    "use_ngram": "n-grams: train_ngram, and ngram of a CTC decoder",
    "use_streaming": "streaming decoding is not here",
    "use_maskctc": "Mask-CTC is not here",
    "use_k2": "k2 is not here",
}
"""Options that change results if they are on."""
USUAL = {"oov": "<unk>", "blank": "<blank>", "sos_eos": "<sos/eos>", "asr_task": "asr",
         "num_ref": "1", "num_inf": "1"}  # fmt: skip
"""Values that are what is done here; others change results."""
READ = (
    "train_set", "valid_set", "test_sets", "asr_config", "asr_args", "inference_config",
    "inference_args", "inference_asr_model", "inference_nj", "gpu_inference", "nj", "ngpu",
    "num_nodes", "stage", "stop_stage", "token_type", "nbpe", "bpemode", "bpe_char_cover",
    "bpe_train_text", "use_lm", "inference_lm", "lm_config", "lm_args", "lm_train_text",
    "lm_dev_text", "speed_perturb_factors", "max_wav_duration", "min_wav_duration",
    "asr_speech_fold_length", "feats_type", "feats_normalize", "fs", "nlsyms_txt",
    "pretrained_model", "eval_valid_set", "ngram_num",
)  # fmt: skip
"""Options that have a counterpart, which the modules that read them note."""


def stages_line(recipe: SourceRecipe) -> str:
    """Return the stages that `--stage` and `--stop_stage` of the call stand for; empty if neither.

    Example:
        `--stage 11 --stop_stage 13` is `train-measure`.
    """
    first, last = recipe.options.get("stage"), recipe.options.get("stop_stage")
    if first is None and last is None:
        return ""
    numbers = [int(o.value) if o and o.value.isdigit() else None for o in (first, last)]
    start = 1 if numbers[0] is None else numbers[0]
    stop = max(STAGES) if numbers[1] is None else numbers[1]
    ours = [name for number, name in STAGES.items() if start <= number <= stop]
    words = f"--stages {ours[0]}-{ours[-1]}" if ours else "none of the stages here"
    for option in (first, last):
        if option:
            note = "numbers differ here; the default of a line that you type, not of the recipe"
            recipe.journal.taken(option.origin, f"--{option.name}", option.value, words, note)
    return words


def note_rest(recipe: SourceRecipe, left_out: Mapping[str, str] | None = None) -> None:
    """Note each option that nothing else has noted, so that none is lost without a word.

    Args:
        recipe: The old one.
        left_out: Further options that are missing without changing results, and why.
    """
    noted = {entry.name for entry in recipe.journal.entries}
    for option in recipe.options.values():
        if f"--{option.name}" in noted:
            continue
        if left_out and option.name in left_out and option.value:
            note = left_out[option.name]
            recipe.journal.left_out(option.origin, f"--{option.name}", option.value, note)
        else:
            _note(recipe.journal, option)


def _note(journal: Journal, option: Option) -> None:
    name, value = option.name, option.value
    shown = f"--{name}"
    if not value or value.lower() == "none":
        journal.unneeded(option.origin, shown, value, "is empty")
    elif USUAL.get(name) == value:
        journal.unneeded(option.origin, shown, value, "the default of asr.sh, as here")
    elif name in UNNEEDED:
        journal.unneeded(option.origin, shown, value, UNNEEDED[name])
    elif name in LEFT_OUT:
        journal.left_out(option.origin, shown, value, LEFT_OUT[name])
    elif name in SWITCHES and value.lower() == "false":
        journal.unneeded(option.origin, shown, value, "off, as here")
    elif name in CHANGES or name in SWITCHES:
        journal.changes(option.origin, shown, value, {**CHANGES, **SWITCHES}[name])
    elif name == "ngram_num":
        journal.unneeded(option.origin, shown, value, "no n-gram is used")
    elif name.startswith("ref_text_"):
        note = "measure reads the text of the data; of several references only that"
        journal.left_out(option.origin, shown, value, note)
    else:
        advice = advise((name,), value, ["train"])
        write = f"; perhaps {advice.override()}" if advice and advice.settings else ""
        journal.changes(option.origin, shown, value, f"is not known here{write}")
