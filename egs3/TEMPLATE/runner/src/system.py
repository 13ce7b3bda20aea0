"""The stages of this recipe."""

import logging
from pathlib import Path
from typing import Any

from espnet3.io.scp import load_scp
from espnet3.parallel import use_parallel
from espnet3.parallel.clusters.registry import check_resources
from espnet3.parallel.parallel import as_parallel_config
from espnet3.systems.base.run_description import describe_job_script
from espnet3.systems.base.stages import Skipped, stage
from espnet3.systems.base.system import BaseSystem
from src.audio import find_audio, identify_audio, make_example
from src.runner import LoudnessRunner, MeterProvider

logger = logging.getLogger(__name__)


class LoudnessSystem(BaseSystem):
    """Measures audio files: `@stage` makes a method a stage of that name."""

    infer = measure = None  # type: ignore[assignment]  # so that `--stages all` leaves them out

    def create_dataset(self) -> Any:
        """Make a few files to try the recipe with."""
        folder = Path(self.config_for("create_dataset").config.data_dir) / "example"
        return Skipped(f"{folder} is there") if folder.exists() else make_example(folder)

    @stage(config="inference", after="create_dataset", help="Measure the loudness of audio files")
    def loudness(self) -> None:
        """Run the meter over all files, on the workers of the `parallel` block."""
        loaded = self.config_for("loudness")
        config = loaded.resolved()
        folder = Path(config.audio_dir)
        files = find_audio(folder)
        runner = LoudnessRunner(
            MeterProvider({"audio_dir": config.audio_dir, "meter": config.meter}),
            output_dir=self.exp_dir / "results",
            depends_on={"audio": identify_audio(folder, files)},
            **config.runner,
        )
        with use_parallel(loaded):
            sizes = [(folder / file).stat().st_size for file in files]
            merged = runner(files, costs=sizes)  # the largest first
        _tell(merged["loudness"])

    def check_loudness(self) -> None:
        """Find what is wrong with the `parallel` block before any stage runs."""
        check_resources(as_parallel_config(self.config_for("loudness")))

    def describe_loudness(self) -> list[str]:
        """Return what `--dry-run` tells."""
        loaded = self.config_for("loudness")
        folder = Path(loaded.config.audio_dir)
        told = f"{len(find_audio(folder))} files of {folder} -> {self.exp_dir / 'results'}"
        return [told, *describe_job_script(as_parallel_config(loaded))]


def _tell(path: Path) -> None:
    levels = {id: float(level) for id, level in load_scp(path).items()}
    if levels:
        mean = sum(levels.values()) / len(levels)
        logger.info("%s: %d files, %.1f dB on average", path, len(levels), mean)
