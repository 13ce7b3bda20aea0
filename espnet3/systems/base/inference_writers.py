"""Files of one shard of an inference run: an SCP file per field, and files of their own."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from espnet3.errors import ConfigError, suggest
from espnet3.io.artifacts import write_artifact
from espnet3.io.names import safe_name
from espnet3.io.scp import RecordError, ScpWriter, read_scp
from espnet3.io.tables import JsonlWriter
from espnet3.shards.layout import committed_name
from espnet3.systems.base.inference_output import (
    Need,
    OutputSettings,
    hypotheses,
    id_text,
    to_texts,
)

logger = logging.getLogger(__name__)

RESULTS = "results.jsonl"
NBEST = ".nbest.jsonl"


class FieldWriters:
    """Writes the fields of records; which fields there are, the first record tells."""

    def __init__(self, shard_dir: Path, settings: OutputSettings) -> None:
        self._folder = shard_dir
        self._settings = settings
        self._scp: dict[str, ScpWriter] | None = None
        self._n_written = 0
        self._told: set[str] = set()
        self._nbest: dict[str, _NBest] = {}
        self._results = JsonlWriter(shard_dir / RESULTS) if settings.results else None
        self._artifacts = {
            name: _artifact_writer(name, options) for name, options in settings.artifacts.items()
        }

    def write(self, record: dict[str, Any]) -> None:
        """Write one item's fields.

        Raises:
            RecordError: if a field is missing, new, or of a type that cannot be written.
        """
        id = self._id(record)
        fields = {name: v for name, v in record.items() if name != self._settings.idx_key}
        if self._scp is None:
            self._check_first(fields)
        lines = {name: self._line(name, value, id) for name, value in fields.items()}
        scp = self._writers(fields, id)
        for name, texts in lines.items():
            # Asked here: most values are texts, and a call for each would be felt.
            may_be_nbest = isinstance(fields[name], list | tuple) or name in self._nbest
            if may_be_nbest and name not in self._artifacts:
                self._keep_nbest(name, id, fields[name])
            scp[name].write(id, texts[0] if texts else "")
        if self._results is not None:
            values = {
                name: texts[0] if name in self._artifacts else fields[name]
                for name, texts in lines.items()
            }
            self._results.write({self._settings.idx_key: id, **values})
        self._n_written += 1

    def _id(self, record: dict[str, Any]) -> str:
        key = self._settings.idx_key
        if key not in record:
            raise ConfigError(
                f"A record has {', '.join(map(repr, record)) or 'nothing'}, but no {key!r}, the id "
                f'of its item. Return it: {{"{key}": dataset[idx]["{key}"], ...}}'
            )
        return id_text(record[key], record[key], self._settings)

    def _line(self, name: str, value: Any, id: str) -> list[str]:
        """Return what the SCP file says of a value: itself, or the path of its file."""
        if name in self._artifacts:
            return [self._write_artifact(name, value, id)]
        return to_texts(value, name, id)

    def _write_artifact(self, name: str, value: Any, id: str) -> str:
        folder = self._folder / safe_name(name)
        folder.mkdir(exist_ok=True)
        path = self._artifacts[name](value, folder / safe_name(id))
        # Relative to the output folder, and under the name that the shard will have.
        return f"{committed_name(self._folder.name)}/{folder.name}/{path.name}"

    def _writers(self, fields: dict[str, Any], id: str) -> dict[str, ScpWriter]:
        if self._scp is None:
            self._scp = {
                name: ScpWriter(self._folder / f"{safe_name(name)}.scp") for name in fields
            }
        if fields.keys() != self._scp.keys():
            odd = sorted(fields.keys() ^ self._scp.keys())[0]
            state = "lacks" if odd in self._scp else "has"
            raise RecordError(
                f"{id!r} {state} the field {odd!r}, unlike the items before it. Return the same "
                f"fields for each item, or set output_keys: [{', '.join(self._scp)}]"
            )
        return self._scp

    def _check_first(self, fields: dict[str, Any]) -> None:
        """Refuse settings that the first item shows to have no effect, rather than at the end."""
        if not fields:
            raise ConfigError(
                f"The output has no field beside the id, {self._settings.idx_key!r}, so that "
                "nothing would be written. Return one, such as: "
                f'{{"{self._settings.hyp_key}": text}}'
            )
        odd = next((name for name in fields if not isinstance(name, str) or not name), None)
        if odd is not None:
            raise ConfigError(
                f"The output has a field called {odd!r}, of type {type(odd).__name__}; its name is "
                "that of a file as well. Use a text, such as: hyp"
            )
        known = ", ".join(map(repr, fields))
        lost = [name for name in self._artifacts if name not in fields]
        if lost:
            raise ConfigError(
                f"{lost[0]!r} of output_artifacts is no field of the output, which has {known}."
                f"{suggest(lost[0], fields)} Let the model or output_fn return it, or delete it "
                "there."
            )
        self._check_keys(fields)
        for need in self._settings.needs:
            if need.field not in fields:
                raise ConfigError(_unmet(need, fields))

    def _check_keys(self, fields: dict[str, Any]) -> None:
        """Refuse a name for the text or its reference if the output has none for it."""
        settings, default = self._settings, OutputSettings()
        known = ", ".join(map(repr, fields))
        if settings.hyp_key != default.hyp_key and settings.hyp_key not in fields:
            raise ConfigError(
                f"hyp_key is {settings.hyp_key!r}, but the fields are {known}. It names the field "
                "of a model that returns a text, and nothing else. Delete it."
            )
        if settings.ref_key != default.ref_key and settings.ref_key not in fields:
            raise ConfigError(
                f"ref_key is {settings.ref_key!r}, but the fields are {known}. It names the field "
                "that the sample's `text` is written to beside the output of a model that returns "
                "a text. Delete it; a field of the sample that has another name is written with: "
                f"output_keys: [{', '.join(fields)}, NAME]"
            )

    def _keep_nbest(self, name: str, id: str, value: Any) -> None:
        """Write the whole of an n-best list, and a line for each item of a field that has some."""
        found, writer = hypotheses(value), self._nbest.get(name)
        if writer is None:
            assert self._scp is not None
            is_new_field = self._n_written == 0
            if found is None or (not found and not is_new_field):
                return
            writer = self._nbest[name] = _NBest(self._folder, name, self._settings.idx_key)
            if not is_new_field:
                self._scp[name].flush()
                writer.take_over(self._folder / f"{safe_name(name)}.scp")
        if found is None and not writer.has_hypotheses:
            self._nbest.pop(name).remove()  # a list of numbers, which was empty so far
            return
        self._write_nbest(writer, name, id, [value] if found is None else found)

    def _write_nbest(self, writer: "_NBest", name: str, id: str, entries: list[Any]) -> None:
        try:
            writer.write(id, entries)
        except RecordError as error:
            if len(entries) != 1:
                raise
            # One text with an object of the model's: the text is what was asked for.
            if name not in self._told:
                logger.warning("Of %s only the text is kept: %s", name, error)
            self._told.add(name)
            writer.write(id, to_texts(entries, name, id))

    def close(self) -> None:
        """Close all files."""
        writers: list[ScpWriter | JsonlWriter | _NBest] = [*(self._scp or {}).values()]
        writers += [*self._nbest.values(), *filter(None, [self._results])]
        for writer in writers:
            writer.close()


def _unmet(need: Need, fields: dict[str, Any]) -> str:
    keys = ", ".join([*fields, need.field])
    return (
        f"{need.reader} needs the field {need.field!r}, but the output has "
        f"{', '.join(map(repr, fields))}, so that {need.field}.scp would not be written."
        f"{suggest(need.field, fields)} If the samples have it, write in the inference config: "
        f"output_keys: [{keys}]; else let the model or output_fn return it, or name a file that "
        f'has it in the metrics config: inputs: {{{need.key}: "data/{{test_set}}/FILE"}}'
    )


class _NBest:
    """The file with the n-best lists of a field."""

    def __init__(self, folder: Path, name: str, idx_key: str) -> None:
        self._path = folder / f"{safe_name(name)}{NBEST}"
        self._name, self._idx_key = name, idx_key
        self._writer = JsonlWriter(self._path)
        self.has_hypotheses = False

    def take_over(self, scp: Path) -> None:
        """Add the items before the first list: each has one text."""
        for id, text in read_scp(scp):
            self.write(id, [text] if text else [])

    def write(self, id: str, entries: list[Any]) -> None:
        """Add the list of an item."""
        self._writer.write({self._idx_key: id, self._name: entries})
        self.has_hypotheses |= bool(entries)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def remove(self) -> None:
        """Leave no file behind: the values are no n-best lists."""
        self._writer.close()
        self._path.unlink()


def _artifact_writer(name: str, options: dict[str, Any]) -> Callable[[Any, Path], Path]:
    """Return a function that writes a value to a path without suffix and returns the path."""
    if not options.get("writer"):
        return lambda value, path: write_artifact(
            value, path, options["type"], sample_rate=options.get("sample_rate"), sync=False
        )
    from espnet3.config.instantiate import instantiate

    target = instantiate(
        {**options["writer"], "_partial_": True}, key=f"output_artifacts.{name}.writer"
    )
    writer = target() if isinstance(target.func, type) else target
    suffix = options.get("suffix", "")

    def write(value: Any, path: Path) -> Path:
        wanted = path.with_name(path.name + suffix)
        written = Path(writer(value=value, output_path=wanted) or wanted)
        if written.parent != wanted.parent or not written.exists():
            raise RecordError(
                f"The writer of output_artifacts.{name} wrote nothing to {wanted}. Write to the "
                "output_path it is given, or return the path beside it that it wrote."
            )
        return written

    return write
