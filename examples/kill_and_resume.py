"""Recognise real speech with a real model: kill the job half-way, finish it, and score it."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from espnet3.io.scp import load_scp

ROOT = Path(__file__).parents[1]
RECIPE = Path("demo-run/asr")
RESULTS = RECIPE / "exp/inference/two_cities"
CONFIGS = ["--config", "conf/inference.yaml", "conf/metrics.yaml"]
# One utterance at a time, so that there is something to interrupt.
ONE_BY_ONE = ["batch_size=null", "batch_seconds=null", "parallel.n_workers=2"]
INFER = ["--stages", "create_dataset", "infer", *CONFIGS, *ONE_BY_ONE]


def start(*command: str) -> subprocess.Popen:
    """Show a command and start it in the folder of the recipe."""
    say("$ " + " ".join(["python", *command]))
    return subprocess.Popen([sys.executable, *command], cwd=RECIPE)


def finish(*command: str) -> None:
    """Run a command to its end, which must be a good one."""
    if start(*command).wait() != 0:
        raise SystemExit(1)


def say(text: str) -> None:
    """Print at once: what the commands print must come in between."""
    print(text, flush=True)


shutil.rmtree("demo-run/asr", ignore_errors=True)
ignore = shutil.ignore_patterns("data", "exp", "__pycache__")
shutil.copytree(ROOT / "egs3/moonshine/asr", RECIPE, ignore=ignore)
say("1. Decode speech with Moonshine tiny on 2 worker processes, and kill the driver half-way.")
process = start("run.py", *INFER)
while process.poll() is None and len(list(RESULTS.glob("split.*/done"))) < 4:
    time.sleep(0.005)
process.send_signal(signal.SIGKILL)
say(f"kill -9 {process.pid}: exit code {process.wait()}")

say("\n2. What is left, from the folder alone.")
finish("-m", "espnet3.cli", "status", str(RESULTS.relative_to(RECIPE)))

say("\n3. The same command again, and the score.")
finish("run.py", *INFER)
finish("run.py", "--stages", "measure", *CONFIGS)
for id, hypothesis in list(load_scp(RESULTS / "hyp.scp").items())[:3]:
    say(f"   said:  {load_scp(RESULTS / 'ref.scp')[id]}\n   heard: {hypothesis}")
