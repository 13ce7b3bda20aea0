import pytest

from espnet3.cli.console import UsageError
from espnet3.cli.recipe_options import Selected, select_stages, stages_of_rank
from espnet3.cli.stage_loop import run_rank
from espnet3.errors import ConfigError, RunInterrupted
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.stages import Invocation, stages_of
from espnet3.systems.base.system import BaseSystem
from espnet3.trainer.launching.process_rank import LAUNCHED, ProcessRank

FIRST = ProcessRank(0, 2, "torchrun")
SECOND = ProcessRank(1, 2, "torchrun")


def selected(*names: str) -> list[Selected]:
    return select_stages(names, stages_of(BaseSystem))


def names(entries) -> list[str]:
    return [entry.stage.name for entry in entries]


@pytest.mark.parametrize("rank", [FIRST, SECOND])
def test_all_ranks_of_a_launcher_run_the_training(rank):
    assert names(stages_of_rank(selected("train"), rank)) == ["train"]


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_a_stage_for_one_process_is_refused_in_many(launcher):
    with pytest.raises(UsageError) as refused:
        stages_of_rank(selected("collect_stats", "train"), ProcessRank(1, 2, launcher))
    assert f"{launcher} started 2 processes, but collect_stats must run in one" in str(
        refused.value
    )
    assert f"Run --stages collect_stats without {launcher}" in str(refused.value)


def test_one_process_of_a_launcher_runs_everything():
    alone = ProcessRank(0, 1, "torchrun")
    assert names(stages_of_rank(selected("collect_stats", "train"), alone)) == [
        "collect_stats", "train",
    ]  # fmt: skip


def test_a_process_that_lightning_started_runs_the_stage_it_was_started_for(monkeypatch):
    monkeypatch.setenv(LAUNCHED, "train")
    rank = ProcessRank(1, 2, "lightning")
    chosen = selected("create_dataset", "train", "average", "infer")
    assert names(stages_of_rank(chosen, rank)) == ["train"]


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
    """Return a function that runs `train` of a system as the second rank."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "training.yaml").write_text("exp_dir: exp/a\n")

    def run(train) -> tuple[int, str, str]:
        system = type("System", (BaseSystem,), {"train": train})
        configs = load_configs({"training": ["training.yaml"]}, recipe_dir=tmp_path)
        invocation = Invocation(["run.py"], ".", tmp_path)
        code = run_rank(system(**vars(configs)), selected("train"), SECOND, invocation)
        log = tmp_path / "exp" / "a" / "train.rank1.log"
        assert sorted(p.name for p in log.parent.iterdir()) == ["train.rank1.log"]  # no records
        return code, capfd.readouterr().err, log.read_text()

    return run


def test_a_rank_that_ends_well_has_a_log_of_its_own(call):
    assert call(lambda self: None)[:2] == (0, "")


def test_a_failure_names_the_rank_and_its_traceback_is_in_its_log(call):
    def train(self):
        raise ConfigError("trainer.devices is 3. Write: devices: 2")

    code, shown, log = call(train)
    assert code == 1
    assert "Rank 1 of 2: Stage train (4) failed: trainer.devices is 3. Write: devices: 2" in shown
    assert "Traceback" not in shown
    assert "Traceback (most recent call last)" in log


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (RunInterrupted(75), 75), (SystemExit(3), 1)]
)
def test_signals_and_exits_become_codes(call, error, code):
    def train(self):
        raise error

    assert call(train)[0] == code
