"""Base class of metrics that read SCP files themselves, as those of the public ESPnet3 do."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from espnet3.errors import ConfigError, IncompleteRunError
from espnet3.io.scp import load_scp, read_scp

_ARTIFACT = re.compile(r"split\.\d+/")


class BaseMetric(ABC):
    """A metric that is called with the paths of SCP files, in place of their values.

    Metrics need no base class: any other callable gets lists, joined by id.

    Example:
        >>> class Longest(BaseMetric):
        ...     ref_key, hyp_key = "ref", "hyp"
        ...
        ...     def __call__(self, data, test_name, output_dir):
        ...         texts = [row["hyp"] for _, row in self.iter_inputs(data, "hyp")]
        ...         return {"longest": max(map(len, texts))}
    """

    @abstractmethod
    def __call__(self, data: Mapping[str, Path], test_name: str, output_dir: Path) -> Any:
        """Return a dict of numbers.

        Args:
            data: The SCP file of each input.
            test_name: Folder of the test set.
            output_dir: Folder of all test sets.
        """

    def iter_inputs(
        self, data: Mapping[str, Path], *keys: str
    ) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield id and values of each utterance, in the order of the first file.

        Files are joined by id, in whatever order they are. The path of an artifact of `infer` is
        made one that can be opened.

        Args:
            data: As in a call.
            *keys: Inputs to read together.

        Raises:
            ConfigError: No key is given, or one that is no input.
            IncompleteRunError: A file lacks an id of another one.
        """
        for key in keys or ("",):
            if key not in data:
                raise ConfigError(
                    f"iter_inputs was asked for {key!r}, but the inputs are {', '.join(data)}.",
                    fix=f"Name one: self.iter_inputs(data, {next(iter(data), 'ref')!r}); or add it "
                    "to inputs of the metrics config.",
                )
        first, *others = keys
        tables = {key: load_scp(data[key]) for key in others}
        n_rows = 0
        for id, value in read_scp(data[first]):
            row = {first: value}
            for key, table in tables.items():
                if id not in table:
                    raise IncompleteRunError(f"{data[key]} lacks {id!r}, which {data[first]} has.")
                row[key] = table[id]
            n_rows += 1
            yield id, {key: _opened(text, data[key]) for key, text in row.items()}
        for key, table in tables.items():
            if len(table) != n_rows:
                raise IncompleteRunError(
                    f"{data[key]} has {len(table)} lines, but {data[first]} {n_rows}."
                )


def _opened(value: str, path: Path) -> str:
    """Return the path of an artifact from here; it is written relative to its list."""
    if _ARTIFACT.match(value) and (file := Path(path).parent / value).is_file():
        return str(file)
    return value
