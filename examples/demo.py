"""Start a job on real audio, kill it half-way, look at what is left, and finish it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean

from synthesis import VOICES

from espnet3.io.scp import read_scp

RUN = Path("demo-run/pitch")
JOB = ["python", os.path.relpath(Path(__file__).with_name("pitch.py"))]
STATUS = ["python", "-m", "espnet3.cli", "status", str(RUN)]


def main() -> None:
    """Tell the story in five steps."""
    shutil.rmtree("demo-run", ignore_errors=True)
    say("1. Speak 300 wav files with espeak-ng, track their pitch on 2 worker processes,")
    say("   and kill the driver half-way.")
    process = start(JOB)
    while process.poll() is None and len(list(RUN.glob("split.??/done"))) < 12:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    say(f"kill -9 {process.pid}: exit code {process.wait()}")

    say("\n2. What is left, from the folder alone.")
    start(STATUS).wait()

    say("\n3. The same command again.")
    start(JOB).wait()
    start(STATUS).wait()
    resumed = (RUN / "pitch.scp").read_bytes()

    say("\n4. Undisturbed, for comparison.")
    shutil.rmtree(RUN)
    start(JOB).wait()
    assert resumed == (RUN / "pitch.scp").read_bytes()

    say("\n5. The killed and resumed run gave the same bytes. Mean pitch by voice:")
    pitch = dict(read_scp(RUN / "pitch.scp"))
    for voice in VOICES:
        hertz = [float(value) for key, value in pitch.items() if key.startswith(f"{voice}-")]
        say(f"   {voice:10s} {mean(hertz):6.1f} Hz in {len(hertz)} files")


def start(command: list[str]) -> subprocess.Popen:
    """Show a command and start it."""
    say("$ " + " ".join(command))
    return subprocess.Popen([sys.executable, *command[1:]])


def say(text: str) -> None:
    """Print at once: what the commands print must come in between."""
    print(text, flush=True)


if __name__ == "__main__":
    main()
