"""Samples without their audio, for those who want no more than the text."""

from typing import Any


def has_fields(dataset: Any) -> bool:
    """Tell whether a dataset has samples without audio; see `Dataset`."""
    own = getattr(dataset, "has_fields", None)
    return bool(own()) if callable(own) else callable(getattr(dataset, "fields", None))


def fields_of(dataset: Any, index: int) -> Any:
    """Return a sample without its audio, or all of it where the dataset cannot leave it out."""
    own = getattr(dataset, "fields", None)
    return own(index) if callable(own) else dataset[index]
