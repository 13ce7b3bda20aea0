"""Moonshine's tokenizer: from token ids to text."""

from collections.abc import Iterable
from pathlib import Path

START = 1
END = 2
N_SPECIAL = 3  # <unk>, <s>, </s>


class Tokenizer:
    """The pieces of a `tokenizer.bin`; single bytes are among them, so any text is possible.

    Args:
        path: The file: per piece its length, as one byte below 128 or two (low 7 bits first), then
            its UTF-8 bytes, with U+2581 for a blank.
    """

    def __init__(self, path: Path) -> None:
        self.pieces = _read_pieces(path.read_bytes())

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of the tokens, without the special ones."""
        text = b"".join(self.pieces[token] for token in tokens if token >= N_SPECIAL)
        return text.decode("utf-8", errors="replace").replace("\u2581", " ").strip()


def _read_pieces(data: bytes) -> list[bytes]:
    pieces, position = [], 0
    while position < len(data):
        length = data[position]
        position += 1
        if length >= 128:
            length += 128 * (data[position] - 1)
            position += 1
        pieces.append(data[position : position + length])
        position += length
    return pieces
