"""Real trainings: `python run.py --stages train` alone and by torchrun, killed and resumed."""

import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
import torch

from espnet3.trainer.checkpointing.checkpoint_io import load_weights
from tests.helpers.training_recipe import TrainingRecipe
from tests.helpers.waiting import wait_until

EPOCH = sorted(f"utt{i}" for i in range(60))


@pytest.fixture
def recipe(tmp_path) -> TrainingRecipe:
    return TrainingRecipe(tmp_path / "it's a corpus" / "asr")


@pytest.fixture
def notes(tmp_path) -> Path:
    """Return the folder in which each rank writes down what its batches hold."""
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def batches(notes: Path, rank: int = 0) -> list[list[str]]:
    return [line.split() for line in (notes / f"rank{rank}.txt").read_text().splitlines()]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return torch.load(checkpoint, weights_only=True)["state_dict"]


def assert_equal(first: Path, second: Path) -> None:
    one, other = weights(first), weights(second)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_training_leaves_checkpoints_averages_curves_and_says_when_it_is_done(recipe):
    output = recipe.train()
    found = {path.name for path in recipe.exp_dir.iterdir()}
    assert {
        "config.yaml", "last.ckpt", "best.json", "history.jsonl", "curves.png", "tensorboard",
        "train.log", "valid.loss.ave_2best.safetensors", "valid.loss.ave_2best.ckpt",
        "valid.loss.ave_2best.json",
    } <= found  # fmt: skip
    assert "First step after" in output
    assert "audio s/s" in output
    assert "litlogger" not in output
    averaged = json.loads((recipe.exp_dir / "valid.loss.ave_2best.json").read_text())
    assert len(averaged["files"]) == 2
    assert not (recipe.folder / "lightning_logs").exists()

    before = (recipe.exp_dir / "last.ckpt").read_bytes()
    (recipe.exp_dir / "valid.loss.ave_2best.json").unlink()  # as after a kill at the very end
    assert "trained to the end already" in recipe.train()
    assert (recipe.exp_dir / "valid.loss.ave_2best.json").exists()
    assert (recipe.exp_dir / "last.ckpt").read_bytes() == before

    assert "Resuming from exp/tones/last.ckpt (epoch 3" in recipe.train("trainer.max_epochs=4")
    recipe.train("resume=never", "trainer.max_epochs=1")
    assert (recipe.exp_dir / "previous.1" / "last.ckpt").exists()


def test_sigkill_in_mid_epoch_and_a_rerun_end_where_an_undisturbed_run_does(
    recipe, notes, tmp_path
):
    settings = ("checkpoint.every_n_steps=3", "trainer.log_every_n_steps=1")
    recipe.train(*settings, "exp_tag=undisturbed", NOTE_BATCHES=str(notes))
    undisturbed = batches(notes)
    n_epoch = len(undisturbed) // 3
    for epoch in range(3):
        seen = [
            utt for batch in undisturbed[epoch * n_epoch : (epoch + 1) * n_epoch] for utt in batch
        ]
        assert sorted(seen) == EPOCH

    killed = tmp_path / "killed"
    killed.mkdir()
    process = recipe.start("--stages", "train", *settings, NOTE_BATCHES=str(killed))
    in_second_epoch = n_epoch + 5
    noted = killed / "rank0.txt"
    wait_until(lambda: noted.exists() and noted.read_text().count("\n") >= in_second_epoch, 90)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = batches(killed)
    assert done == undisturbed[: len(done)]

    noted.unlink()
    output = recipe.train(*settings, NOTE_BATCHES=str(killed))
    assert "Resuming from exp/tones/last.ckpt" in output
    resumed = batches(killed)
    assert 0 < len(resumed) < 3 * n_epoch - 3
    assert resumed == undisturbed[-len(resumed) :]
    assert_equal(recipe.exp_dir / "last.ckpt", recipe.folder / "exp/undisturbed/last.ckpt")


def test_sigterm_to_all_processes_of_a_job_still_leaves_a_checkpoint(recipe, notes):
    settings = ("dataloader.train.num_workers=2", "trainer.max_epochs=100")
    process = recipe.start("--stages", "train", *settings, NOTE_BATCHES=str(notes))
    noted = notes / "rank0.txt"
    wait_until(lambda: noted.exists() and noted.read_text().count("\n") >= 5, 90)
    os.killpg(process.pid, signal.SIGTERM)  # as a scheduler does it
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "To continue: python run.py --stages train" in output
    saved = torch.load(recipe.exp_dir / "last.ckpt", weights_only=True)
    assert saved["global_step"] == len(batches(notes))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def torchrun(n_nodes: int, node: int, per_node: int, port: int) -> tuple[str, ...]:
    return (
        sys.executable, "-m", "torch.distributed.run", f"--nnodes={n_nodes}",
        f"--node-rank={node}", f"--nproc-per-node={per_node}", "--master-addr=127.0.0.1",
        f"--master-port={port}",
    )  # fmt: skip


@pytest.mark.exhaustive  # test_job_scripts has two nodes by torchrun in `make test`
@pytest.mark.parametrize("per_node", [2, 1])
def test_two_nodes_by_torchrun_see_each_sample_once_in_an_epoch(recipe, notes, per_node):
    settings = ("trainer.num_nodes=2", f"trainer.devices={per_node}", "trainer.strategy=ddp")
    port = free_port()
    processes = [
        recipe.start(
            "--stages", "train", *settings, "trainer.max_epochs=1",
            program=torchrun(2, node, per_node, port), NOTE_BATCHES=str(notes),
        )
        for node in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    seen = [batches(notes, rank) for rank in range(2 * per_node)]
    assert len({len(steps) for steps in seen}) == 1
    assert sorted(utt for steps in seen for batch in steps for utt in batch) == EPOCH
    assert f"{2 * per_node} ranks" in outputs[0]
    assert "Training Tones" not in outputs[1]  # the first rank speaks for all
    assert (recipe.exp_dir / "valid.loss.ave_2best.safetensors").exists()


def test_ddp_of_two_devices_is_one_command_and_the_later_stages_run_once(recipe, notes):
    output = recipe.run(
        "--stages", "train", "average", "trainer.devices=2", "trainer.strategy=ddp",
        "trainer.max_epochs=1", NOTE_BATCHES=str(notes), from_above=True,
    )  # fmt: skip
    seen = [batches(notes, rank) for rank in range(2)]
    assert len(seen[0]) == len(seen[1])
    assert sorted(utt for steps in seen for batch in steps for utt in batch) == EPOCH
    assert output.count("Stage average (5) done") == 1
    assert (recipe.exp_dir / "train.rank1.log").exists()


def test_other_stages_are_refused_under_torchrun(recipe):
    output = recipe.run(
        "--stages", "collect_stats", "train", code=1, program=torchrun(1, 0, 2, free_port())
    )
    assert "torchrun started 2 processes, but collect_stats must run in one" in output
    assert output.count("must run in one") == 1


HUGGING_FACE = """\
import torch


def collate(samples):
    samples = [sample[1] if isinstance(sample, tuple) else sample for sample in samples]
    speech = [torch.as_tensor(sample["speech"]) for sample in samples]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_values": pad(speech, batch_first=True),
        "attention_mask": pad([torch.ones(len(s), dtype=torch.long) for s in speech], True),
        "labels": torch.tensor([[sample["label"] + 1] for sample in samples]),
    }


def build():
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    return Wav2Vec2ForCTC(
        Wav2Vec2Config(
            vocab_size=6, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=32, conv_dim=(8, 8), conv_kernel=(10, 3), conv_stride=(5, 2),
            num_feat_extract_layers=2, num_conv_pos_embeddings=16, pad_token_id=0,
            num_conv_pos_embedding_groups=2, ctc_loss_reduction="mean", ctc_zero_infinity=True,
            mask_time_prob=0.0, layerdrop=0.0,
        )
    )
"""


def test_a_hugging_face_model_trains_averages_and_loads_strictly(recipe, monkeypatch):
    pytest.importorskip("transformers")
    (recipe.folder / "src" / "hugging_face.py").write_text(HUGGING_FACE)
    recipe.train(
        "model._target_=src.hugging_face.build",
        "dataloader.collate_fn={_target_: src.hugging_face.collate, _partial_: true}",
        "trainer.max_epochs=2",
    )
    monkeypatch.syspath_prepend(recipe.folder / "src")
    import hugging_face

    model = hugging_face.build()
    model.load_state_dict(load_weights(recipe.exp_dir / "valid.loss.ave_2best.safetensors"))
    files = [recipe.exp_dir / f"epoch{n}_step{14 * n}.ckpt" for n in (1, 2)]
    first, second = (weights(file)["model.lm_head.weight"] for file in files)
    assert torch.allclose(model.lm_head.weight, (first + second) / 2, atol=1e-7)
    assert not torch.equal(first, second)
