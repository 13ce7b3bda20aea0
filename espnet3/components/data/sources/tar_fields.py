"""Which members of a tar's items become which fields of a sample, and how they are decoded."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from espnet3.components.data.audio import read_audio
from espnet3.components.data.dataset import Sample
from espnet3.components.data.errors import DataError
from espnet3.components.data.sources.columns import COMMON
from espnet3.components.data.sources.tar_index import AUDIO, kind_of, load_json
from espnet3.errors import ConfigError, suggest

_DECODED = ("txt", "json", "npy", *AUDIO)
_PLAIN_NAMES = {"txt": "text", **dict.fromkeys(AUDIO, "speech")}


@dataclass(frozen=True)
class TarFields:
    """Where the fields of a sample come from, for all items of a corpus.

    Args:
        speech: The endings of which an item must have one.
        members: The field of each ending that is decoded, but for those of `speech` and the JSON.
        keys: The field of each key in the JSON that has another name in the sample.
    """

    speech: tuple[str, ...]
    members: Mapping[str, str]
    keys: Mapping[str, str]

    def needs(self, ending: str) -> bool:
        """Tell whether members with this ending are read at all."""
        return ending in self.speech or ending in self.members or ending == "json"

    def decode(self, id: str, members: Mapping[str, bytes], where: str) -> Sample:
        """Return the fields of an item, without its speech."""
        fields: Sample = {}
        if "json" in members and "json" not in self.members:
            values = load_json(members["json"], where)
            fields = {self.keys.get(k, k): v for k, v in values.items() if v is not None}
        for ending, data in members.items():
            if ending in self.members:
                fields[self.members[ending]] = _decode(ending, data, where)
        return {"utt_id": id, **{k: v for k, v in fields.items() if k != "utt_id"}}


def find_fields(
    given: Mapping[str, str] | None, endings: list[str], json_keys: list[str], origin: str
) -> TarFields:
    """Find out which member or which key of the JSON is the speech, the text, the speaker.

    A member `noisy.flac` is the field `noisy`; `flac`, or any other kind of audio, is `speech`,
    `txt` is `text`, and the keys of `json` are fields of their own.

    Args:
        given: What the user wrote: the ending, or the key of the JSON, of a field.
        endings: All that there are.
        json_keys: Likewise.
        origin: Where these are, for the errors.

    Raises:
        ConfigError: One that was given does not exist, or it is not clear which is the speech.
    """
    chosen = _check_given(given, endings, json_keys, origin)
    speech = _find_speech(chosen, endings, origin)
    members = {e: _field_of(e) for e in endings if kind_of(e) in _DECODED and e != "json"}
    members |= {source: field for field, source in chosen.items() if source in endings}
    keys = {source: field for field, source in chosen.items() if source not in endings}
    taken = {*members.values(), *keys.values()}
    for field in ("text", "speaker"):
        found = next((name for name in COMMON[field] if name in json_keys), None)
        if found and field not in taken:
            keys[found] = field
    return TarFields(speech, {e: f for e, f in members.items() if e not in speech}, keys)


def _check_given(
    given: Mapping[str, str] | None, endings: list[str], json_keys: list[str], origin: str
) -> dict[str, str]:
    if not isinstance(given, Mapping | None):
        raise ConfigError(
            f"columns is {given!r:.80}, but must name the member of each field. "
            "Write: columns: {speech: flac, text: txt}"
        )
    for field, source in (given or {}).items():
        if field == "utt_id":
            raise ConfigError(
                f"columns.utt_id is {source!r}, but the id is the name of the members before its "
                "first dot, or `utt_id` in their JSON. Remove columns.utt_id."
            )
        known = [*endings, *json_keys]
        if source not in known:
            raise ConfigError(
                f"columns.{field} is {source!r}, but {origin} has neither members with that ending "
                f"nor that key in their JSON.{suggest(str(source), known)} "
                f"It has: {', '.join(known)}."
            )
    return dict(given or {})


def _find_speech(chosen: Mapping[str, str], endings: list[str], origin: str) -> tuple[str, ...]:
    if "speech" in chosen:
        if kind_of(chosen["speech"]) in AUDIO:
            return (chosen["speech"],)
        problem = f"columns.speech is {chosen['speech']!r}, which is no audio"
    else:
        problem = "columns.speech is not set"
        audio = [e for e in endings if kind_of(e) in AUDIO]
        plain = tuple(e for e in audio if e in AUDIO)
        if plain or len(audio) == 1:
            return plain or tuple(audio)
    audio = [e for e in endings if kind_of(e) in AUDIO]
    raise ConfigError(
        f"{problem}, and {origin} has members that end with {', '.join(endings) or 'nothing'}. "
        f"Write the one to take: columns: {{speech: {audio[0] if audio else 'flac'}}}"
    )


def _field_of(ending: str) -> str:
    name, _, kind = ending.rpartition(".")
    return name or _PLAIN_NAMES.get(kind, kind)


def _decode(ending: str, data: bytes, where: str) -> Any:
    kind = kind_of(ending)
    try:
        if kind == "txt":
            return data.decode().rstrip("\r\n")
        if kind == "json":
            return json.loads(data)
        if kind == "npy":
            return np.load(io.BytesIO(data), allow_pickle=False)
        return read_audio(data).samples if kind in AUDIO else data
    except ValueError as error:  # AudioError is one
        raise DataError(f"{where}, {ending}: {error} Make it again.") from error
