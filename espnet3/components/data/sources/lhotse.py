"""A CutSet of lhotse, as JSON Lines.

Example:
    ```yaml
    data_src: lhotse
    data_src_args: {path: data/cuts_test.jsonl.gz, sample_rate: 16000}
    ```
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from espnet3.components.data.audio import Audio
from espnet3.components.data.dataset import Sample
from espnet3.components.data.errors import AudioError
from espnet3.components.data.sources.base import (
    Clip,
    SpeechSource,
    check_extra,
    content_of,
    find_input,
    find_root,
)
from espnet3.errors import RecordError
from espnet3.io.atomic import StrPath
from espnet3.io.scp import check_id

# The others run a command or use the network.
_SAFE_SOURCES = ("file", "memory")


class Dataset(SpeechSource):
    """Cuts in the order of the file, with the text and the speaker of their supervisions.

    The texts of several supervisions are joined by a blank, in the order of their start; a speaker
    is known where there is only one. Lhotse reads the audio, so its mixes and changes of speed or
    volume are applied; a recording that is a command or an address is refused.

    Args:
        path: The manifest, `.jsonl` or `.jsonl.gz`, relative to the current folder or the recipe's.
        sample_rate: The rate that all cuts must have; None for any.
        channel: The channel to take, from 0; `mix` for the mean of all, `only` to refuse files with
            more than one; None keeps all.
        resample: Bring audio of another rate to `sample_rate`, instead of refusing it.
        recipe_dir: The recipe's folder.

    Raises:
        MissingExtraError: lhotse is not installed.
        ConfigError: The manifest, or the folder of relative paths in it, is not found.
        RecordError: A line is wrong; the message has file and line.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        sample_rate: int | None = None,
        channel: int | str | None = None,
        resample: bool = False,
        recipe_dir: StrPath | None = None,
    ) -> None:
        super().__init__(sample_rate=sample_rate, channel=channel, resample=resample)
        check_extra("lhotse", "lhotse")
        self._file = find_input(path, recipe_dir)
        # As text: 100,000 of lhotse's objects take seconds to make, and reading changes them.
        self._lines: list[bytes] = []
        self._ids: dict[str, int] = {}
        self._seconds: list[float | None] = []
        paths: list[str] = []
        for number, line in _read_lines(self._file):
            paths += self._add(line, number)
        self._root = find_root(paths, self._file.parent, recipe_dir)

    def __len__(self) -> int:
        return len(self._lines)

    def _add(self, line: bytes, number: int) -> list[str]:
        """Take a line of the file, and return the paths in it."""
        place = f"{self._file}:{number}"
        try:
            cut = json.loads(line)
            id, recordings = cut["id"], list(_recordings(cut))
            check_id(id)
            # A mixed cut has no duration in the file; lhotse works it out from the tracks.
            seconds = None if "tracks" in cut else float(cut["duration"])
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"{place}: The line {line!r:.80} is no cut ({type(error).__name__}: {error}).",
                fix="Write the file by cuts.to_file(path), with recordings in it.",
            ) from error
        if id in self._ids:
            raise RecordError(
                f"{place}: The id {id!r} is there twice.",
                fix="Make the ids unique: cuts.modify_ids(lambda id: ...)",
            )
        self._ids[id] = number
        self._lines.append(line)
        self._seconds.append(seconds)
        return [path for recording in recordings for path in _paths(recording, place)]

    def _cut(self, position: int) -> Any:
        from lhotse.serialization import deserialize_item

        return deserialize_item(json.loads(self._lines[position]))

    def _fields(self, position: int) -> Sample:
        cut = self._cut(position)
        parts = sorted(cut.supervisions, key=lambda part: part.start)
        texts = [part.text for part in parts if part.text is not None]
        speakers = {part.speaker for part in parts if part.speaker is not None}
        fields: Sample = {"utt_id": cut.id}
        if texts:
            fields["text"] = " ".join(texts)
        if len(speakers) == 1:
            fields["speaker"] = speakers.pop()
        return fields

    def _audio(self, position: int) -> Audio:
        cut = self._cut(position)
        wanted = self._form.sample_rate
        if not self._form.resample and wanted not in (None, cut.sampling_rate):
            raise AudioError(
                f"The cut {cut.id} is sampled at {cut.sampling_rate} Hz, but sample_rate is "
                f"{wanted}.",
                fix="Convert it where the cuts are made: "
                f"cuts.resample({wanted}).save_audios(FOLDER).to_file(path); or take it "
                f"as it is: sample_rate: {cut.sampling_rate}",
            )
        try:
            samples = cut.with_recording_path_prefix(str(self._root)).load_audio()
        except Exception as error:  # lhotse raises what its many readers raise
            # Lines of "extra info" follow, each with the whole cut.
            reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
            raise AudioError(
                f"lhotse cannot read the audio: {reason}.",
                fix=f"Check its files: lhotse validate --read-data {self._file}",
            ) from error
        # lhotse puts the channels first.
        samples = samples[0] if len(samples) == 1 else samples.T
        return self._form.apply(Audio(samples, cut.sampling_rate), f"The cut {cut.id}")

    def _length(self, position: int) -> float:
        return float(self._cut(position).duration)

    def _clip(self, position: int) -> Clip:
        raise NotImplementedError  # lhotse reads the audio

    def _known_durations(self) -> list[float | None]:
        return list(self._seconds)

    def _where(self, position: int) -> str:
        return f"{self._file}:{list(self._ids.values())[position]}"

    def _origin(self) -> Any:
        return content_of(self._file)


def _read_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
            yield from ((n, line) for n, line in enumerate(lines, 1) if not line.isspace())
    # Depending on where an archive is damaged, gzip raises any of these.
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(
            f"{file} cannot be read: {error}.", fix="Write it again: cuts.to_file(path)"
        ) from error


def _recordings(cut: Any) -> Iterator[Any]:
    """Yield the recordings of a cut, also inside of mixed and padded ones."""
    if "tracks" in cut:
        for track in cut["tracks"]:
            yield from _recordings(track["cut"])
    elif cut.get("type") != "PaddingCut":
        yield cut["recording"]


def _paths(recording: Any, place: str) -> Iterator[str]:
    for source in recording["sources"]:
        if source["type"] not in _SAFE_SOURCES:
            raise RecordError(
                f"{place}: The recording {recording['id']!r} comes from a {source['type']}, "
                f"{source['source']!r:.80}, and only files are read here.",
                fix='Write them: cuts.save_audios("wav").to_file(path)',
            )
        if source["type"] == "file":
            yield source["source"]
