"""Hints were right for another stage: `infer devices=2` got `trainer: {devices: 2}`."""

import shlex

import pytest

from espnet3.systems.asr.system import ASRSystem
from espnet3.systems.base.system import BaseSystem
from tests.helpers.recipe_copy import RecipeCopy

TRAIN = ("--stages", "train", "--training_config", "conf/training.yaml")
INFER = ("--stages", "infer", "--inference_config", "conf/inference.yaml")


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("egs3")
    names = {TRAIN: ("TEMPLATE/asr", BaseSystem), INFER: ("mini_an4/asr", ASRSystem)}
    return {
        stage: (RecipeCopy(name, folder / name), system) for stage, (name, system) in names.items()
    }


@pytest.fixture
def told(recipes, capfd):
    """Return what gives the error of a run that is refused before anything starts."""

    def run(stage: tuple[str, ...], *words: str) -> str:
        recipe, system = recipes[stage]
        with pytest.raises(AssertionError):
            recipe.run_here(system, *words)
        assert not (recipe.folder / "exp").exists()
        error = capfd.readouterr().err
        return str(error)

    return run


@pytest.mark.parametrize(
    ("stage", "typed", "right"),
    [
        (INFER, "parallel.num_workers=2", "parallel.n_workers=2"),
        (INFER, "devices=2", "parallel.n_workers=2 parallel.env=local_gpu device=null"),
        (INFER, "parallel.devices=4", "parallel.n_workers=4 parallel.env=local_gpu device=null"),
        (INFER, "inference_nj=8", "parallel.n_workers=8"),
        (INFER, "parallel.nj=8", "parallel.n_workers=8"),
        (INFER, "parallel.cmd=queue.pl", "parallel.env=sge"),
        (INFER, "parallel.env=gpu", "parallel.env=local_gpu"),
        (INFER, "parallel.env=sbatch", "parallel.env=slurm parallel.options.cores=4"),
        (TRAIN, "trainer.num_workers=2", "dataloader.train.num_workers=2"),
        (TRAIN, "trainer.gpus=2", "trainer.devices=2 trainer.accelerator=gpu"),
        (TRAIN, "trainer.batch_size=4", "dataloader.train.batch_size=4"),
        (TRAIN, "trainer.lr=0.1", "optimizer.lr=0.1 scheduler.max_lr=0.1"),
        (TRAIN, "trainer.epochs=3", "trainer.max_epochs=3"),
        (TRAIN, "batch_sise=4", "dataloader.train.batch_size=4"),
        (TRAIN, "batchsize=4", "dataloader.train.batch_size=4"),
        (INFER, "batch_sise=4", "batch_size=4"),
        (TRAIN, "trainer.fp16=true", "trainer.precision=16-mixed"),
        (TRAIN, "dataloader.batch_size=4", "dataloader.train.batch_size=4"),
        (TRAIN, "dataloader.num_workers=4", "dataloader.train.num_workers=4"),
        (TRAIN, "dataloader.train.collate_fn=a.b", "dataloader.collate_fn=a.b"),
        (TRAIN, "optimizer.learning_rate=0.1", "optimizer.lr=0.1"),
        (TRAIN, "model.n_channls=64", "model.n_channels=64"),
        (TRAIN, "model.channls=64", "model.n_channels=64"),
        (TRAIN, "checkpoint.save_top_k=3", "'best_model_criterion=[[valid/loss, 3, min]]'"),
    ],
)
def test_the_line_to_write_is_that_of_the_stage(told, stage, typed, right):
    error = told(stage, *stage, typed)
    assert f"Write: python run.py {shlex.join(stage)} {right}" in error, error


def test_early_stopping_gets_the_callback(told):
    error = told(TRAIN, *TRAIN, "trainer.early_stopping={patience: 5}")
    written = shlex.split(error.partition("Write: ")[2])
    assert written[: 2 + len(TRAIN)] == ["python", "run.py", *TRAIN]
    assert written[2 + len(TRAIN)] == (
        "trainer.callbacks=[{_target_: lightning.pytorch.callbacks.EarlyStopping, "
        "monitor: valid/loss, patience: 5}]"
    )


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("--stages", "infer", "--nj", "8"), "parallel.n_workers=8"),
        (("--stage", "6", "--inference_nj", "32"), "parallel.n_workers=32"),
        (("--stages", "4-5", "--ngpu", "2"), "trainer.devices=2 trainer.accelerator=gpu"),
        (("--stages", "infer", "--ngpu", "2"), "parallel.n_workers=2 parallel.env=local_gpu"),
        (("--stages", "train", "--batch_size", "4"), "dataloader.train.batch_size=4"),
        (("--stages", "infer", "--batch_size", "4"), "batch_size=4"),
        (("--stages", "train", "--lr", "0.1"), "optimizer.lr=0.1"),
        (("--stages", "train", "--learning-rate=0.1"), "optimizer.lr=0.1"),
        (("--stages", "train", "--asr_config", "conf/a.yaml"), "--training_config conf/a.yaml"),
        (("--stages", "train", "--skip_train", "true"), "--stages train infer"),
        (("--stages", "train", "--seed", "3"), "seed=3"),
        (("--stages", "train", "--trainer.devices", "3"), "trainer.devices=3"),
        (("--stage", "11", "--stop_stage", "13"), "--stages train"),
    ],
)
def test_options_of_shell_recipes_get_the_words_to_type(told, words, right):
    assert right in told(INFER, *words)
