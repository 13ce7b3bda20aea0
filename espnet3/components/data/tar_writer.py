"""Write a dataset as tar shards in webdataset's layout."""

import io
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from espnet3.components.data.dataset import Dataset
from espnet3.components.data.shard_writer import (
    AudioEncoding,
    EncodedSample,
    ShardSize,
    ShardWriting,
)
from espnet3.components.data.sources.shard_index import IndexKind
from espnet3.components.data.sources.tar import TAR_INDEX
from espnet3.io.atomic import StrPath, dump_json
from espnet3.io.scp import safe_name


def write_tar_shards(
    dataset: Dataset,
    folder: StrPath,
    *,
    name: str = "shard",
    shard_seconds: float | None = None,
    samples_per_shard: int | None = None,
    audio_format: str = "flac",
    bits: int = 16,
    n_threads: int = 1,
) -> list[Path]:
    """Write shards `NAME-000000.tar`, ..., and their indexes.

    Each shard appears whole. If the call is killed, the same call continues with the shard that it
    was at; once all are there, it returns at once. An item is `KEY.flac`, `KEY.txt` of its `text`,
    `KEY.json` of its other fields, and `KEY.FIELD.npy` of each array.

    Args:
        dataset: Of samples `{utt_id, speech, sample_rate, ...}`.
        folder: Made if need be.
        name: Which the shards' names begin with.
        shard_seconds: A shard is full at so many seconds of audio; 7200 if neither is set.
        samples_per_shard: A shard is full at so many samples.
        audio_format: "flac", "wav", "ogg" or "opus"; the last two lose quality.
        bits: Per sample of flac and wav: 16 or 24.
        n_threads: That read and encode; more than 1 only for a dataset that allows it.

    Returns:
        The shards, in order.

    Raises:
        ConfigError: An argument is wrong.
        DataError: The dataset is empty, or a sample cannot be written.
        StaleRunError: The folder holds shards of that name of other data or settings.

    Example:
        >>> class Builder(DatasetBuilder):  # doctest: +SKIP
        ...     def is_built(self, data_dir):
        ...         return are_shards_written(f"{data_dir}/train")
        ...
        ...     def build(self, data_dir, source):
        ...         write_tar_shards(kaldi.Dataset(source), f"{data_dir}/train")
    """
    size = ShardSize(shard_seconds, samples_per_shard)
    form = AudioEncoding(audio_format, bits)
    return ShardWriting(dataset, folder, _Tar(audio_format), name, size, form, n_threads).run()


@dataclass(frozen=True)
class _Tar:
    audio_format: str
    ending: str = ".tar"

    @contextmanager
    def open(self, file: IO[bytes]) -> Iterator[Callable[[EncodedSample], None]]:
        # Names may be long, and in any alphabet, which the older USTAR does not allow.
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            yield lambda sample: self._add(tar, sample)

    def index(self) -> IndexKind:
        return TAR_INDEX

    def _add(self, tar: tarfile.TarFile, sample: EncodedSample) -> None:
        # A key ends at its first dot; the id is kept in the JSON if it is not the key.
        key = safe_name(sample.utt_id).replace(".", "%2E")
        fields: dict[str, Any] = dict(sample.fields)
        text = fields.pop("text") if _is_plain(fields.get("text")) else None
        if key != sample.utt_id:
            fields["utt_id"] = sample.utt_id
        members = {self.audio_format: sample.audio}
        if text is not None:
            members["txt"] = text.encode()
        if fields:
            members["json"] = dump_json(fields).encode()
        members |= {f"{safe_name(name)}.npy": data for name, data in sample.arrays.items()}
        for ending, data in members.items():
            member = tarfile.TarInfo(f"{key}.{ending}")  # of time 0: the same data, the same file
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all


def _is_plain(text: Any) -> bool:
    """Tell whether it comes back the same from a text file, of which the last line end is cut."""
    if not isinstance(text, str) or text.endswith(("\r", "\n")):
        return False
    return text.encode(errors="ignore").decode() == text  # no lone surrogates
