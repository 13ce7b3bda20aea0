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
