"""`espnet3 migrate`: from a recipe in ESPnet2's layout to one that runs here."""

import os
from pathlib import Path

import pytest
import torch
import yaml

from espnet3.cli.main import main
from espnet3.systems.asr.system import ASRSystem
from tests.helpers.espnet2_recipe import RUN, write_recipe, write_set
from tests.helpers.exhaustive import few
from tests.helpers.recipe_copy import run_recipe_here

CONFIGS = (
    "--training_config", "conf/training.yaml", "--inference_config", "conf/inference.yaml",
    "--metrics_config", "conf/metrics.yaml",
)  # fmt: skip
ALL = ("--stages", "train_tokenizer", "train-report", *CONFIGS)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write_recipe(tmp_path / "it's egs2" / "an4" / "asr1")


def run_sh(*lines: str, **values: str) -> str:
    """Return a run.sh whose call has these options, in place of or beside the usual ones."""
    text = RUN
    for name, value in values.items():
        start = text.find(f"    --{name} ")
        if start < 0:
            text = text.replace("./asr.sh \\\n", f"./asr.sh \\\n    --{name} {value} \\\n")
        else:
            end = text.index("\\\n", start)
            text = f"{text[:start]}    --{name} {value} {text[end:]}"
    return text.replace("./asr.sh", "\n".join([*lines, "./asr.sh"]), 1)


def migrated(old: Path, *words: str, code: int = 0, name: str = "new") -> Path:
    new = old.parents[2] / name
    # The nearest model runs without the package of ESPnet2.
    model = [] if "--model" in words else ["--model", "native"]
    assert main(["migrate", str(old), str(new), *words, *model]) == code
    return new


def config(new: Path, name: str) -> dict:
    return yaml.safe_load((new / "conf" / f"{name}.yaml").read_text())


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_recipe_runs_here_without_a_change_by_hand(old, capsys):
    before = files(old)
    new = migrated(old)
    assert files(old) == before
    run_recipe_here(ASRSystem, new, *ALL, "--dry-run")
    told = capsys.readouterr().out
    assert "train (4)" in told
    assert (new / "run.py").is_file()


@pytest.mark.long
def test_it_trains_decodes_on_two_workers_and_scores(old):
    new = migrated(old)
    configs = list(CONFIGS)
    configs.insert(4, "conf/parallel_local.yaml")
    run_recipe_here(ASRSystem, new, *ALL[:2], *CONFIGS[:2])
    run_recipe_here(ASRSystem, new, "--stages", "train-report", *configs)
    results = new / "exp" / "training" / "inference"
    assert len((results / "test" / "hyp.scp").read_text().splitlines()) == 4
    assert "WER" in (results / "RESULTS.md").read_text()


def test_values_of_run_sh_and_configs_are_where_they_belong(old):
    new = migrated(old)
    training, inference = config(new, "training"), config(new, "inference")
    assert training["dataloader"]["train"]["batch_seconds"] == 200  # 1,600,000 samples at 8 kHz
    assert training["dataloader"]["train"]["max_seconds"] == 20  # the default of asr.sh
    assert training["dataset"]["train"][0]["weight"] == 3
    assert training["model"]["encoder"]["hidden"] == 16
    assert training["model"]["ctc_weight"] == 0.3
    assert training["optimizer"]["lr"] == 0.002
    assert training["trainer"]["max_epochs"] == 2
    assert training["best_model_criterion"] == [["valid/acc", 2, "max"]]
    assert inference["model"]["decoder"]["beam_size"] == 2  # beam-size
    assert inference["model"]["weights"].endswith("valid.acc.ave_2best.safetensors")
    jobs = config(new, "parallel_slurm")["parallel"]
    assert (jobs["n_workers"], jobs["options"]["memory"], jobs["options"]["queue"]) == (
        6, "8GB", "cpu",
    )  # fmt: skip
    launch = config(new, "launch_slurm")["launch"]
    assert (launch["queue"], launch["time"], launch["cpus_per_task"]) == ("gpu", "24:00:00", 4)


def test_migration_md_has_each_option_and_key_with_its_place(old):
    lines = (migrated(old) / "MIGRATION.md").read_text().splitlines()
    options = [line.split()[0] for line in RUN.splitlines() if line.startswith("    --")]
    for option in options:
        assert any(f"| {option} |" in line and "run.sh:" in line for line in lines), option
    for key in yaml.safe_load((old / "conf" / "train_asr.yaml").read_text()):
        assert any(f"| {key} |" in line and "train_asr.yaml:" in line for line in lines), key


def test_a_dry_run_shows_all_and_writes_nothing(old, capsys):
    new = migrated(old, "--dry-run")
    assert not new.exists()
    assert "--speed_perturb_factors" in capsys.readouterr().out


def test_what_changes_results_is_listed_and_exits_with_3(old, capsys):
    (old / "run.sh").write_text(
        run_sh(use_lm="true", use_word_lm="true", nbpe="$(cat n)", frobnicate="1")
    )
    new = migrated(old, code=3)
    told = capsys.readouterr().out
    for name in ("--use_word_lm", "--nbpe", "--frobnicate"):
        assert name in told
        assert name in (new / "MIGRATION.md").read_text()
    run_recipe_here(ASRSystem, new, *ALL, "--dry-run")


TRAINING = {
    "noamlr, by its formula": (
        {"scheduler": "noamlr", "scheduler_conf": {"model_size": 64, "warmup_steps": 400}},
        0, lambda c: c["optimizer"]["lr"] == pytest.approx(0.002 / 8 / 20),
    ),
    "batches of utterances": (
        {"batch_type": "unsorted", "batch_size": 6}, 0,
        lambda c: c["dataloader"]["train"]["batch_size"] == 6,
    ),
    "folded batches": (
        {"batch_type": "folded", "batch_size": 6}, 0,
        lambda c: c["dataloader"]["train"]["batch_seconds"] == 60,
    ),
    "only CTC": (
        {"model_conf": {"ctc_weight": 1.0}, "best_model_criterion": [["valid", "loss", "min"]]}, 3,
        lambda c: "decoder" not in c["model"],
    ),
    "masks": (
        {"specaug": "specaug", "specaug_conf": {"apply_time_warp": False, "num_time_mask": 5,
         "time_mask_width_ratio_range": [0, 0.05], "freq_mask_width_range": [0, 7]}}, 0,
        lambda c: c["model"]["spec_augment"]["max_time_part"] == 0.05,
    ),
    "masks with a warp of time": (
        {"specaug": "specaug", "specaug_conf": {"apply_time_warp": True}}, 3,
        lambda c: "spec_augment" in c["model"],
    ),
    "a transducer": (
        {"decoder": "transducer", "decoder_conf": {"hidden_size": 12}, "model_conf": {},
         "joint_net_conf": {"joint_space_size": 9},
         "best_model_criterion": [["valid", "loss", "min"]]}, 3,
        lambda c: c["model"]["joint_size"] == 9,
    ),
    "attention only": ({"model_conf": {"ctc_weight": 0.0}}, 0, lambda c: True),
    "a transducer with CTC": (
        {"decoder": "transducer", "model_conf": {"ctc_weight": 0.2}, "decoder_conf": {},
         "best_model_criterion": [["valid", "loss", "min"]]}, 3,
        lambda c: c["model"]["ctc_weight"] == 0.2,
    ),
    "self-supervised features": (
        {"frontend": "s3prl", "frontend_conf": {"frontend_conf": {"upstream": "x"}},
         "preencoder": "linear", "preencoder_conf": {"input_size": 1024, "output_size": 80},
         "freeze_param": ["frontend.upstream"]}, 3,
        lambda c: "freeze" not in c,
    ),
    "old recurrent networks": (
        {"encoder": "vgg_rnn", "encoder_conf": {"rnn_type": "lstm", "hidden_size": 24,
         "num_layers": 1, "output_size": 24}, "decoder": "rnn", "decoder_conf": {"num_layers": 1},
         "optim": "adadelta", "optim_conf": {"lr": 1.0, "rho": 0.95, "eps": 1.0e-8}}, 3,
        lambda c: c["optimizer"]["rho"] == 0.95,
    ),
    "another encoder": ({"encoder": "e_branchformer"}, 3, lambda c: c["model"]["encoder"]),
    "an unknown key": ({"frobnicate": 3}, 3, lambda c: "frobnicate" not in c),
    "a plateau": (
        {"scheduler": "reducelronplateau", "scheduler_conf": {"patience": 1}}, 0,
        lambda c: c["scheduler_monitor"] == "valid/loss",
    ),
    "patience and half precision": (
        {"patience": 3, "use_amp": True}, 0, lambda c: c["trainer"]["callbacks"][0]["patience"] == 3
    ),
    "an optimizer of its own": ({"optim": "apollo"}, 3, lambda c: c["optimizer"]["lr"] == 0.002),
    "weights to start from": ({"init_param": ["exp/x.pth:encoder:encoder"]}, 3, lambda c: c),
    "arguments that are no keys and values": (
        {"optim_conf": ["lr=0.1"]}, 3, lambda c: c["optimizer"]["lr"] == 0.001,
    ),
    "numbers and nothing as texts": (
        {"max_epoch": "7", "specaug": "none", "scheduler": "None", "patience": "null"}, 0,
        lambda c: c["trainer"]["max_epochs"] == 7 and "scheduler" not in c,
    ),
    "a number with an exponent": (
        {"optim_conf": {"lr": "1e-3"}}, 0, lambda c: c["optimizer"]["lr"] == 0.001
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", few(TRAINING, 8))
def test_a_training_config_is_translated_and_accepted(case, tmp_path):
    changes, code, holds = TRAINING[case]
    # With tokens, so that the checks of `train` build the model.
    old = write_recipe(tmp_path / "egs2" / "an4" / "asr1", train=changes, has_tokens=True)
    new = migrated(old, code=code)
    assert holds(config(new, "training"))
    run_recipe_here(ASRSystem, new, "--stages", "train-report", *CONFIGS, "--dry-run")


SCRIPTS = {
    "stages in the call": (run_sh(stage="11", stop_stage="13"), 0, "train-measure"),
    "an option twice": (run_sh(ngpu="1 \\\n    --ngpu 2"), 0, "which counts"),
    "dashes in a name": (run_sh(**{"max-wav-duration": "9"}), 0, "`9`"),
    "a language model": (run_sh(use_lm="true"), 0, "conf/training_lm.yaml"),
    "word pieces": (run_sh(token_type="bpe", nbpe="20"), 0, "`20`"),
    "other texts for the tokens": (
        run_sh(token_type="bpe", nbpe="20", bpe_train_text="data/all/text"), 0, "text_builder",
    ),
    "words": (run_sh(token_type="word"), 3, "characters taken"),
    "arguments for the training": (
        run_sh(asr_args='"--max_epoch 5 --optim_conf lr=0.1"'), 0, "--asr_args",
    ),
    "arguments for the decoding": (run_sh(inference_args='"--beam_size 3"'), 0, "--inference_args"),
    "decoding on GPUs": (run_sh(gpu_inference="true"), 0, "conf/parallel_gpu.yaml"),
    "four GPUs": (run_sh(ngpu="4", num_nodes="2"), 0, "trainer.num_nodes"),
    "two calls of the same": (f"{RUN}\n./asr.sh --stage 12 --stop_stage 13\n", 0, "further call"),
    "two calls that differ": (f"{RUN}\n./asr.sh --train_set other\n", 3, "differs in train_set"),
    "a command before the call": (run_sh("local/prepare.py --x 1"), 3, "local/prepare.py"),
    "a training set of an unknown name": (run_sh(train_set='"$(cat set)"'), 3, "SET_THE"),
    "the best checkpoint": (run_sh(inference_asr_model="valid.acc.best.pth"), 0, "model.weights"),
    "sets with a slash": (run_sh(test_sets='"dev/clean test"'), 0, "dev/clean"),
    "no duration that is a number": (run_sh(max_wav_duration="long"), 3, "not a number"),
}  # fmt: skip


@pytest.mark.parametrize("case", few(SCRIPTS, 8))
def test_a_run_sh_gives_a_recipe_whose_dry_run_misses_nothing_but_data(case, tmp_path):
    script, code, told = SCRIPTS[case]
    sets = ("train", "dev", "test", "dev/clean", "SET_THE_TRAIN_SET")
    old = write_recipe(tmp_path / "egs2" / "an4" / "asr1", run=script, sets=sets)
    new = migrated(old, code=code)
    text = (new / "MIGRATION.md").read_text() + (new / "conf" / "training.yaml").read_text()
    assert told in text
    run_recipe_here(ASRSystem, new, *ALL, "--dry-run")
    if (new / "conf" / "training_lm.yaml").exists():
        only = ("--stages", "train_tokenizer", "train", "--training_config", "conf/training.yaml")
        run_recipe_here(ASRSystem, new, *only, "--dry-run")


def test_data_that_is_not_there_yet_is_something_to_do(tmp_path, capsys):
    old = write_recipe(tmp_path / "egs2" / "an4" / "asr1", sets=("train", "dev"))
    new = migrated(old)
    told = capsys.readouterr().out
    assert "To do first: data/test is not there yet" in told
    assert "./run.sh --stage 1 --stop_stage 4" in (new / "MIGRATION.md").read_text()


def test_commands_in_a_list_of_audio_are_something_to_do(old):
    (old / "data" / "test" / "wav.scp").write_text("test-000 sph2pipe -f wav a.sph |\n")
    assert "commands are never executed" in (migrated(old) / "MIGRATION.md").read_text()


def test_formatted_data_is_preferred_and_segments_are_read(old):
    write_set(old / "dump" / "raw" / "test", "test", 2)
    (old / "data" / "dev" / "segments").write_text("dev-000 dev-000 0 0.5\ndev-001 dev-001 0 -1\n")
    new = migrated(old)
    assert config(new, "inference")["dataset"]["test"][0]["data_src_args"] == {
        "path": "${espnet2_dir}/dump/raw/test", "sample_rate": 8000,
    }  # fmt: skip
    assert "segments" in (new / "MIGRATION.md").read_text()


def test_the_old_characters_are_the_new_ones(tmp_path):
    old = write_recipe(tmp_path / "egs2" / "an4" / "asr1", has_tokens=True)
    tokens = (old / "data" / "token_list" / "char" / "tokens.txt").read_text()
    new = migrated(old)
    assert (new / "data" / "tokenizer" / "tokens.txt").read_text() == tokens
    run_recipe_here(ASRSystem, new, "--stages", "train-report", *CONFIGS, "--dry-run")


def test_the_old_word_pieces_are_the_new_ones(tmp_path):
    from sentencepiece import SentencePieceTrainer

    from espnet3.components.text.tokenizer import load_tokenizer

    script = run_sh(token_type="bpe", nbpe="20", lang="en")
    old = write_recipe(tmp_path / "egs2" / "an4" / "asr1", run=script)
    folder = old / "data" / "en_token_list" / "bpe_unigram20"
    folder.mkdir(parents=True)
    texts = ["one two three stop", "seven nine enter", "go back three one"] * 9
    with (folder / "bpe.model").open("wb") as model:
        SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=model, vocab_size=20, minloglevel=2
        )
    from sentencepiece import SentencePieceProcessor

    theirs = SentencePieceProcessor(model_file=str(folder / "bpe.model"))
    pieces = [theirs.id_to_piece(i) for i in range(3, 20)]
    (folder / "tokens.txt").write_text("\n".join(["<blank>", "<unk>", *pieces, "<sos/eos>", ""]))
    ours = load_tokenizer(migrated(old) / "data" / "tokenizer")
    for text in texts:
        assert [ours.tokens[i] for i in ours.encode(text)] == theirs.encode(text, out_type=str)


@pytest.mark.parametrize("has_objects", [False, True])
def test_a_trained_model_of_the_old_recipe_gets_a_config_that_decodes_it(old, capsys, has_objects):
    folder = old / "exp" / "asr_train_asr_raw_char"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("encoder: conformer\n")
    weights = {"encoder.weight": torch.zeros(2)}
    torch.save(weights | ({"args": Path("x")} if has_objects else {}), folder / "valid.acc.ave.pth")
    new = migrated(old)
    model = config(new, "inference_espnet2")["model"]
    assert model == {
        "_target_": "espnet3.systems.espnet2.inference.ESPnet2Inference",
        "task": "asr",
        "config": "${espnet2_dir}/exp/asr_train_asr_raw_char/config.yaml",
        "weights": "${espnet2_dir}/exp/asr_train_asr_raw_char/valid.acc.ave.pth",
        "beam_size": 2, "ctc_weight": 0.3, "maxlenratio": 0.0, "minlenratio": 0.0, "penalty": 0.0,
    }  # fmt: skip
    assert ("trust_remote_code: true" in capsys.readouterr().out) == has_objects


def test_a_recipe_of_espnet3_is_told_apart(old, capsys):
    new = migrated(old)
    assert main(["migrate", str(new), str(new) + "_2"]) == 1
    assert "espnet3 run" in capsys.readouterr().err


KEPT = ("--model", "espnet2")


def test_the_model_of_espnet2_is_kept_with_its_own_keys(tmp_path):
    changes = {
        "encoder": "e_branchformer", "specaug": "specaug",
        "init_param": ["exp/x.pth:encoder:encoder"],
        "specaug_conf": {"apply_time_warp": True}, "freeze_param": ["encoder.embed"],
    }  # fmt: skip
    old = write_recipe(tmp_path / "egs2" / "an4" / "asr1", train=changes, has_tokens=True)
    new = migrated(old, *KEPT)
    training, inference = config(new, "training"), config(new, "inference")
    model = training["model"]
    assert model["_target_"] == "espnet3.systems.espnet2.model.ESPnet2Model"
    assert (model["encoder"], model["init"]) == ("e_branchformer", "xavier_uniform")
    assert model["specaug_conf"] == {"apply_time_warp": True}
    assert model["frontend_conf"] == {"n_mels": 20, "fs": 8000}
    assert model["token_list"] == "${espnet2_dir}/data/token_list/char/tokens.txt"
    assert training["dataset"]["preprocessor"]["token_list"] == model["token_list"]
    assert training["init"] == [
        {"path": f"{old}/exp/x.pth", "from": "encoder", "to": "network.encoder"}
    ]
    assert training["freeze"] == ["network.encoder.embed.*"]
    assert inference["model"]["config"] == "${exp_dir}/config.yaml"
    assert inference["model"]["beam_size"] == 2


def test_statistics_and_tokens_that_are_not_there_are_made_by_stages(tmp_path):
    script = run_sh(token_type="bpe", nbpe="20", feats_normalize="global_mvn")
    old = write_recipe(tmp_path / "egs2" / "an4" / "asr1", run=script)
    new = migrated(old, *KEPT)
    model = config(new, "training")["model"]
    assert model["normalize_conf"] == {"stats_file": "${stats_dir}/train/feats_stats.npz"}
    assert model["bpemodel"] == "${tokenizer.save_path}/unigram.model"
    assert (
        "--stages train_tokenizer collect_stats train-report" in (new / "MIGRATION.md").read_text()
    )


def test_a_language_model_that_was_never_trained_is_trained_by_the_new_recipe(tmp_path):
    script = run_sh(use_lm="true", token_type="word", lm_config="conf/train_lm.yaml")
    old = write_recipe(tmp_path / "egs2" / "an4" / "asr1", run=script, decode={"lm_weight": 0.3})
    (old / "conf/train_lm.yaml").write_text("lm: transformer\nlm_conf: {unit: 8}\nbatch_size: 7\n")
    new = migrated(old, *KEPT)
    text, lm = (new / "MIGRATION.md").read_text(), config(new, "training_lm")
    assert "data/en_token_list/word/tokens.txt for --token_type word is not there yet" in text
    assert "--stages train --training_config conf/training_lm.yaml" in text
    assert (lm["model"]["task"], lm["model"]["lm"], lm["model"]["lm_conf"]) == (
        "lm", "transformer", {"unit": 8},
    )  # fmt: skip
    assert lm["dataloader"]["train"]["batch_size"] == 7
    model = config(new, "inference")["model"]
    assert model["lm_train_config"] == "${recipe_dir}/exp/training_lm/config.yaml"
    assert model["lm_file"].endswith("exp/training_lm/valid.loss.ave_10best.safetensors")
    assert model["lm_weight"] == 0.3


def test_a_language_model_that_the_old_recipe_has_trained_is_used_as_it_is(tmp_path):
    script = run_sh(use_lm="true")
    old = write_recipe(tmp_path / "egs2" / "an4" / "asr1", run=script, decode={"lm_weight": 0.3})
    (old / "exp/lm_train").mkdir(parents=True)
    (old / "exp/lm_train/config.yaml").write_text("lm: seq_rnn\n")
    (old / "exp/lm_train/valid.loss.ave.pth").touch()
    new = migrated(old, *KEPT)
    assert config(new, "inference")["model"]["lm_file"] == (
        "${espnet2_dir}/exp/lm_train/valid.loss.ave.pth"
    )
    assert not (new / "conf/training_lm.yaml").exists()


FURTHER = {
    "several words of an argument": (
        run_sh(asr_args='"--init_param a.pth:encoder b.pth --freeze_param encoder frontend"'), {},
        0, lambda t: len(t["init"]) == 2 and t["freeze"][1] == "network.frontend.*",
    ),
    "an argument with =": (
        run_sh(asr_args="--max_epoch=7"), {}, 0, lambda t: t["trainer"]["max_epochs"] == 7,
    ),
    "an empty variable": (
        run_sh("opts=", local_data_opts="${opts}"), {}, 3, lambda t: True,
    ),
    "no front end": (
        run_sh(token_type="whisper_en"),
        {"frontend": None, "input_size": 1, "encoder": "whisper", "preprocessor": "default",
         "preprocessor_conf": {"whisper_task": "transcribe"}}, 0,
        lambda t: t["model"]["frontend"] is None and t["model"]["input_size"] == 1
        and t["model"]["bpemodel"] == "whisper_en" and "tokenizer" not in t
        and t["dataset"]["preprocessor"]["preprocessor_conf"] == {"whisper_task": "transcribe"},
    ),
    "tokens of Hugging Face": (
        run_sh(token_type="hugging_face", hugging_face_model_name_or_path="a/b"), {}, 0,
        lambda t: t["model"]["token_list"].endswith("en_token_list/hugging_face_a-b/tokens.txt"),
    ),
    "a rate that ESPnet2 sets": ({}, {"optim": "sgd", "optim_conf": {}}, 0,
                                 lambda t: t["optimizer"]["lr"] == 0.1),
    "batches of another kind": ({}, {"batch_type": "catpow"}, 3, lambda t: True),
    "batches that hold no utterance": (
        {}, {"batch_bins": 40000}, 3, lambda t: t["dataloader"]["train"]["batch_seconds"] == 20,
    ),
    "no initialisation": ({}, {"init": "none"}, 0, lambda t: "init" not in t["model"]),
    "a clip below zero": ({}, {"grad_clip": -1}, 3,
                          lambda t: t["trainer"]["gradient_clip_val"] == 0),
    "half precision by its type": ({}, {"train_dtype": "float16"}, 3, lambda t: True),
    "utterances one after the other": ({}, {"iterator_type": "sequence"}, 0, lambda t: True),
    "pieces of utterances": ({}, {"iterator_type": "chunk", "chunk_length": 9}, 3, lambda t: True),
    "one name of frozen weights": ({}, {"freeze_param": "encoder"}, 0,
                                   lambda t: t["freeze"] == ["network.encoder.*"]),
    "symbols without a token list": (run_sh(nlsyms_txt="data/nlsyms.txt"), {}, 3, lambda t: True),
    "defaults that are written": (run_sh(oov="'<unk>'", asr_task="asr"), {}, 0, lambda t: True),
    "a question to Python": (
        run_sh('if ! python3 -c "import s3prl"; then\n  exit 1\nfi'), {}, 0, lambda t: True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FURTHER)
def test_nothing_is_kept_in_another_meaning_without_a_word(case, tmp_path):
    script, train, code, holds = FURTHER[case]
    old = write_recipe(tmp_path / "egs2" / "an4" / "asr1", run=script or RUN, train=train, sets=())
    assert holds(config(migrated(old, *KEPT, code=code), "training"))


def test_an_option_of_decoding_that_nobody_knows_is_listed(tmp_path, capsys):
    decode = {"asr_model_file": "exp/x.pth", "normalize_length": True}
    old = write_recipe(tmp_path / "egs2" / "an4" / "asr1", decode=decode)
    new = migrated(old, *KEPT, code=3)
    assert "asr_model_file" in capsys.readouterr().out
    assert config(new, "inference")["model"]["options"] == {"normalize_length": True}


def test_a_training_of_another_config_is_not_taken_for_this_one(old):
    folder = old / "exp" / "asr_train_rnn_raw_char"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("encoder: rnn\n")
    torch.save({}, folder / "valid.acc.ave.pth")
    new = migrated(old)
    assert not (new / "conf" / "inference_espnet2.yaml").exists()
    assert "of another config than --asr_config" in (new / "MIGRATION.md").read_text()


def test_options_of_the_scheduler_in_cmd_sh_reach_the_jobs(old):
    (old / "cmd.sh").write_text(
        'export train_cmd="slurm.pl"\nexport cuda_cmd="slurm.pl --account=a --time 2-00:00:00"\n'
        'export decode_cmd="slurm.pl --exclude=n1,n2 --max-jobs-run 3 -p short --time 90"\n'
    )
    new = migrated(old)
    jobs = config(new, "parallel_slurm")["parallel"]
    assert (jobs["n_workers"], jobs["options"]["walltime"]) == (3, "01:30:00")
    assert jobs["options"]["job_extra_directives"] == ["--exclude=n1,n2"]
    assert config(new, "launch_slurm")["launch"]["time"] == "48:00:00"


def test_a_cmd_sh_that_asks_the_machine_is_listed(old):
    (old / "cmd.sh").write_text(
        "if [[ $(hostname) == n* ]]; then\n  export decode_cmd=slurm.pl\nelse\n"
        "  export decode_cmd=run.pl\nfi\n"
    )
    assert "| cmd.sh | decode_cmd |" in (migrated(old) / "MIGRATION.md").read_text()


BAD = {
    "no folder": (lambda old: old.parent / "nothing", "is no folder"),
    "no recipe": (lambda old: old / "conf", "is no recipe of ESPnet2"),
    "the folder above": (lambda old: old.parent, "Perhaps you mean"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_recipe_is_refused_and_nothing_written(case, old, capsys):
    choose, told = BAD[case]
    new = old.parents[2] / "new"
    assert main(["migrate", str(choose(old)), str(new)]) == 1
    assert told in capsys.readouterr().err
    assert sorted(os.listdir(new.parent)) == ["it's egs2"]


BROKEN = {
    "half a run.sh": ("run.sh", RUN[: RUN.index("    --lang")] + '"', "never closed"),
    "a run.sh without a call": ("run.sh", "echo hello\n", "half a recipe, or none"),
    "a run.sh that starts another": ("run.sh", "./run_ctc.sh\n", "--script run_ctc.sh"),
    "a recipe of another task": ("run.sh", "./svs.sh --train_set x\n", "By hand: task: svs"),
    "a recipe of a task without a counterpart": (
        "run.sh", "./vc.sh --train_set x\n", "nothing here trains vc: train it with ESPnet2",
    ),
    "a codec": ("run.sh", "./codec.sh --train_set x\n", "gan_codec by two losses in turn"),
    "a synthesiser of two losses": (
        "run.sh", "./tts.sh --train_set x --tts_task gan_tts\n", "two losses in turn",
    ),
    "half a recipe of another task": ("run.sh", "./enh.sh --train_set x\n", "--valid_set NAME"),
    "no training set": ("run.sh", run_sh().replace('--train_set "${train_set}"', ""),
                        "gives no --train_set"),
    "no YAML": ("conf/train_asr.yaml", "a: [1\n", "is no YAML"),
    "a list": ("conf/decode_asr.yaml", "- 1\n", "is a list, not keys and values"),
    "an object in a config": ("conf/train_asr.yaml", "a: !!python/object:os.x {}\n", "is no YAML"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_recipe_is_one_clear_error_and_nothing_is_written(case, old, capsys):
    name, text, told = BROKEN[case]
    (old / name).write_text(text)
    new = old.parents[2] / "new"
    assert main(["migrate", str(old), str(new)]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert sorted(os.listdir(new.parent)) == ["it's egs2"]


def test_a_config_that_is_a_dangling_link_is_told(old, capsys):
    (old / "conf" / "train_asr.yaml").unlink()
    (old / "conf" / "train_asr.yaml").symlink_to("../../../other/conf/tuning/train.yaml")
    migrated(old, code=1)
    assert "a link to a file that is not there" in capsys.readouterr().err


def test_a_target_that_is_there_or_within_the_old_recipe_is_refused(old, capsys):
    new = migrated(old)
    migrated(old, code=1)
    assert f"{new}_2" in capsys.readouterr().err
    assert main(["migrate", str(old), str(old / "new")]) == 1
    assert "within the old recipe" in capsys.readouterr().err
