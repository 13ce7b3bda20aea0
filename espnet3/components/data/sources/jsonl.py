"""A manifest as JSON Lines, such as NeMo's.

Example:
    ```yaml
    data_src: jsonl
    data_src_args: {path: data/test.jsonl, columns: {text: transcript}}
    ```
"""

from pathlib import Path

from espnet3.components.data.sources.base import ManifestDataset, Row
from espnet3.errors import RecordError
from espnet3.io.tables import read_jsonl


class Dataset(ManifestDataset):
    """One JSON object per line; blank lines are skipped. For the rest see `ManifestDataset`."""

    def _read_rows(self, file: Path) -> list[Row]:
        rows = list(read_jsonl(file))
        for i, row in enumerate(rows):
            if not isinstance(row, dict):
                raise RecordError(
                    f"{file}:{_line_number(file, i)}: The line is {row!r:.80}, not an object.",
                    fix='Write one per line: {"audio_filepath": "a.wav", "text": "hello"}',
                )
        return rows

    def _line_number(self, position: int) -> int:
        return _line_number(self._file, position)


def _line_number(file: Path, position: int) -> int:
    with file.open("rb") as lines:
        numbers = [number for number, line in enumerate(lines, 1) if not line.isspace()]
    return numbers[position]
