"""The runner of inference: a model over a dataset, into an SCP file per field."""

import inspect
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from espnet3.components.data.errors import DataError
from espnet3.errors import ConfigError, IncompleteRunError
from espnet3.io.tables import read_jsonl
from espnet3.parallel.base_runner import BaseRunner, one_or_more
from espnet3.parallel.hooks import overridden
from espnet3.parallel.tasks import RunSpec
from espnet3.shards.join import join_files
from espnet3.shards.merge import require_done
from espnet3.shards.merge_scp import join_scp
from espnet3.shards.status import read_failures
from espnet3.systems.base.inference_output import (
    Need,
    OutputSettings,
    complete,
    inputs_of,
    load_function,
    to_record,
    to_records,
)
from espnet3.systems.base.inference_writers import NBEST, RESULTS, FieldWriters
from espnet3.systems.base.sampling_rates import check_call

logger = logging.getLogger(__name__)
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
        hooks = replace(spec.hooks, complete=complete) if completes else spec.hooks
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
    def open_writers(shard_dir: Path, outputs: OutputSettings) -> FieldWriters:  # type: ignore[override]
        """Open the files of a shard."""
        return FieldWriters(shard_dir, outputs)

    @staticmethod
    def write_record(writers: FieldWriters, result: dict[str, Any]) -> None:  # type: ignore[override]
        """Write the fields of one item."""
        writers.write(result)

    @staticmethod
    def close_writers(writers: FieldWriters) -> None:  # type: ignore[override]
        """Close the files of a shard."""
        writers.close()

    def merge(self, shard_dirs: Sequence[Path]) -> dict[str, Path]:
        """Join the files of the shards and return the path of each field's, by field.

        Raises:
            IncompleteRunError: if no item has a result, or some lack a field that others have.
        """
        assert self.output_dir is not None
        _check_fields(shard_dirs)
        merged: dict[str, Path] = {}
        for name in _files(shard_dirs, ".scp"):
            merged[name.removesuffix(".scp")] = self.output_dir / name
            join_scp(shard_dirs, name, self.output_dir / name)
        for name in _files(shard_dirs, NBEST):
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
        if len(batch) != 1 or outputs.idx_key not in batch[0]:
            raise
        raise type(error)(f"{batch[0][outputs.idx_key]}: {error}") from error


def _input_key_of(provider: Any) -> Any:
    config: Any = getattr(provider, "config", None)
    return (config.get("input_key") if hasattr(config, "get") else None) or "speech"


def _check_fields(shard_dirs: Sequence[Path]) -> None:
    written = [folder for folder in shard_dirs if require_done(folder).n_written]
    if shard_dirs and not written:
        root = shard_dirs[0].parent
        raise IncompleteRunError(
            f"All items in {root} failed, so there are no results. The first error: "
            f"{read_failures(root)[0]['error']} To see all: espnet3 failed {quote(str(root))}"
        )
    known = _files(written, ".scp")
    for folder in written:
        lacking = [name for name in known if not (folder / name).exists()]
        if lacking:
            shared = [n for n in known if all((each / n).exists() for each in written)]
            fields = ", ".join(name.removesuffix(".scp") for name in shared)
            raise IncompleteRunError(
                f"Only some items have the field {lacking[0].removesuffix('.scp')!r}; those in "
                f"{folder} have none. Return the same fields for each item, or set output_keys: "
                f"[{fields}]"
            )


def _is_in_all(shard_dirs: Sequence[Path], name: str) -> bool:
    """Tell whether a file of n-best lists can be joined; say so if not."""
    holding = [folder / name for folder in shard_dirs if (folder / name).exists()]
    lacking = [folder for folder in shard_dirs if not (folder / name).exists()]
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
    names = {path.name for folder in shard_dirs for path in folder.glob(f"*{suffix}")}
    return sorted(names)
