"""A training of two ranks, killed in mid-epoch, goes on with another number of them."""

import json
import shutil
import socket

import pytest
import torch

from tests.helpers.exhaustive import few
from tests.helpers.training_recipe import TrainingRecipe

N_SAMPLES = 61
SETTINGS = (
    f"dataset.train.0.data_src_args.n={N_SAMPLES}", "dataloader.train={batch_size: 2}",
    "checkpoint.every_n_steps=3", "trainer.max_epochs=2", "trainer.strategy=ddp",
)  # fmt: skip
# A kill that comes at the same batch of both ranks, as when a node loses its power.
KILLED = """\
        self._note(utt_id)
        self.n_batches = getattr(self, "n_batches", 0) + self.training
        if self.n_batches == int(os.environ.get("DIE_AT_BATCH", -1)):
            os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return a recipe whose training was killed, and what it had seen at its last checkpoint."""
    recipe = TrainingRecipe(tmp_path_factory.mktemp("ranks") / "asr")
    model = recipe.folder / "src/model.py"
    model.write_text(model.read_text().replace("        self._note(utt_id)\n", KILLED))
    seen = train(recipe, 2, code=-9, DIE_AT_BATCH="8")
    checkpoint = torch.load(recipe.exp_dir / "last.ckpt", weights_only=True)
    state = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]
    assert state["epoch"] == 0
    assert state["done"] == [[2, 6]]
    assert [len(steps) for steps in seen] == [8, 8]
    return recipe, [steps[:6] for steps in seen]


def train(recipe, n_ranks, *overrides, code=0, **environ):
    """Run the stage with so many processes, and return the ids in the batches of each rank."""
    notes = recipe.folder / "notes"
    shutil.rmtree(notes, ignore_errors=True)
    notes.mkdir()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    group = {
        "WORLD_SIZE": str(n_ranks), "LOCAL_WORLD_SIZE": str(n_ranks), "MASTER_PORT": port,
        "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0",
    }  # fmt: skip
    processes = [
        recipe.start(
            "--stages", "train", *SETTINGS, f"trainer.devices={n_ranks}", *overrides,
            NOTE_BATCHES=str(notes), RANK=str(rank), LOCAL_RANK=str(rank), **group, **environ,
        )
        for rank in range(n_ranks)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=180)[0] for process in processes]
    assert {process.returncode for process in processes} == {code}, "\n".join(outputs)
    return [
        [line.split() for line in (notes / f"rank{rank}.txt").read_text().splitlines()]
        for rank in range(n_ranks)
    ]


def names(ranks):
    return sorted(utt for steps in ranks for batch in steps for utt in batch)


@pytest.mark.parametrize("n_ranks", few([1, 3], 1))
def test_a_killed_epoch_goes_on_with_another_number_of_ranks(killed, n_ranks):
    recipe, before = killed
    tag = f"resumed{n_ranks}"
    shutil.copytree(recipe.exp_dir, recipe.exp_dir.with_name(tag))
    after = train(recipe, n_ranks, f"exp_tag={tag}")
    n_batches = -(-N_SAMPLES // 2)
    n_steps = -(-n_batches // n_ranks)  # of a whole epoch
    (n_rest,) = {len(steps) - n_steps for steps in after}
    everything = sorted(f"utt{i}" for i in range(N_SAMPLES))
    assert names([*before, *(steps[:n_rest] for steps in after)]) == everything
    assert names([steps[n_rest:] for steps in after]) == everything
    assert n_rest == -(-20 // n_ranks)  # of 32 batches, which two ranks had made of 31
    history = (recipe.exp_dir.with_name(tag) / "history.jsonl").read_text().splitlines()
    validated = [line["epoch"] for line in map(json.loads, history) if "valid/loss" in str(line)]
    assert validated == [1, 2]
