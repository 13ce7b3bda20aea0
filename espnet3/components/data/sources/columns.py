"""Find the audio and text columns of a table."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from espnet3.components.data.dataset import Sample
from espnet3.errors import ConfigError, RecordError, suggest
from espnet3.io.scp import check_id

COMMON: dict[str, tuple[str, ...]] = {
    "utt_id": ("utt_id", "id", "key"),
    "speech": ("audio_filepath", "audio", "wav", "path", "audio_path", "wav_path", "file"),
    "text": ("text", "sentence", "transcript", "transcription"),
    "speaker": ("speaker", "speaker_id", "spk", "client_id"),
    "duration": ("duration",),
}
"""The names that are looked for, in this order; NeMo's among them."""


def find_columns(
    given: Mapping[str, str] | None,
    available: Iterable[str],
    origin: Path,
    common: Mapping[str, tuple[str, ...]] = COMMON,
) -> dict[str, str]:
    """Return the column for each field of a sample, such as `{"speech": "audio_filepath"}`.

    Args:
        given: What the user wrote; may name fields of the user's own.
        available: All columns.
        origin: Where these are, for the errors.
        common: The names to look for.

    Raises:
        ConfigError: `given` is no mapping, one of its columns does not exist, or none holds the
            audio.
    """
    known = list(available)
    if not isinstance(given, Mapping | None):
        raise ConfigError(
            f"columns is {given!r:.80}, but must name the column of each field. "
            "Write: columns: {speech: COLUMN, text: COLUMN}"
        )
    columns = {field: _first(names, known) for field, names in common.items()}
    for field, column in (given or {}).items():
        if column not in known:
            raise ConfigError(
                f"columns.{field} is {column!r}, but {origin} has no such column."
                f"{suggest(str(column), known)} It has: {', '.join(known)}."
            )
        columns[field] = column
    if columns["speech"] is None:
        raise ConfigError(
            f"columns.speech is not set, and {origin} has no column called "
            f"{', '.join(COMMON['speech'])}. It has: {', '.join(known)}. "
            f"Write: columns: {{speech: {known[0] if known else 'COLUMN'}}}"
        )
    return {field: column for field, column in columns.items() if column is not None}


def as_fields(id: str, row: Mapping[str, Any], columns: Mapping[str, str]) -> Sample:
    """Return the sample of a row without its audio: named fields first, the others as they are.

    What is None is left out.
    """
    fields: Sample = {"utt_id": id}
    named = {k: row.get(v) for k, v in columns.items() if k not in ("utt_id", "speech")}
    taken = set(columns.values())
    others = {column: value for column, value in row.items() if column not in taken}
    fields.update({k: v for k, v in {**others, **named}.items() if v is not None})
    return fields


def unique_ids(values: Iterable[Any], where: Callable[[int], str]) -> list[str]:
    """Return the values as ids; whole numbers become text.

    Args:
        values: One per item.
        where: Returns where an item was written down, for the errors.

    Raises:
        RecordError: A value cannot be an id, or is there twice.
    """
    first: dict[str, int] = {}
    for i, value in enumerate(values):
        id: Any = str(value) if isinstance(value, int) else value
        try:
            check_id(id)
        except RecordError as error:
            raise RecordError(f"{where(i)}: {error}") from None
        if first.setdefault(id, i) != i:
            raise RecordError(
                f"{where(i)}: The id {id!r} is that of {where(first[id])} as well. Make the ids "
                "unique where the data is made, or write another column: columns: {utt_id: COLUMN}"
            )
    return list(first)


def _first(names: Collection[str], known: Collection[str]) -> str | None:
    return next((name for name in names if name in known), None)
