"""The runner of inference: a model over a dataset, into an SCP file per field."""

import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from espnet3.components.data.dataset import fields_of
from espnet3.components.data.errors import DataError
from espnet3.errors import ConfigError, IncompleteRunError, RecordError, suggest
from espnet3.io.artifacts import write_artifact
from espnet3.io.atomic import JsonlWriter
from espnet3.io.scp import ScpWriter, read_scp, safe_name
from espnet3.io.tables import read_jsonl
from espnet3.parallel.base_runner import BaseRunner, one_or_more
from espnet3.parallel.tasks import RunSpec, overridden
from espnet3.shards.layout import committed_path, run_folder_of
from espnet3.shards.merge import join_files, join_scp, read_failures, require_done
from espnet3.systems.base.datasets import check_call
from espnet3.systems.base.inference_output import (
    Need,
    OutputSettings,
    complete,
    hypotheses,
    id_text,
    inputs_of,
    load_function,
    to_record,
    to_records,
    to_texts,
)

logger = logging.getLogger(__name__)
RESULTS = "results.jsonl"
NBEST = ".nbest.jsonl"
_PARQUET = "results.parquet"


class InferenceRunner(BaseRunner):
    """Calls the model with the inputs of each item and keeps what it returns.

    The model is called as `model(**inputs, **params)`, with the `params` of the provider; in
    batches, each input is a list and a list of outputs comes back, or a dict of lists. A text
    becomes the field `hyp`, beside it `ref` where the sample has a `text`; a dict becomes one field
    per key; a list of texts is an n-best list, a list of numbers one value. On disk, each field is
    `<field>.scp` in dataset order; n-best lists are in `<field>.nbest.jsonl` as well.

    A subclass may have a `forward(idx, dataset, model, ...)` of its own. What that returns is taken
    as what a model returns: the id, the reference and fields of `output_keys` that it leaves out
    come from the sample.

    Args:
        provider: builds `dataset` and `model`; see `InferenceProvider`.
        idx_key: the field with the id of a sample.
        hyp_key: the field for the output of a model that returns text.
        ref_key: the field for the sample's `text`.
        input_key: fields of the sample that the model is called with, by name; `input_key` of the
            provider's config, or else `speech`, if None.
        output_fn: dotted path of a function that gets `data=, model_output=, idx=` (lists in
            batches) and returns the fields (a list of them) instead.
        output_keys: field, or fields, to keep; one that the output lacks is taken from the sample.
        output_artifacts: fields to write as files, such as `{"wav": {"type": "wav", "sample_rate":
            16000}}` or `{"plot": {"writer": {"_target_": ...}}}`; the SCP file has their paths,
            relative to `output_dir`.
        results: `jsonl` or `parquet` for a file with all fields as well.
        **settings: those of `BaseRunner`.
    """

    needs: tuple[Need, ...] = ()
    """Fields that a later stage reads: the run stops at its first item if that lacks one."""

    def __init__(  # noqa: PLR0913 - the settings that users know by these names
        self,
        provider: Any,
        *,
        idx_key: str = "utt_id",
        hyp_key: str = "hyp",
        ref_key: str = "ref",
        input_key: str | Sequence[str] | None = None,
        output_fn: str | None = None,
        output_keys: str | Sequence[str] | None = None,
        output_artifacts: Mapping[str, Mapping[str, Any]] | None = None,
        results: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(provider, **settings)
        keys = input_key or _input_key_of(provider)
        self.outputs = OutputSettings(
            input_keys=one_or_more(keys),
            idx_key=idx_key,
            hyp_key=hyp_key,
            ref_key=ref_key,
            output_fn=output_fn,
            output_keys=None if output_keys is None else one_or_more(output_keys),
            artifacts={name: dict(options) for name, options in (output_artifacts or {}).items()},
            results=results,
        )

    def apply_outputs(self, given: Mapping[str, Any]) -> None:
        """Set what the `__init__` of a subclass did not pass on to ours.

        Args:
            given: those of our arguments that a config sets.

        Raises:
            ConfigError: the subclass itself sets one of them, to something else.
        """
        default, asked = OutputSettings(), inspect.signature(type(self).__init__).parameters
        for name, value in given.items():
            field = {"input_key": "input_keys", "output_artifacts": "artifacts"}.get(name, name)
            # What the subclass takes itself it has got already.
            if name in asked or not hasattr(default, field):
                continue
            wanted: Any = one_or_more(value) if field in ("input_keys", "output_keys") else value
            own = getattr(self.outputs, field)
            if own == getattr(default, field):
                self.outputs = replace(self.outputs, **{field: wanted})
            elif own != wanted:
                raise ConfigError(
                    key=name,
                    value=value,
                    problem=f"but {type(self).__name__} sets {own!r} itself",
                    fix=f"Delete {name} in the config, or let the class take it: def "
                    f"__init__(self, provider, {name}=None, **settings): ...",
                )

    def settings(self) -> dict[str, Any]:
        """Hand the names of the fields to the hooks."""
        return {"outputs": self.outputs}

    def _spec(self) -> RunSpec:
        spec = super()._spec()
        own = overridden(type(self), InferenceRunner, ["forward"])
        writers = overridden(type(self), InferenceRunner, ["open_writers", "write_record"])
        # In memory, and by writers of one's own, results are taken as they are.
        completes = bool(own) and not writers and self.output_dir is not None
        outputs = self.outputs.of_run(self.needs, is_completed=completes)
        hooks = replace(spec.hooks, complete=complete if completes else None, identify=identify)
        return replace(spec, settings={**spec.settings, "outputs": outputs}, hooks=hooks)

    # Hooks get what their signatures name, which no type checker can know.
    @staticmethod
    def forward(  # type: ignore[override]
        idx: Any, dataset: Any, model: Any, outputs: OutputSettings, **params: Any
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Run the model on one item, or on a list of items."""
        convert = load_function(outputs.output_fn) if outputs.output_fn else None
        if not isinstance(idx, list):
            data = dataset[idx]
            with no_gradients(), naming([data], outputs):
                named = inputs_of(data, outputs)
                # Speech of another rate gives a wrong text, and no error.
                check_call(data, model, outputs.input_keys)
                output = model(**named, **params)
            if convert:
                output = convert(data=data, model_output=output, idx=idx)
            return to_record(output, data, idx, outputs, selects=not outputs.is_completed)
        batch = [dataset[i] for i in idx]
        inputs = [inputs_of(data, outputs) for data in batch]
        for data in batch:
            with naming([data], outputs):
                check_call(data, model, outputs.input_keys)
        lists = {key: [values[key] for values in inputs] for key in outputs.input_keys}
        with no_gradients(), naming(batch, outputs):
            output = model(**lists, **params)
        if convert:
            output = convert(data=batch, model_output=output, idx=idx)
        return to_records(output, batch, idx, outputs)

    @staticmethod
    def open_writers(shard_dir: Path, outputs: OutputSettings) -> "FieldWriters":  # type: ignore[override]
        """Open the files of a shard."""
        return FieldWriters(shard_dir, outputs)

    @staticmethod
    def write_record(writers: "FieldWriters", result: dict[str, Any]) -> None:  # type: ignore[override]
        """Write the fields of one item."""
        writers.write(result)

    @staticmethod
    def close_writers(writers: "FieldWriters") -> None:  # type: ignore[override]
        """Close the files of a shard."""
        writers.close()

    def merge(self, shard_dirs: Sequence[Path]) -> dict[str, Path]:
        """Join the files of the shards and return the path of each field's, by field.

        Raises:
            IncompleteRunError: if no item has a result, or some lack a field that others have.
        """
        assert self.output_dir is not None
        # Before anything is joined: a refusal must not leave some merged files behind.
        _check_fields(shard_dirs)
        merged: dict[str, Path] = {}
        for name in _files(shard_dirs, ".scp"):
            merged[name.removesuffix(".scp")] = self.output_dir / name
            join_scp(shard_dirs, name, self.output_dir / name)
        for name in _files(shard_dirs, NBEST):
            # n-best lists are an extra, so their absence must not stop the merge of the best texts.
            if _is_in_all(shard_dirs, name):
                join_files(shard_dirs, name, self.output_dir / name)
        if self.outputs.results:
            merged["results"] = self.output_dir / RESULTS
            join_files(shard_dirs, RESULTS, self.output_dir / RESULTS)
        if self.outputs.results == "parquet":
            from espnet3.io.tables import jsonl_to_parquet

            merged["results"] = self.output_dir / _PARQUET
            jsonl_to_parquet(self.output_dir / RESULTS, self.output_dir / _PARQUET)
        return merged


def identify(idx: Any, dataset: Any, outputs: OutputSettings) -> str:
    """Return the id of a sample; its audio, which may be what failed, is read only if need be."""
    known = getattr(dataset, "utt_id", None)
    if callable(known):
        return str(known(idx))
    with suppress(Exception):  # a transform may need the audio
        return str(fields_of(dataset, idx)[outputs.idx_key])
    return str(dataset[idx][outputs.idx_key])


def no_gradients() -> AbstractContextManager[Any]:
    """Keep torch, where it is used, from remembering what a backward pass would need."""
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.no_grad()


@contextmanager
def naming(batch: Sequence[Mapping[str, Any]], outputs: OutputSettings) -> Iterator[None]:
    """Let what a model says about its one input begin with the id: the model does not know it."""
    try:
        yield
    except DataError as error:
        # In a batch it is not known which item the model means.
        if len(batch) != 1 or outputs.idx_key not in batch[0]:
            raise
        raise type(error)(f"{batch[0][outputs.idx_key]}: {error}") from error


def _input_key_of(provider: Any) -> Any:
    config: Any = getattr(provider, "config", None)
    return (config.get("input_key") if hasattr(config, "get") else None) or "speech"


def _check_fields(shard_dirs: Sequence[Path]) -> None:
    # A shard whose items all failed has no files, and does not count as lacking a field.
    written = [folder for folder in shard_dirs if require_done(folder).n_written]
    if shard_dirs and not written:
        root = run_folder_of(shard_dirs[0])
        raise IncompleteRunError(
            f"All items in {root} failed, so there are no results. The first error: "
            f"{read_failures(root)[0]['error']} To see all: espnet3 failed {quote(str(root))}"
        )
    known = _files(written, ".scp")
    for folder in written:
        lacking = [name for name in known if name not in require_done(folder).files]
        if lacking:
            shared = [n for n in known if all(n in require_done(each).files for each in written)]
            fields = ", ".join(name.removesuffix(".scp") for name in shared)
            raise IncompleteRunError(
                f"Only some items have the field {lacking[0].removesuffix('.scp')!r}; those in "
                f"{folder} have none. Return the same fields for each item, or set output_keys: "
                f"[{fields}]"
            )


def _is_in_all(shard_dirs: Sequence[Path], name: str) -> bool:
    """Tell whether a file of n-best lists can be joined; say so if not."""
    holding = [folder / name for folder in shard_dirs if name in require_done(folder).files]
    lacking = [folder for folder in shard_dirs if name not in require_done(folder).files]
    if not any(require_done(folder).n_written for folder in lacking):
        return True
    field = name.removesuffix(NBEST)
    if any(record[field] for path in holding for record in read_jsonl(path)):
        logger.warning(
            "%s is not joined: only some items have n-best lists, those in %s have none. They "
            "stay in the folders of the shards; return a list for each item to have one file",
            name, lacking[0],
        )  # fmt: skip
    return False  # else they are lists of numbers, some of them empty


def _files(shard_dirs: Sequence[Path], suffix: str) -> list[str]:
    # As `done` lists them: a merge has read that, and asks no folder again.
    names = {name for folder in shard_dirs for name in require_done(folder).files}
    return sorted(name for name in names if name.endswith(suffix))


class FieldWriters:
    """Writes the fields of records; the first record decides which fields there are."""

    def __init__(self, shard_dir: Path, settings: OutputSettings) -> None:
        self._folder, self._committed = shard_dir, committed_path(shard_dir)
        self._settings = settings
        self._scp: dict[str, ScpWriter] | None = None
        self._n_written = 0
        self._warned_of: set[str] = set()
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
        return f"{self._committed}/{folder.name}/{path.name}"

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
                "that of a file as well.",
                fix="Use a text, such as: hyp",
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
                "of a model that returns a text, and nothing else.",
                fix="Delete it.",
            )
        if settings.ref_key != default.ref_key and settings.ref_key not in fields:
            raise ConfigError(
                f"ref_key is {settings.ref_key!r}, but the fields are {known}. It names the field "
                "that the sample's `text` is written to beside the output of a model that returns "
                "a text.",
                fix="Delete it; a field of the sample that has another name is written with: "
                f"output_keys: [{', '.join(fields)}, NAME]",
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
                # The items so far are read back from the file, which must not be in a buffer.
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
            if name not in self._warned_of:
                logger.warning("Of %s only the text is kept: %s", name, error)
            self._warned_of.add(name)
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
    # A class is built once and then called for each value; a function is called directly.
    writer = target() if isinstance(target.func, type) else target
    suffix = options.get("suffix", "")

    def write(value: Any, path: Path) -> Path:
        wanted = path.with_name(path.name + suffix)
        written = Path(writer(value=value, output_path=wanted) or wanted)
        # A writer may choose another name, but only what is in the shard's folder is committed.
        if written.parent != wanted.parent or not written.exists():
            raise RecordError(
                f"The writer of output_artifacts.{name} wrote nothing to {wanted}.",
                fix="Write to the "
                "output_path it is given, or return the path beside it that it wrote.",
            )
        return written

    return write
