"""Special tokens of every tokenizer, and their ids."""

from collections.abc import Sequence

from espnet3.errors import ConfigError

BLANK = 0
"""Id of what CTC puts where there is no token."""
UNKNOWN = 1
"""Id of what was not in the texts that the tokenizer was trained on."""

BLANK_TOKEN = "<blank>"
UNKNOWN_TOKEN = "<unk>"
END_TOKEN = "<sos/eos>"
"""Before the first and after the last token; its id is the last one."""
SPACE_TOKEN = "<space>"
"""The blank between two words, among characters."""

SPECIAL_TOKENS = (BLANK_TOKEN, UNKNOWN_TOKEN, END_TOKEN)
WORD_START = "\u2581"
"""What SentencePiece puts before the first piece of a word."""


def end_of(n_tokens: int) -> int:
    """Return the id of `<sos/eos>`.

    Example:
        >>> end_of(30)
        29
    """
    return n_tokens - 1


def with_special(tokens: Sequence[str]) -> tuple[str, ...]:
    """Return tokens with the special ones at their places.

    Example:
        >>> with_special(["a", "b"])
        ('<blank>', '<unk>', 'a', 'b', '<sos/eos>')
    """
    return (BLANK_TOKEN, UNKNOWN_TOKEN, *tokens, END_TOKEN)


def check_tokens(tokens: Sequence[str], place: str) -> None:
    """Raise unless the special tokens are at their places, and no token is there twice.

    Args:
        tokens: In the order of their ids.
        place: Where they come from, for the error.

    Raises:
        ConfigError: They are of another form.
    """
    ends = (*tokens[:2], *tokens[-1:])
    if len(tokens) < len(SPECIAL_TOKENS) or ends != SPECIAL_TOKENS:
        raise ConfigError(
            f"The tokens of {place} begin with {', '.join(tokens[:2])} and end with "
            f"{', '.join(tokens[-1:])}, but must begin with {BLANK_TOKEN}, {UNKNOWN_TOKEN} and end "
            f"with {END_TOKEN}. Train the tokenizer again: python run.py --stages train_tokenizer"
        )
    seen: set[str] = set()
    for token in tokens:
        if token in seen:
            raise ConfigError(
                f"The tokens of {place} have {token!r} twice. If it is in the texts, clean them "
                "first: tokenizer.clean_types: [no_tags]; then train the tokenizer again."
            )
        seen.add(token)


def without_special(ids: Sequence[int], n_tokens: int) -> list[int]:
    """Return the ids of what is text: neither blank, nor unknown, nor an end.

    Example:
        >>> without_special([0, 2, 0, 1, 3, 4], n_tokens=5)
        [2, 3]
    """
    special = {BLANK, UNKNOWN, end_of(n_tokens)}
    return [int(id) for id in ids if int(id) not in special]
