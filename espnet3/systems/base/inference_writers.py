"""Files of one shard of an inference run: an SCP file per field, and files of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from espnet3.errors import ConfigError, suggest
from espnet3.io.artifacts import write_artifact
from espnet3.io.names import safe_name
from espnet3.io.scp import RecordError, ScpWriter
from espnet3.io.tables import JsonlWriter
from espnet3.shards.layout import committed_name
from espnet3.systems.base.inference_output import OutputSettings, is_nbest, to_texts

RESULTS = "results.jsonl"
NBEST = ".nbest.jsonl"


class FieldWriters:
    """Writes the fields of records; which fields there are, the first record tells."""

    def __init__(self, shard_dir: Path, settings: OutputSettings) -> None:
        self._folder = shard_dir
        self._settings = settings
        self._scp: dict[str, ScpWriter] | None = None
        self._nbest: dict[str, JsonlWriter] = {}
        self._results = JsonlWriter(shard_dir / RESULTS) if settings.results else None
        self._artifacts = {
            name: _artifact_writer(name, options) for name, options in settings.artifacts.items()
        }

    def write(self, record: dict[str, Any]) -> None:
        """Write one item's fields.

        Raises:
            RecordError: if a field is missing, new, or of a type that cannot be written.
        """
        id = record[self._settings.idx_key]
        fields = {name: v for name, v in record.items() if name != self._settings.idx_key}
        lines = {name: self._line(name, value, id) for name, value in fields.items()}
        scp = self._writers(fields, id)
        for name, texts in lines.items():
            scp[name].write(id, texts[0] if texts else "")
            if is_nbest(fields[name]) and name not in self._artifacts:
                self._write_nbest(name, id, fields[name])
        if self._results is not None:
            values = {
                name: texts[0] if name in self._artifacts else fields[name]
                for name, texts in lines.items()
            }
            self._results.write({self._settings.idx_key: id, **values})

    def _line(self, name: str, value: Any, id: str) -> list[str]:
        """Return what the SCP file says of a value: itself, or the path of its file."""
        if name in self._artifacts:
            return [self._write_artifact(name, value, id)]
        if isinstance(value, list | tuple) and not value:
            return [""]  # an n-best list without a hypothesis
        return to_texts(value, name, id)

    def _write_artifact(self, name: str, value: Any, id: str) -> str:
        folder = self._folder / safe_name(name)
        folder.mkdir(exist_ok=True)
        path = self._artifacts[name](value, folder / safe_name(id))
        # Relative to the output folder, and under the name that the shard will have.
        return f"{committed_name(self._folder.name)}/{folder.name}/{path.name}"

    def _writers(self, fields: dict[str, Any], id: str) -> dict[str, ScpWriter]:
        if self._scp is None:
            self._check_artifacts(fields)
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

    def _check_artifacts(self, fields: dict[str, Any]) -> None:
        lost = [name for name in self._artifacts if name not in fields]
        if lost:
            raise ConfigError(
                f"{lost[0]!r} of output_artifacts is no field of the output, which has "
                f"{', '.join(map(repr, fields))}.{suggest(lost[0], fields)} Let the model or "
                "output_fn return it, or delete it there."
            )

    def _write_nbest(self, name: str, id: str, values: Any) -> None:
        if name not in self._nbest:
            self._nbest[name] = JsonlWriter(self._folder / f"{safe_name(name)}{NBEST}")
        self._nbest[name].write({self._settings.idx_key: id, name: values})

    def close(self) -> None:
        """Close all files."""
        writers: list[ScpWriter | JsonlWriter] = [*(self._scp or {}).values()]
        writers += [*self._nbest.values(), *filter(None, [self._results])]
        for writer in writers:
            writer.close()


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
