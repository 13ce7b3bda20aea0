"""Expand values of the shell: split them into words, cut or replace parts of them."""

import ast
import fnmatch
import re
from collections.abc import Callable, Mapping
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
    if form.startswith("/"):
        return _substituted(value, form[1:], text_of, unread)
    if form in _CASES:
        return _CASES[form](value)
    part = re.fullmatch(r":\s*(-?\d+)(?::(\d+))?", form)
    if part and not form.startswith(":-"):
        begin = int(part[1])
        rest = value[begin:] if -begin <= len(value) else ""
        return rest[: int(part[2])] if part[2] else rest
    for mark in ("%%", "%", "##", "#"):
        if form.startswith(mark):
            pattern = text_of(form[len(mark) :])
            if isinstance(pattern, Unknown):
                return unread
            return _cut(value, pattern, from_end=mark[0] == "%", longest=len(mark) == 2)
    return unread


_CASES: dict[str, Callable[[str], str]] = {
    ",,": str.lower, "^^": str.upper,
    ",": lambda text: text[:1].lower() + text[1:], "^": lambda text: text[:1].upper() + text[1:],
}  # fmt: skip


def _substituted(value: str, form: str, text_of: Callable[[str], Value], unread: Unknown) -> Value:
    """Return a value after `${name/old/new}`; `form` begins behind the first slash."""
    kind = form[:1] if form[:1] in ("/", "#", "%") else ""
    parts = re.fullmatch(r"((?:\\.|[^/\\'\"$])+)(?:/([^'\"]*))?", form[len(kind) :], re.DOTALL)
    if parts is None:
        return unread
    old, new = text_of(parts[1]), text_of(parts[2] or "")
    if isinstance(old, Unknown) or isinstance(new, Unknown) or set(old) & set("*?["):
        return unread
    if kind == "#":
        return new + value[len(old) :] if value.startswith(old) else value
    if kind == "%":
        return value[: len(value) - len(old)] + new if value.endswith(old) else value
    return value.replace(old, new, -1 if kind == "/" else 1)


def computed(text: str, values: Mapping[str, str]) -> int | None:
    """Return the whole number that an expression is, such as `n * 2`; None if it is none."""
    try:
        return _number(ast.parse(text.strip(), mode="eval").body, values)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _number(node: ast.AST, values: Mapping[str, str]) -> int:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if re.fullmatch(r"-?(0|[1-9]\d*)", values.get(name, "")):
            return int(values[name])
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_number(inner, values)
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = _number(left, values), _number(right, values)
            match operator:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():  # the shell rounds towards zero
                    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
                case ast.Mod():
                    return (1 if a >= 0 else -1) * (abs(a) % abs(b))
    raise ValueError(ast.dump(node))


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
    return (
        bool(characters) and not set(characters[:-1]) & {"-"} and not set(characters) & set("[]\\")
    )


def _replaced(text: str, words: list[str]) -> str | None:
    words = words[1:] if words[:1] == ["-e"] else words
    found = re.fullmatch(r"s(\W)(.+?)\1(.*?)\1(g?)", words[0]) if len(words) == 1 else None
    if found is None or set(found[2]) & set(r"\.[]*^$&") or set(found[3]) & set("\\&\n"):
        return None
    return text.replace(found[2], found[3], -1 if found[4] else 1)
