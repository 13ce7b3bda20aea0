"""File names made from the ids of items."""

from __future__ import annotations

import hashlib
import re
import unicodedata

from espnet3.errors import RecordError

MAX_NAME_BYTES = 200
"""Of a safe name in UTF-8; leaves room for an ending below the usual limit of 255."""

_PLAIN = re.compile(r"[A-Za-z0-9_+=@,][A-Za-z0-9_+=@,.~-]*")
_ASCII_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+=@,.~-")
_UNSAFE_FIRST = (".", "-", "~")  # hidden, read as an option, read as a home folder
_LAST_WHOLE = re.compile(r"%[0-9A-F]?\Z")


def safe_name(id: str) -> str:
    """Return a file name for an id: always inside its folder, and never that of another id.

    Words of letters and digits of any script with `_ + = @ , . ~ -` stay as they are; everything
    else, and a dot, dash or tilde at the start, is percent-encoded. A name over `MAX_NAME_BYTES`
    is cut and ends with `%-` and a hash, which no other name holds. Upper and lower case are kept
    apart only where the file system does so. Add an ending with `+`: `Path.with_suffix` would make
    one file of `utt.0` and `utt.1`.

    Raises:
        RecordError: The id is empty or no text.

    Example:
        >>> safe_name("utt.0"), safe_name("../a b")
        ('utt.0', '%2E.%2Fa%20b')
    """
    if not isinstance(id, str) or not id:
        raise RecordError(
            f"Cannot make a file name of the id {id!r}, of type {type(id).__name__}; "
            "it must be text and not empty.",
            fix='Give the item a name, such as id = f"utt{index}".',
        )
    name = id if _PLAIN.fullmatch(id) else _encode(id)
    return name if len(name.encode()) <= MAX_NAME_BYTES else _shorten(name, id)


def _encode(id: str) -> str:
    name = _quote_first(id, "".join(c if _is_safe(c) else _quote(c) for c in id))
    # Some file systems take two spellings of an accented letter for one name. At most one of them
    # is in normal form; it is kept, and the other becomes ASCII.
    if not unicodedata.is_normalized("NFC", name):
        name = _quote_first(id, "".join(c if c in _ASCII_SAFE else _quote(c) for c in id))
    return name


def _is_safe(character: str) -> bool:
    return character in _ASCII_SAFE or (not character.isascii() and character.isprintable())


def _quote_first(id: str, name: str) -> str:
    return _quote(id[0]) + name[1:] if id.startswith(_UNSAFE_FIRST) else name


def _quote(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _shorten(name: str, id: str) -> str:
    digest = hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    ending = f"%-{digest}"
    kept = name.encode()[: MAX_NAME_BYTES - len(ending)].decode("utf-8", "ignore")
    return _LAST_WHOLE.sub("", kept) + ending
