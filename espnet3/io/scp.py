r"""SCP files: one line `<id> <value>` per record, whatever the value holds.

Ordinary values stand in the file as they are. What would break a line, or get lost at its ends, is
escaped: `\n`, `\r`, `\t`, `\\`, and `\uXXXX` for other control characters, Unicode line ends, lone
surrogates, and white space at either end. Files of Kaldi are read as well. File names for ids are
made here, too.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping

from espnet3.errors import RecordError
from espnet3.io.atomic import StrPath, open_atomic

_TO_ESCAPE = re.compile("[\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|\\A\\s|\\s\\Z")
_ESCAPED = re.compile(r"\\(?:([\\nrt])|u([0-9a-fA-F]{4}))")
_SHORT = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LONG = {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
_BOM = b"\xef\xbb\xbf"  # U+FEFF, which some editors put at the start of a file
_NOT_IN_ID = re.compile("[\\s\x00-\x1f\x7f-\x9f\ufeff\ud800-\udfff]")
_LINE = re.compile(r"([^ \t]+)(?:[ \t]+(.*))?", re.DOTALL)

MAX_NAME_BYTES = 200
"""Of a safe name in UTF-8; leaves room for an ending below the usual limit of 255."""

_PLAIN = re.compile(r"[A-Za-z0-9_+=@,][A-Za-z0-9_+=@,.~-]*")
_ASCII_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+=@,.~-")
_UNSAFE_FIRST = (".", "-", "~")  # hidden, read as an option, read as a home folder
_LAST_WHOLE = re.compile(r"%[0-9A-F]?\Z")  # half of a %XX, where a name was cut


def escape_value(value: str) -> str:
    r"""Return the value in a form that is one line and survives `strip` and `split(maxsplit=1)`.

    Example:
        >>> print(escape_value("two\nlines "))
        two\nlines\u0020
    """
    # Twice as fast as a regex search, and true of nearly all values.
    if value.isprintable() and "\\" not in value and value.strip() == value:
        return value
    return _TO_ESCAPE.sub(_escape_match, value)


def unescape_value(text: str) -> str:
    r"""Undo `escape_value`; what is no escape of ours, such as `\q`, stays as it is."""
    return _ESCAPED.sub(_unescape_match, text) if "\\" in text else text


def check_id(id: str) -> None:
    """Raise a `RecordError` unless the id can be the first word of a line."""
    if not isinstance(id, str):
        raise RecordError(
            f"The id {id!r} is of type {type(id).__name__}.", fix="Pass text: str(id)."
        )
    if not id:
        raise RecordError(
            "The id is empty.", fix='Give the item a name, such as id = f"utt{index}".'
        )
    bad = _NOT_IN_ID.search(id)
    if bad is not None:
        raise RecordError(
            f"The id {id!r} holds {bad.group()!r} at position {bad.start()}; an id is one word, "
            'without white space or control characters. Fix: id = "_".join(id.split()).'
        )


class ScpWriter:
    """Write records to a file, opened at once and buffered; refuses an id that was written before.

    A crash leaves what was flushed so far. Use `write_scp` for a file that appears whole.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/hyp.scp"
        >>> with ScpWriter(path) as writer:
        ...     writer.write("utt1", "hello world")
        >>> load_scp(path)
        {'utt1': 'hello world'}
    """

    def __init__(self, path: StrPath) -> None:
        """Create or empty the file; its folder must exist."""
        self._path = path
        self._seen: set[str] = set()
        self._file = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115

    def write(self, id: str, value: str) -> None:
        """Add a record, or raise a `RecordError` and leave the file as it is."""
        self._file.write(_format_record(id, value, self._seen, self._path))

    def flush(self) -> None:
        """Let others read what was written so far."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> ScpWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_scp(path: StrPath, records: Iterable[tuple[str, str]] | Mapping[str, str]) -> None:
    """Write all records atomically; after an error the old file is as it was."""
    pairs = records.items() if isinstance(records, Mapping) else records
    seen: set[str] = set()
    with open_atomic(path) as file:
        for id, value in pairs:
            file.write(_format_record(id, value, seen, path))


def read_scp(path: StrPath) -> Iterator[tuple[str, str]]:
    r"""Yield the records in order of the file, line by line.

    A line with an id only has an empty value. Tabs or several blanks may follow the id, blanks and
    a carriage return may end the line, the last newline may be missing. Only "\n" ends a line.

    Raises:
        RecordError: A line has no id or an impossible one, is not UTF-8, or repeats an id. The
            message starts with `<path>:<line>`.
    """
    seen: set[str] = set()
    # Bytes, so that only "\n" ends a line, and a line that is not UTF-8 can be named by its number.
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                id, value = _parse_line(raw.removeprefix(_BOM) if number == 1 else raw, path)
                _add_once(id, seen)
            except RecordError as error:
                raise RecordError(f"{os.fspath(path)}:{number}: {error}") from error.__cause__
            yield id, value


def load_scp(path: StrPath) -> dict[str, str]:
    """Return all records of a file, in its order; raises what `read_scp` raises."""
    return dict(read_scp(path))


def _format_record(id: str, value: str, seen: set[str], path: StrPath) -> str:
    try:
        check_id(id)
        if not isinstance(value, str):
            raise RecordError(
                f"The value of {id!r} is {value!r:.80}, of type {type(value).__name__}.",
                fix="Pass text: str(value).",
            )
        _add_once(id, seen)
    except RecordError as error:
        raise RecordError(f"{os.fspath(path)}: {error}") from None
    return f"{id} {escape_value(value)}\n"


def _add_once(id: str, seen: set[str]) -> None:
    if id in seen:
        raise RecordError(
            f"The id {id!r} is there twice.",
            fix='Make ids unique where the data is made, such as id = f"{speaker}-{id}".',
        )
    seen.add(id)


def _parse_line(raw: bytes, path: StrPath) -> tuple[str, str]:
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(
            f"The line is not UTF-8 ({error}).",
            fix="Convert the file, such as from Latin-1: "
            f"iconv -f latin1 -t utf-8 {_shell_word(path)} > new.scp",
        ) from error
    match = _LINE.fullmatch(line.rstrip(" \t\r\n"))
    if match is None:
        raise RecordError(
            f"The line {line!r:.80} has no id at its start.",
            fix="Write `<id> <value>`, or delete it; "
            f"this deletes all blank lines: sed -i '/^[[:space:]]*$/d' {_shell_word(path)}",
        )
    id, text = match.groups(default="")
    check_id(id)
    return id, unescape_value(text)


def _shell_word(path: StrPath) -> str:
    from shlex import quote  # only after a failure

    return quote(os.fspath(path))


def _escape_match(match: re.Match[str]) -> str:
    character = match.group()
    return _SHORT.get(character) or f"\\u{ord(character):04x}"


def _unescape_match(match: re.Match[str]) -> str:
    letter, code = match.groups()
    return _LONG[letter] if letter else chr(int(code, 16))


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
    # Ids made of file names that are not UTF-8 hold lone surrogates, which plain UTF-8 refuses.
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _shorten(name: str, id: str) -> str:
    digest = hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    ending = f"%-{digest}"
    # The cut may go through a character, whose first bytes "ignore" drops.
    kept = name.encode()[: MAX_NAME_BYTES - len(ending)].decode("utf-8", "ignore")
    return _LAST_WHOLE.sub("", kept) + ending
