"""Take secrets out of what is written to disk or shown: configs, command lines, job scripts, logs.

Nothing here is for a fingerprint to look through: what it hides would not be compared. `mask` is,
which puts a digest in the place of each secret, so that another one is another value.
"""

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
# In speech and language a token is a piece of text nearly everywhere: only these are credentials.
_ISSUERS = re.compile(
    "access|anthropic|api|auth|aws|azure|bearer|bot|ci|clearml|comet|csrf|deploy|discord|face|gcp"
    "|gh|git|github|gitlab|google|hf|hub|huggingface|jwt|kaggle|login|neptune|npm|oauth|openai"
    "|personal|private|pypi|refresh|secret|security|service|session|slack|wandb|zenodo"
)
_TOKENS_OF_TEXT = re.compile(
    "bos|eos|sos|pad|unk|oov|blank|mask|cls|sep|start|end|space|special|lang|language|task|max|num"
    "|min|per|word|sub|subword|char|text|speech|audio|first|last|next|prev|n|id|prefix|suffix|stop"
)
_SECRET_VARIABLE = re.compile(r"(.*_)?KEY|.*(SECRET|PASSWORD).*")

_MAYBE = re.compile("token|key|secret|pass(w|ph)|bearer|credential", re.IGNORECASE)
"""In each name of a secret: most names are none, and there are many."""

_SHELL_WORD = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\]|['"\\])+""", re.DOTALL)
# Bounded, since each part of a long dotted name is tried as the start of a name.
_ASSIGNED_NAME = re.compile(r"""(?<![\w$])([A-Za-z_][\w.-]{0,80})(["']?\s*[=:]\s*)""")
_OPTION_NAME = re.compile(r"(?<!\S)(--?[A-Za-z][\w-]*)(\s+)(?!-)")
_VARIABLE = re.compile(r"\$\{\s*oc\.env\s*:\s*([A-Za-z_]\w*)\s*(,|\})")
# The tokens that services hand out. Only as a word of its own: `exp/hf_conformer/model.pt` is a
# path and `sk-SK_commonvoice_17` a data set, however much they begin like one.
_TOKEN_SHAPE = re.compile(
    r"(?<![\w./-])(?:"
    r"hf_[A-Za-z0-9]{30,}"
    r"|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{22,}|glpat-[\w-]{20,}"
    r"|sk-(?=[\w-]*[A-Za-z0-9]{20})(?=[\w-]*[0-9])(?=[\w-]*[a-z])(?=[\w-]*[A-Z])[\w-]{32,}"
    r"|xox[abeoprs]-[\w-]{20,}|AKIA[0-9A-Z]{16}|AIza[\w-]{35}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"
    r")(?![\w/-])(?!\.\w)"
)
_BEARER = re.compile(
    r"(?<=[Bb]earer )(?=\S*\d)[\w.~+/=-]{12,}"
    r"|(?:(?<=uthorization: Bearer )|(?<=uthorization: Basic ))\S+"
)
_PASSWORD_IN_URL = re.compile(r"(\w://[^/\s:@]*:)([^/\s@]+)(?=@)")
_RANDOM = re.compile(
    r"""["'(]*(?=[\w+/=.~-]*\d)(?=[\w+/=.~-]*[A-Za-z])[\w+/=.~-]{16,}.*""", re.DOTALL
)
"""A value with letters and digits of the length of a key: few words of a text have that shape."""

_SHORTEST_VALUE, _SHORTEST_PART = 4, 8
"""Shorter secrets are not looked for as a value, or inside of one: that would mangle others."""

_LONGEST_VALUE = 8192
"""More than a private key has; so that a long text with many quotes takes no longer than others."""

_SLOW = 20_000
"""Rounds of hashing a secret for a fingerprint, some 5 ms."""


def redact(values: Any) -> Any:
    """Copy dicts, lists and configs into plain containers, with `<redacted>` for each secret.

    A secret is what stands under a key such as `token`, `hf_token`, `password` or `api_key`, what
    comes from an environment variable such as `HF_TOKEN` or `X_KEY`, what a string assigns to such
    a name (`export HF_TOKEN=...`), and each further place that repeats it. Numbers under a name
    that ends in `token` are none. Interpolations in a config stay text, so the result can be loaded
    again.

    Example:
        >>> redact({"hub": {"token": "hf_1"}, "idx_key": "utt_id", "run": "export A_KEY=1; ls"})
        {'hub': {'token': '<redacted>'}, 'idx_key': 'utt_id', 'run': 'export A_KEY=<redacted> ls'}
    """
    plain = _plain(values)
    return _without(plain, _Scrubber(_hidden, secrets_in(plain)))


def redact_command(argv: Sequence[str]) -> list[str]:
    """Return the arguments of a command with `<redacted>` for each secret.

    Example:
        >>> redact_command(["run.py", "--token", "abc", "hub.password=abc", "idx_key=utt_id"])
        ['run.py', '--token', '<redacted>', 'hub.password=<redacted>', 'idx_key=utt_id']
    """
    scrubber = _Scrubber(_hidden)
    shown = list[str]()
    for previous, word in zip(["", *argv], argv, strict=False):
        name, equals, _ = word.partition("=")
        if _is_option(previous) and is_secret(previous) and not word.startswith("-"):
            shown.append(REDACTED)
        elif equals and is_secret(name):
            shown.append(f"{name}={REDACTED}")
        else:
            shown.append(scrubber.scrub(word))
    return shown


def scrub_text(text: str, known: Iterable[str] = ()) -> str:
    """Return free text, such as a traceback or a line of a log, with `<redacted>` for each secret.

    Found are the values of environment variables such as `HF_TOKEN`, passwords in URLs, what
    follows `Bearer`, tokens that services hand out (`hf_...`, `ghp_...`, `sk-...`), what is
    assigned to a secret name (`password=...`, `"token": ...`), and `known`.

    Args:
        text: anything.
        known: further values that are secrets, such as `secrets_in(config)`.

    Example:
        >>> scrub_text("GET https://me:abc@host/x with password=1 failed")
        'GET https://me:<redacted>@host/x with password=<redacted> failed'
    """
    return _Scrubber(_hidden, known).scrub_words(text)


def mask(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat values with a digest for each secret: for a fingerprint that others can read.

    Unlike `redact` it loses nothing: two values that differ do so afterwards.
    """
    scrubber = _Scrubber(digest_secret, secrets_in(dict(flat)))
    return {
        key: digest_secret(str(value)) if _is_hidden_leaf(key, value) else scrubber.scrub(value)
        for key, value in flat.items()
    }


def stands_for(masked: Any, value: Any) -> bool:
    """Tell whether `mask` may have made one of the other, in whatever environment it was called."""
    if not isinstance(masked, str) or masked == value:
        # 1 == True in Python, and a fingerprint tells them apart.
        return bool(masked == value and type(masked) is type(value))
    parts = re.split(r"(secret:[0-9a-f]{8})", masked)
    pattern = "(.+)".join(map(re.escape, parts[::2]))
    found = re.fullmatch(pattern, str(value), re.DOTALL) if len(parts) > 1 else None
    return found is not None and list(map(digest_secret, found.groups())) == parts[1::2]


@functools.lru_cache(maxsize=4096)  # a run asks for the same few hundred names again and again
def is_secret(name: str) -> bool:
    """Tell whether a key, option or environment variable is named like one that holds a secret."""
    if not _MAYBE.search(name):
        return False
    last = re.split(r"[.\]\[]", name.strip("-[]"))[-1]
    if last.isupper() and _SECRET_VARIABLE.fullmatch(last.replace("-", "_")):
        return True
    words = [word.lower() for word in _WORDS.findall(last)]
    return _is_named_secret(words) or _is_token(words, is_variable=last.isupper())


def secrets_in(values: Any) -> set[str]:
    """Return the texts under secret keys of a config, dicts and lists."""
    return set(_named(_plain(values)))


def _is_named_secret(words: Sequence[str]) -> bool:
    pairs = _SECRET_PAIRS.intersection(pairwise(words))
    return bool(_SECRET_WORDS.intersection(words) or pairs)


def _is_token(words: Sequence[str], *, is_variable: bool) -> bool:
    *before, end = words or [""]
    if end not in ("token", "authtoken"):
        return False
    if not before or _ISSUERS.fullmatch(before[-1]):
        return True
    # Whoever exports X_TOKEN means a credential, unless it says otherwise.
    return is_variable and not _TOKENS_OF_TEXT.fullmatch(before[-1])


def _hidden(_secret: str) -> str:
    return REDACTED


@functools.lru_cache(maxsize=256)
def digest_secret(secret: str) -> str:
    """Return a digest that stands for a secret without revealing it.

    A token of a service has more than 100 random bits, so that any digest would do. A password may
    be in a dictionary: the rounds make each guess cost, and 32 bits leave several candidates for
    whoever goes through a large one. To notice that it is another one they are plenty.
    """
    # Undecodable bytes in a variable arrive as surrogates.
    raw = secret.encode("utf-8", "surrogatepass")
    return "secret:" + hashlib.pbkdf2_hmac("sha256", raw, b"espnet3.fingerprint", _SLOW).hex()[:8]


class _Scrubber:
    """Finds secrets inside of text, and puts something else there."""

    def __init__(self, mask: Callable[[str], str], known: Iterable[str] = ()) -> None:
        """Take what to put in place of a secret, and secrets beside those of the environment."""
        self._mask = mask
        self._whole, self._parts = _search(_variables(), frozenset(known))

    def scrub(self, text: Any) -> Any:
        """Return the value without secrets, if it is a text; one that a config can still hold."""
        if not isinstance(text, str):
            return text
        secret_variables = {end for name, end in _VARIABLE.findall(text) if is_secret(name)}
        # What follows a comma is the value to take instead: a secret as well, and hard to delimit.
        if text in self._whole or "," in secret_variables:
            return self._mask(text)
        shown = _VARIABLE.sub(lambda m: self._mask(m[0]) if is_secret(m[1]) else m[0], text)
        shown = self.scrub_words(shown)
        return self._mask(text) if _is_broken(shown, text) else shown

    def scrub_words(self, text: str) -> str:
        """Return the text without the secrets in it."""
        for pattern in (_ASSIGNED_NAME, _OPTION_NAME) if _MAYBE.search(text) else ():
            text = self._hide_values(pattern, text)
        text = _PASSWORD_IN_URL.sub(lambda m: m[1] + self._mask(m[2]), text)
        for shape in (_BEARER, _TOKEN_SHAPE, self._parts):
            text = shape.sub(lambda m: self._mask(m[0]), text) if shape else text
        return text

    def _hide_values(self, pattern: re.Pattern[str], text: str) -> str:
        """Replace the word that follows each secret name."""
        shown, done = "", 0
        for match in pattern.finditer(text):
            # A name inside of a value that is hidden already.
            if match.start() < done or not is_secret(match[1]):
                continue
            value = _SHELL_WORD.match(text, match.end(), match.end() + _LONGEST_VALUE)
            if value and _is_assignment(match, value[0]):
                shown += text[done : match.end()] + self._mask(value[0])
                done = value.end()
        return shown + text[done:]


def _is_assignment(name: re.Match[str], value: str) -> bool:
    """Tell whether a name and what follows it are a setting, and not a sentence or a line of code.

    `password=x`, `{token: x}`, `"token": "x"` are settings; of `the token: x` and `password = x`
    only what has the shape of a key is hidden, because a prompt may say such things.
    """
    if REDACTED in value or re.fullmatch(rf"[\w.]*{re.escape(name[1])}[),]*|None[),]*", value):
        return False  # done already, or `login(token=self.token)`
    between = name[2]
    if not re.search(r"[=:]", between):
        return True  # an option
    if between[0] in "\"'" or between == "=" or _RANDOM.fullmatch(value):
        return True
    if "=" in between:
        return value[0] in "\"'"
    before = name.string[: name.start()].rstrip()
    return before.endswith(("{", ",")) and "{" in before


def _variables() -> frozenset[str]:
    """Return the values of the environment that are secrets."""
    return frozenset(text for name, text in os.environ.items() if _holds_secret(name, text))


@functools.lru_cache(maxsize=16)
def _search(
    variables: frozenset[str], known: frozenset[str]
) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """Return what is a secret when a value equals it, and what finds it inside of a value."""
    whole = frozenset(text for text in variables | known if len(text) >= _SHORTEST_VALUE)
    parts = [text for text in whole if len(text) >= _SHORTEST_PART]
    # The first alternative that fits wins: a short secret must not cut a longer one in half.
    longest_first = sorted(map(re.escape, parts), key=len, reverse=True)
    return whole, re.compile("|".join(longest_first)) if parts else None


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


def _is_option(word: str) -> bool:
    return word.startswith("-") and "=" not in word


def _plain(values: Any) -> Any:
    # By the name of its module, so that plain values do not cost an import of omegaconf.
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
            yield from ((value,) if "${" not in value and _holds_secret(str(key), value) else ())
        else:
            yield from _named(value)


def _children(values: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(values, dict):
        yield from values.items()
    elif isinstance(values, list):
        yield from enumerate(values)


def _without(values: Any, scrubber: _Scrubber) -> Any:
    if isinstance(values, dict):
        return {
            key: REDACTED if _holds_secret(str(key), value) else _without(value, scrubber)
            for key, value in values.items()
        }
    if isinstance(values, list):
        return [_without(value, scrubber) for value in values]
    return scrubber.scrub(values)


def _holds_secret(name: str, value: Any) -> bool:
    """Tell whether there is something to hide under a name.

    A switch such as `use_token: true` is none, a number or a block only where the name leaves no
    doubt, and a path says where a secret is, not what it is.
    """
    if not is_secret(name) or value in (None, "", "???") or isinstance(value, bool):
        return False
    if isinstance(value, int | float | dict):
        return not _may_be_of_text(name)
    return not (isinstance(value, str) and _is_path(value))


def _is_hidden_leaf(key: str, value: Any) -> bool:
    """Tell whether a flat key, or a block that it is in, holds a secret: `secrets.db.user`."""
    if not _MAYBE.search(key):
        return False
    *blocks, _ = named = [part for part in key.split(".") if not part.isdigit()] or [""]
    words = [[word.lower() for word in _WORDS.findall(block)] for block in blocks]
    if any(map(_is_named_secret, words)):
        # The name of the block leaves no doubt, whatever the key in it is called.
        return _holds_secret("password", value)
    return _holds_secret(named[-1], value)


def _may_be_of_text(name: str) -> bool:
    return [word.lower() for word in _WORDS.findall(name)][-1:] == ["token"]


def _is_path(text: str) -> bool:
    """Tell whether a value is the path of something, such as `~/.ssh/id_ed25519`."""
    is_spelled = text.startswith(("/", "~/", "./", "../")) and "\n" not in text
    return is_spelled and os.path.exists(os.path.expanduser(text))
