"""Tar shards in webdataset's layout, read by position without unpacking them.

Example:
    ```yaml
    data_src: tar
    data_src_args:
      path: data/train-{000..009}.tar
    ```
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from espnet3.components.data.dataset import Sample
from espnet3.components.data.errors import DataError
from espnet3.components.data.sources.column_file import Array, ColumnFile
from espnet3.components.data.sources.paths import StrPath
from espnet3.components.data.sources.shard_ids import id_at
from espnet3.components.data.sources.shard_index import IndexKind
from espnet3.components.data.sources.shard_paths import Paths, find_shards
from espnet3.components.data.sources.shard_source import OpenShard, ShardSource
from espnet3.components.data.sources.tar_fields import find_fields
from espnet3.components.data.sources.tar_index import index_tar

TAR_INDEX = IndexKind("tar-1", index_tar)
"""How tar files are indexed."""


class Dataset(ShardSource):
    """Items in the order of the shards: members `KEY.flac`, `KEY.txt`, `KEY.json` are one item.

    The first time, each shard is indexed: `SHARD.tar.index` beside it, or in the user's cache
    where the folder cannot be written. The keys of the JSON are fields of the sample, and members
    such as `KEY.noisy.flac` or `KEY.tokens.npy` the fields `noisy` and `tokens`; what is of
    another kind is left out unless `columns` names it. The id is the key, or `utt_id` in the JSON.

    Args:
        path: A shard, a folder, a pattern such as `train-{000..009}.tar`, or a list of these,
            relative to the current folder or the recipe's.
        columns: The ending, or the key of the JSON, of a field, such as
            `{speech: noisy.flac, text: transcript}`.
        sample_rate: The rate that all audio must have; None for any.
        channel: The channel to take, from 0; `mix` for the mean of all, `only` to refuse files with
            more than one; None keeps all.
        resample: Bring audio of another rate to `sample_rate`, instead of refusing it.
        index_dir: The folder for the indexes.
        recipe_dir: The recipe's folder.

    Raises:
        ConfigError: A shard or column is not found.
        DataError: A shard is damaged, or an item has no audio.
        RecordError: An id or the JSON of an item is wrong.
    """

    def __init__(
        self,
        path: Paths,
        *,
        columns: Mapping[str, str] | None = None,
        sample_rate: int | None = None,
        channel: int | str | None = None,
        resample: bool = False,
        index_dir: StrPath | None = None,
        recipe_dir: StrPath | None = None,
    ) -> None:
        shards = find_shards(path, ".tar", recipe_dir)
        files = replace(TAR_INDEX, index_dir=index_dir).files_of(shards)
        super().__init__(shards, files, sample_rate=sample_rate, channel=channel, resample=resample)
        facts = [ColumnFile(file).facts for file in files]
        endings = list(dict.fromkeys(e for each in facts for e in each["endings"]))
        keys = list(dict.fromkeys(k for each in facts for k in each["json_keys"]))
        origin = str(shards[0]) if len(shards) == 1 else f"the corpus of {shards[0]}"
        self._fields = find_fields(columns, endings, keys, origin)
        self._settings["fields"] = self._fields
        self._survey()

    def _seconds_of(self, index: ColumnFile, shard: Path) -> Array:
        endings = index.facts["endings"]
        wanted = [i for i, ending in enumerate(endings) if ending in self._fields.speech]
        members = np.flatnonzero(np.isin(index["ending"], wanted))
        items = np.searchsorted(index["member_ends"], members, side="right")
        counts = np.bincount(items, minlength=len(index["member_ends"]))
        bad = np.flatnonzero(counts != 1)
        if bad.size:
            raise self._without_audio(index, shard, int(bad[0]), int(bad.size))
        seconds: Array = index["seconds"][members]
        return seconds

    def _without_audio(self, index: ColumnFile, shard: Path, row: int, n_bad: int) -> DataError:
        endings = ", ".join(index.facts["endings"][e] for e in index["ending"][_span(index, row)])
        speech = " or ".join(self._fields.speech)
        item = id_at(index, row)
        return DataError(
            f"{shard}: {n_bad} of {len(index['member_ends'])} items have not exactly one member "
            f"that ends with {speech}. The first is {item!r}, with {endings}. Leave such items out "
            f"where the shard is made, or say which is the audio: columns: {{speech: ENDING}}"
        )

    def _read(self, shard: OpenShard, row: int) -> tuple[Sample, Any]:
        index = shard.index
        span = _span(index, row)
        names = [index.facts["endings"][code] for code in index["ending"][span]]
        places = {
            name: (start, start + size)
            for name, start, size in zip(
                names, index["offset"][span].tolist(), index["size"][span].tolist(), strict=True
            )
            if self._fields.needs(name)
        }
        first = min(start for start, _ in places.values())
        # One read for the whole item: its members are next to each other.
        data = shard.file.read(first, max(end for _, end in places.values()) - first)
        members = {name: data[start - first : end - first] for name, (start, end) in places.items()}
        audio = next(members.pop(name) for name in self._fields.speech if name in members)
        id = shard.id_at(row)
        where = f"{shard.file.path}, item {id!r}"
        return self._fields.decode(id, members, where), audio


def _span(index: ColumnFile, row: int) -> slice:
    ends = index["member_ends"]
    return slice(int(ends[row - 1]) if row else 0, int(ends[row]))
