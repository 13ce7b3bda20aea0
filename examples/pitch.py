"""Track the pitch of wav files on two worker processes; kill it when you like, and run it again."""

from pathlib import Path

import soundfile
from synthesis import make_corpus
from tracker import median_pitch

from espnet3.io.scp import ScpWriter
from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel
from espnet3.shards.merge import join_scp

WAV_DIR = Path("demo-run/wav")
N_FILES = 300


class WavProvider(EnvironmentProvider):
    """Gives each worker the list of files; a model would be built here too."""

    def build_env_local(self):
        return {"paths": sorted(Path(self.config["wav_dir"]).glob("*.wav"))}

    def build_worker_setup_fn(self):
        return self.build_env_local


class PitchRunner(BaseRunner):
    """Writes `pitch.scp`: a line per file, with its median pitch."""

    @staticmethod
    def forward(idx, paths):
        audio, rate = soundfile.read(paths[idx], dtype="float64")
        return paths[idx].stem, f"{median_pitch(audio, rate):.1f}"

    @staticmethod
    def open_writers(shard_dir):
        return ScpWriter(shard_dir / "pitch.scp")

    @staticmethod
    def write_record(writers, result):
        writers.write(*result)

    @staticmethod
    def close_writers(writers):
        writers.close()

    def merge(self, shard_dirs):
        return join_scp(shard_dirs, "pitch.scp", self.output_dir / "pitch.scp")


if len(list(WAV_DIR.glob("*.wav"))) < N_FILES:
    make_corpus(WAV_DIR, N_FILES)
set_parallel({"env": "local", "n_workers": 2})
runner = PitchRunner(WavProvider({"wav_dir": str(WAV_DIR)}), output_dir="demo-run/pitch")
print(f"{runner(range(N_FILES))} files in demo-run/pitch/pitch.scp")
