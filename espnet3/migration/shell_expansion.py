"""Expand values of the shell: split them into words, cut or replace parts of them."""

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Unknown:
    """A value that only a running shell could tell."""

    text: str
    reason: str


Value = str | Unknown
Stored = Value | list[Value]


def split_pieces(value: str | list[Value], is_quoted: bool) -> list[Value | None]:
    """Return where a value is split; None stands for the edge at a blank."""
    if isinstance(value, list):
        return list(value)
    if is_quoted:
        return [value]
    words: list[Value | None] = list(value.split())
    if value[:1].isspace():
        words.insert(0, None)
    if value[-1:].isspace():
        words.append(None)
    return words


def is_joined(expression: str) -> bool:
    """Tell whether a quoted list is one word: `"${sets[*]}"`, `"$*"`."""
    return expression == "*" or expression.endswith("[*]")


def join_list(values: list[Value]) -> Value:
    """Return the elements of an array as one word."""
    reason = next((value.reason for value in values if isinstance(value, Unknown)), "")
    text = " ".join(value.text if isinstance(value, Unknown) else value for value in values)
    return Unknown(text, reason) if reason else text


def word_of(text: str | None, reason: str) -> Value:
    """Return a word of a command, which is unknown if there is a reason for it."""
    return Unknown(text or "", reason) if reason else (text or "")


def change_value(value: str, form: str, text_of: Callable[[str], Value], unread: Unknown) -> Value:
    """Return a value after `${name%x}`, `${name/a/b}` and the like; `unread` for other forms."""
    replaced = re.fullmatch(r"(//?)([^/]*)/?(.*)", form, re.DOTALL)
    if replaced:
        old, new = text_of(replaced[2]), text_of(replaced[3])
        if isinstance(old, str) and isinstance(new, str) and not set(old) & set("*?["):
            return value.replace(old, new, -1 if replaced[1] == "//" else 1)
        return unread
    for mark in ("%%", "%", "##", "#"):
        if form.startswith(mark):
            pattern = text_of(form[len(mark) :])
            if isinstance(pattern, Unknown):
                return unread
            return _cut(value, pattern, from_end=mark[0] == "%", longest=len(mark) == 2)
    return unread


def _cut(value: str, pattern: str, *, from_end: bool, longest: bool) -> str:
    sizes = range(len(value) + 1)
    for size in reversed(sizes) if longest else sizes:
        piece = value[len(value) - size :] if from_end else value[:size]
        if fnmatch.fnmatchcase(piece, pattern):
            return value[: len(value) - size] if from_end else value[size:]
    return value


_CLASSES = {
    "[:upper:]": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "[:lower:]": "abcdefghijklmnopqrstuvwxyz",
    "A-Z": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "a-z": "abcdefghijklmnopqrstuvwxyz",
}  # fmt: skip


def printed_by(commands: list[list[str]]) -> str | None:
    """Return what a pipe of commands prints that depends on nothing but their words.

    These are `echo`, behind which `tr` and `sed s/a/b/` may stand, `basename` and `dirname`; None
    for all others.

    Example:
        >>> printed_by([["echo", "wavlm/21"], ["tr", "/", "_"]])
        'wavlm_21'
    """
    first, *filters = commands
    text = _first_text(first[0], first[1:])
    for words in filters:
        if text is None:
            return None
        text = {"tr": _translated, "sed": _replaced}.get(words[0], _unread)(text, words[1:])
    return text if text is None else text.rstrip("\n")


def _first_text(name: str, words: list[str]) -> str | None:
    if name == "echo":
        words = words[1:] if words[:1] == ["-n"] else words
        return None if words and words[0].startswith("-") else " ".join(words)
    if any(word.startswith("-") or not word.strip("/") for word in words):
        return None
    if name == "basename" and len(words) in (1, 2):
        base = words[0].rstrip("/").rpartition("/")[2]
        ending = words[1] if len(words) == 2 else ""
        return base.removesuffix(ending) if base != ending else base
    if name == "dirname" and len(words) == 1:
        above = words[0].rstrip("/").rpartition("/")
        return above[0].rstrip("/") or above[1] or "."
    return None


def _unread(text: str, words: list[str]) -> str | None:
    return None


def _translated(text: str, words: list[str]) -> str | None:
    sets = [_CLASSES.get(word, word) for word in words]
    if len(sets) == 2 and sets[0] == "-d" and _is_plain(sets[1]):
        return "".join(char for char in text if char not in sets[1])
    if len(sets) != 2 or not all(_is_plain(one) for one in sets):
        return None
    old, new = sets[0], sets[1] + sets[1][-1] * len(sets[0])
    # The last of several equal characters counts.
    return text.translate({ord(char): new[i] for i, char in enumerate(old)})


def _is_plain(characters: str) -> bool:
    """Tell whether `tr` takes each for itself."""
    return bool(characters) and not set(characters) & set("[]\\-")


def _replaced(text: str, words: list[str]) -> str | None:
    words = words[1:] if words[:1] == ["-e"] else words
    found = re.fullmatch(r"s(\W)(.+?)\1(.*?)\1(g?)", words[0]) if len(words) == 1 else None
    if found is None or set(found[2]) & set(r"\.[]*^$&") or set(found[3]) & set("\\&\n"):
        return None
    return text.replace(found[2], found[3], -1 if found[4] else 1)
