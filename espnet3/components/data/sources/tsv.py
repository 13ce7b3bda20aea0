"""A manifest as tab-separated lines below a header, such as that of Common Voice.

Example:
    ```yaml
    data_src: tsv
    data_src_args: {path: data/test.tsv, columns: {speech: clip, text: sentence}}
    ```
"""

from pathlib import Path

from espnet3.components.data.sources.base import ManifestDataset, Row
from espnet3.errors import RecordError


class Dataset(ManifestDataset):
    """Cells between tabs, without quotes or escapes; an empty cell is an empty text.

    For the rest see `ManifestDataset`.
    """

    def _read_rows(self, file: Path) -> list[Row]:
        header, *lines = [line.split("\t") for line in _read_lines(file)]
        if not all(header) or len(set(header)) < len(header):
            raise RecordError(
                f"{file}:1: The columns {', '.join(map(repr, header))} have a name twice, or an "
                "empty one. The first line names the columns: path<TAB>text"
            )
        for number, cells in enumerate(lines, 2):
            if len(cells) != len(header):
                raise RecordError(
                    f"{file}:{number}: The line has {len(cells)} cells, and the header has "
                    f"{len(header)} ({', '.join(header)}).",
                    fix="Put one tab between two cells, and none inside of one.",
                )
        return [dict(zip(header, cells, strict=True)) for cells in lines]

    def _line_number(self, position: int) -> int:
        # Lines count from 1, and the first one is the header.
        return position + 2


def _read_lines(file: Path) -> list[str]:
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordError(
            f"{file} is not UTF-8 ({error}).",
            fix="Convert it, such as from Latin-1: iconv -f latin1 -t utf-8 OLD > NEW",
        ) from error
    # Not splitlines(), which also splits at characters such as U+2028 inside of a text.
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if not lines[0]:
        raise RecordError(f"{file}:1: There is no header.", fix="Name the columns: path<TAB>text")
    return lines
