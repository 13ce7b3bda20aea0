"""A training that runs as a job of a real Slurm, with a stand-in for the training itself."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.cluster.clients import PAUSE
from tests.helpers.waiting import wait_until

_PATIENCE = 60.0  # seconds; other programs share the machine
RUN_PY = """
import json, os, signal, socket, sys, time
from pathlib import Path

if "--dry-run" in sys.argv:
    sys.exit()
from espnet3.errors import EspnetError
from espnet3.trainer.trainer_block import Wanted
from espnet3.trainer.launching.launch_check import check_slurm, check_torchrun
from espnet3.trainer.launching.process_rank import process_rank

rank = process_rank()
check = check_torchrun if rank.launcher == "torchrun" else check_slurm
n_gpus = len(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
try:
    check(Wanted(n_devices=2, n_nodes=2, on_gpus=True), os.environ)
except EspnetError as error:
    Path(f"refused.{rank.rank}").write_text(str(error))
    sys.exit(1)
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append("USR1"))
signal.signal(signal.SIGTERM, lambda *_: got.append("TERM"))
run = 1 + Path("checkpoint").exists()
facts = {"rank": rank.rank, "n": rank.world_size, "host": socket.gethostname(), "gpus": n_gpus,
         "threads": os.environ["OMP_NUM_THREADS"], "restart": os.environ.get("SLURM_RESTART_COUNT")}
Path(f"run{run}.{rank.rank}.part").write_text(json.dumps(facts))
os.rename(f"run{run}.{rank.rank}.part", f"run{run}.{rank.rank}.json")
if run == 2:
    sys.exit(next(int(word[5:]) for word in sys.argv if word.startswith("code=")))
deadline = time.monotonic() + 60
while not got and time.monotonic() < deadline:
    time.sleep(0.01)
if "TERM" in got:
    time.sleep(0.5)  # the last checkpoint takes its time
    Path(f"last.{rank.rank}").touch()
    sys.exit(143)
if rank.is_first:
    Path("checkpoint").touch()
print(f"rank {rank.rank} ends", flush=True)
sys.exit(75)
"""
TRAINING = "trainer: {accelerator: gpu, devices: 2, num_nodes: 2}\n"
LAUNCH = 'launch: {scheduler: slurm, queue: gpu, time: "00:10:00", cpus_per_task: 2}\n'


class Recipe:
    """A recipe with awkward letters in its path, and its job."""

    def __init__(self, folder: Path, slurm) -> None:
        self.folder = folder
        self.slurm = slurm
        (folder / "conf").mkdir(parents=True)
        (folder / "run.py").write_text(RUN_PY)
        (folder / "conf/training.yaml").write_text(TRAINING)
        (folder / "conf/launch_slurm.yaml").write_text(LAUNCH)

    def launch(self, *words: str) -> str:
        """Submit the training, and return the id of the job."""
        configs = ["conf/training.yaml", "conf/launch_slurm.yaml"]
        command = [sys.executable, "-m", "espnet3.cli", "launch", *configs, *words]
        told = subprocess.run(
            command,
            cwd=self.folder,
            env=self.slurm.env,
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert told.returncode == 0, told.stderr
        return re.search(r"Submitted job (\d+)", told.stdout)[1]

    def wait_for(self, pattern: str, n_files: int) -> list[Path]:
        wait_until(lambda: len(list(self.folder.glob(pattern))) == n_files, _PATIENCE)
        return sorted(self.folder.glob(pattern))

    def facts(self, run: int) -> list[dict]:
        files = self.wait_for(f"run{run}.*.json", 4)
        return [json.loads(path.read_text()) for path in files]

    def tell(self, *words: str) -> str:
        told = subprocess.run(
            words, env=self.slurm.env, capture_output=True, text=True, timeout=30, check=True
        )
        return told.stdout

    def job(self, job_id: str) -> dict[str, str]:
        shown = self.tell("scontrol", "show", "job", job_id)
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def wait_for_end(self, job_id: str) -> dict[str, str]:
        self.slurm.wait_until_empty(_PATIENCE)
        return self.job(job_id)

    @property
    def log(self) -> str:
        (log,) = self.folder.glob("exp/training/launch/*.log")
        return log.read_text()


def shorten_delay(recipe: Recipe, job_id: str) -> None:
    """Let a requeued job wait for two seconds instead of Slurm's two minutes."""
    wait_until(lambda: recipe.job(job_id)["Reason"] == "BeginTime", _PATIENCE, PAUSE)
    # Not now: in the second of the requeue, nodes still refuse the job ("credential revoked").
    recipe.tell("scontrol", "update", f"JobId={job_id}", "StartTime=now+2")
