"""Take secrets out of what is written to disk or shown: configs, command lines, job scripts."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

REDACTED = "<redacted>"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORDS = {"secret", "secrets", "password", "passwords", "passwd", "passphrase", "apikey"} | {
    "bearer",
    "credential",
    "credentials",
}
_SECRET_PAIRS = {(word, "key") for word in ("api", "access", "private", "secret", "auth")}
_TOKENS_OF_TEXT = re.compile(
    "bos|eos|sos|pad|unk|oov|blank|mask|cls|sep|start|end|space|special|lang|language|task|max|num"
)
_SECRET_VARIABLE = re.compile(r"(.*_)?(TOKEN|KEY)|.*(SECRET|PASSWORD).*")

_SHELL_WORD = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\]|['"\\])+""", re.DOTALL)
_ASSIGNED_NAME = re.compile(r"""(?<![\w$])([A-Za-z_][\w.-]*)["']?\s*[=:]\s*""")
_OPTION_NAME = re.compile(r"(?<!\S)(--?[A-Za-z][\w-]*)\s+(?!-)")
_VARIABLE = re.compile(r"\$\{\s*oc\.env\s*:\s*([A-Za-z_]\w*)\s*(,|\})")
# Tokens of Hugging Face, GitHub and OpenAI, and what follows Bearer in a header.
_TOKEN_SHAPE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,})|(?<=Bearer )\S+"
)
_PASSWORD_IN_URL = re.compile(r"(\w://[^/\s:@]*:)[^/\s@]+(?=@)")

_SHORTEST_VALUE, _SHORTEST_PART = 4, 8
"""Shorter secrets are not looked for as a value, or inside of one: that would mangle others."""


def redact(values: Any) -> Any:
    """Copy dicts, lists and configs into plain containers, with `<redacted>` for each secret.

    A secret is what stands under a key such as `token`, `hf_token`, `password` or `api_key`, what
    comes from an environment variable such as `HF_TOKEN` or `X_KEY`, what a string assigns to such
    a name (`export HF_TOKEN=...`), and each further place that repeats it. Interpolations in a
    config stay text, so the result can be loaded again.

    Example:
        >>> redact({"hub": {"token": "hf_1"}, "idx_key": "utt_id", "run": "export A_KEY=1; ls"})
        {'hub': {'token': '<redacted>'}, 'idx_key': 'utt_id', 'run': 'export A_KEY=<redacted> ls'}
    """
    plain = _plain(values)
    return _without(plain, _Known.of(plain))


def redact_command(argv: Sequence[str]) -> list[str]:
    """Return the arguments of a command with `<redacted>` for each secret.

    Example:
        >>> redact_command(["run.py", "--token", "abc", "hub.password=abc", "idx_key=utt_id"])
        ['run.py', '--token', '<redacted>', 'hub.password=<redacted>', 'idx_key=utt_id']
    """
    known = _Known.of(None)
    shown = list[str]()
    for previous, word in zip(["", *argv], argv, strict=False):
        name, equals, _ = word.partition("=")
        if _is_option(previous) and is_secret(previous) and not word.startswith("-"):
            shown.append(REDACTED)
        elif equals and is_secret(name):
            shown.append(f"{name}={REDACTED}")
        else:
            shown.append(known.scrub(word))
    return shown


def is_secret(name: str) -> bool:
    """Tell whether a key, option or environment variable is named like one that holds a secret."""
    last = re.split(r"[.\]\[]", name.strip("-[]"))[-1]
    if last.isupper() and _SECRET_VARIABLE.fullmatch(last.replace("-", "_")):
        return True
    words = [word.lower() for word in _WORDS.findall(last)]
    if _SECRET_WORDS.intersection(words) or _SECRET_PAIRS.intersection(pairwise(words)):
        return True
    *before, end = words or [""]
    return end in ("token", "authtoken") and not _TOKENS_OF_TEXT.fullmatch("".join(before[-1:]))


class _Known:
    """Secrets by their value, to find them where no name gives them away."""

    def __init__(self, whole: set[str], parts: set[str]) -> None:
        """Take what is a secret when a value equals it, and what is one inside of a value too."""
        self._whole = whole
        longest_first = sorted(map(re.escape, parts), key=len, reverse=True)
        self._parts = re.compile("|".join(longest_first)) if parts else None

    @classmethod
    def of(cls, values: Any) -> "_Known":
        """Collect the environment's secrets, and those that keys of plain containers name."""
        found = {text for name, text in os.environ.items() if is_secret(name)} | set(_named(values))
        whole = {text for text in found if len(text) >= _SHORTEST_VALUE}
        return cls(whole, {text for text in whole if len(text) >= _SHORTEST_PART})

    def scrub(self, text: str) -> str:
        """Return the text without secrets."""
        secret_variables = {end for name, end in _VARIABLE.findall(text) if is_secret(name)}
        # What follows a comma is the value to take instead: a secret as well, and hard to delimit.
        if text in self._whole or "," in secret_variables:
            return REDACTED
        shown = _VARIABLE.sub(lambda match: REDACTED if is_secret(match[1]) else match[0], text)
        for pattern in (_ASSIGNED_NAME, _OPTION_NAME):
            shown = _hide_values(pattern, shown)
        shown = _PASSWORD_IN_URL.sub(rf"\1{REDACTED}", shown)
        shown = _TOKEN_SHAPE.sub(REDACTED, shown)
        shown = self._parts.sub(REDACTED, shown) if self._parts else shown
        return REDACTED if _is_broken(shown, text) else shown


def _is_broken(shown: str, text: str) -> bool:
    """Tell whether a part of an interpolation is gone, so that a config could not hold it."""
    return shown != text and "${" in shown and _can_be_loaded(text) and not _can_be_loaded(shown)


def _can_be_loaded(text: str) -> bool:
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError

    try:
        OmegaConf.create({"text": text})
    except GrammarParseError:
        return False
    return True


def _hide_values(name: re.Pattern[str], text: str) -> str:
    """Replace the word that follows each secret name."""
    shown, done = "", 0
    for match in name.finditer(text):
        value = _SHELL_WORD.match(text, match.end())
        if match.start() >= done and value and is_secret(match[1]):
            shown += text[done : match.end()] + REDACTED
            done = value.end()
    return shown + text[done:]


def _is_option(word: str) -> bool:
    return word.startswith("-") and "=" not in word


def _plain(values: Any) -> Any:
    if type(values).__module__.startswith("omegaconf."):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(values)
    if isinstance(values, Mapping):
        return {key: _plain(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_plain(value) for value in values]
    return values


def _named(values: Any) -> Iterator[str]:
    """Yield the strings under secret keys, but no interpolations: they hold no secret."""
    for key, value in _children(values):
        if isinstance(value, str) and is_secret(str(key)):
            yield from (() if "${" in value else (value,))
        else:
            yield from _named(value)


def _children(values: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(values, dict):
        yield from values.items()
    elif isinstance(values, list):
        yield from enumerate(values)


def _without(values: Any, known: _Known) -> Any:
    if isinstance(values, dict):
        return {
            key: REDACTED if is_secret(str(key)) and _is_filled(value) else _without(value, known)
            for key, value in values.items()
        }
    if isinstance(values, list):
        return [_without(value, known) for value in values]
    return known.scrub(values) if isinstance(values, str) else values


def _is_filled(value: Any) -> bool:
    """Tell whether there is something to hide: a switch such as `use_token: true` is no secret."""
    return value not in (None, "", "???") and not isinstance(value, bool)
