"""The `dataset` block: find what each `data_src` names, and build the datasets of each split."""

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import PositiveFloat

from espnet3.components.data.dataset import (
    CalledWithId,
    CombinedDataset,
    Dataset,
    Subset,
    Transform,
    TransformedDataset,
)
from espnet3.components.data.errors import DataError, create_command
from espnet3.config.advice import raise_together
from espnet3.config.instantiate import build_function, find_function
from espnet3.config.resolve import resolved
from espnet3.config.schema import FrozenConfig, validate
from espnet3.config.sources import names_places
from espnet3.config.targets import (
    find_bad_argument,
    install_hint,
    signature_of,
    signature_without_import,
    unknown_arguments,
)
from espnet3.errors import ConfigError, EspnetError, suggest

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

SOURCES = {
    name: f"espnet3.components.data.sources.{name}"
    for name in (
        "kaldi",
        "jsonl",
        "tsv",
        "huggingface",
        "lhotse",
        "folder",
        "tar",
        "parquet",
        "text",
    )
}
"""The modules of our own sources by their short names."""


@dataclass(frozen=True)
class DataSource:
    """A `data_src` and all that is needed to find it and to say where it was set."""

    data_src: str | None = None
    recipe_dir: str | os.PathLike[str] | None = None
    """Where `dataset/` is, and from where up `egs3/` is looked for; None for the current folder."""
    key: str = "data_src"

    def load_module(self) -> ModuleType:
        """Import the module; a second call returns the same one.

        Raises:
            ConfigError: There is no such module. An error inside the module is passed on.
        """
        if not self.data_src:
            return self._load_own()
        if self.data_src in SOURCES:
            return importlib.import_module(SOURCES[self.data_src])
        if "/" in self.data_src:
            return self._load_tag(*self.data_src.split("/"))
        return self._load_dotted(self.data_src)

    def load(self, export: str = "Dataset") -> Any:
        """Return what the module calls `Dataset` or `DatasetBuilder`.

        Raises:
            ConfigError: There is no such module, or it has no such name.
        """
        module = self.load_module()
        found = getattr(module, export, None)
        if callable(found):
            return found
        has = [name for name in vars(module) if name[:1].isupper()]
        raise self.error(
            f"its module {module.__file__} has no class {export!r}.{suggest(export, has)} "
            f"Define it there, or import it under that name: from .dataset import X as {export}"
        )

    def check_module(self) -> None:
        """Import the module, and raise whatever it raises as a `ConfigError`."""
        try:
            self.load_module()
        except EspnetError:
            raise
        except Exception as error:
            problem = (
                f"cannot be imported: {type(error).__name__}: {error}{install_hint(error)}. Mend "
                f"it, then see: python -c 'import {self._module_name}'"
            )
            if self.data_src:
                raise self.error(f"its module {problem}") from error
            raise ConfigError(f"{self._own_file} {problem}") from error

    def check_arguments(self, dataset: Any, arguments: Mapping[str, Any]) -> None:
        """Raise a `ConfigError` if the class does not take arguments of these names."""
        signature = signature_of(dataset)
        bad = find_bad_argument(signature, arguments) if signature else None
        if bad is None:
            return
        key = f"{self.key.removesuffix('data_src')}data_src_args"
        raise ConfigError(
            f"{key} does not fit {dataset.__qualname__} of {self.name}: {bad.reason}",
            key=f"{key}.{bad.name}" if bad.name else key,
            fix=lambda loaded: bad.hint_at(key, arguments, loaded),
        )

    @property
    def name(self) -> str:
        """Name of the source in messages."""
        return self.data_src or str(self._own_file.parent)

    @property
    def has_own_module(self) -> bool:
        """Tell whether the recipe has a `dataset/` of its own."""
        return self._own_file.is_file()

    def error(self, problem: str) -> ConfigError:
        """Return an error that starts with key and value."""
        value = f"is {self.data_src!r}" if self.data_src else "is not set"
        return ConfigError(f"{self.key} {value}", key=self.key, problem=f"but {problem}")

    @property
    def _module_name(self) -> str:
        """Import name of the module in the folder of the recipe."""
        if not self.data_src:
            return "dataset"
        is_tag = "/" in self.data_src
        return f"egs3.{self.data_src.replace('/', '.')}.dataset" if is_tag else self.data_src

    @property
    def _folder(self) -> Path:
        return Path(self.recipe_dir or ".").absolute()

    @property
    def _own_file(self) -> Path:
        return self._folder / "dataset" / "__init__.py"

    def _load_own(self) -> ModuleType:
        if self.has_own_module:
            return load_package(self._own_file)
        raise self.error(
            f"the recipe has no {self._own_file}. Write that file with a class Dataset in it, or "
            f"name a source, such as {self.key.rpartition('.')[2]}: kaldi. "
            f"Known: {', '.join(SOURCES)}."
        )

    def _load_tag(self, *parts: str) -> ModuleType:
        if len(parts) != 2 or not all(parts):
            raise self.error("a tag has two parts. Write: data_src: CORPUS/TASK")
        file = Path("egs3", *parts, "dataset", "__init__.py")
        roots = list(dict.fromkeys(self._roots()))
        root = next((root for root in roots if (root / file).is_file()), None)
        if root is None:
            raise self._unknown_tag(file, [root for root in roots if (root / "egs3").is_dir()])
        # Appended to sys.path, so that a clone hides no installed package.
        if str(root) not in sys.path:
            sys.path.append(str(root))  # for what the recipe itself imports from egs3
        module = _import_from(".".join(["egs3", *parts, "dataset"]), root / file)
        return module or load_package(root / file)

    def _roots(self) -> Iterator[Path]:
        for start in (self._folder.resolve(), Path.cwd()):
            yield from (start, *start.parents)
        yield from (Path(entry).absolute() for entry in sys.path)

    def _unknown_tag(self, file: Path, roots: list[Path]) -> ConfigError:
        if not roots:
            return self.error(
                f"neither {self._folder} nor {Path.cwd()} nor a folder above them has an egs3/. "
                "Run in your clone of ESPnet3, or write a dotted module: data_src: package.module"
            )
        found = [f for root in roots for f in root.glob("egs3/*/*/dataset/__init__.py")]
        known = sorted({"/".join(f.parts[-4:-2]) for f in found})
        return self.error(
            f"there is no {file} in {', '.join(map(str, roots))}."
            f"{suggest(str(self.data_src), known)} Known: {', '.join(known) or 'none'}."
        )

    def _load_dotted(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if not f"{name}.".startswith(f"{missing}."):
                raise  # an import inside the module
        except (ValueError, TypeError) as error:  # such as "a..b" or ".a"
            raise self.error(f"that is no name of a module: {error}") from error
        raise self.error(_why_missing(name, missing))


def _why_missing(name: str, missing: str) -> str:
    parent, _, last = missing.rpartition(".")
    if not parent:
        known = {*SOURCES, *(module.name for module in pkgutil.iter_modules())}
        return (
            f"there is no module {missing!r}.{suggest(missing, known)} Write one of "
            f"{', '.join(SOURCES)}, a tag CORPUS/TASK, or a module on the path: "
            "export PYTHONPATH=FOLDER:$PYTHONPATH"
        )
    package = importlib.import_module(parent)
    if hasattr(package, last) and missing == name:
        return f"that is no module. Name the module, which exports Dataset: data_src: {parent}"
    known = {module.name for module in pkgutil.iter_modules(getattr(package, "__path__", []))}
    return (
        f"{parent!r} has no module {last!r}.{suggest(last, known)} "
        f"It has: {', '.join(sorted(known)) or 'none'}."
    )


def _import_from(name: str, file: Path) -> ModuleType | None:
    """Import by name, or return None if that name belongs to another file."""
    importlib.invalidate_caches()  # the folder may be newer than what the finders remember
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        return None
    found = getattr(module, "__file__", None)
    return module if found and Path(found).resolve() == file.resolve() else None


RECIPE_PREFIX = "recipe_dataset_"


def load_package(file: Path) -> ModuleType:
    """Load a package from its `__init__.py`.

    Its name is unique to the file, since every recipe calls its package `dataset`, and the same in
    every process.
    """
    file = file.resolve()
    # fsencode(), as a path may have bytes that are not UTF-8.
    name = f"{RECIPE_PREFIX}{hashlib.sha256(os.fsencode(file)).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(file.parent)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before it is executed, as in a normal import: it may import its own submodules.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # Otherwise the next call would get a module that is half executed.
        del sys.modules[name]
        raise
    return module


SPLITS = ("train", "valid", "test")

_KEY = "dataset"
_CLOSE = 0.8
_TARGET = f"{__name__}.DataOrganizer"


class DatasetEntry(FrozenConfig):
    """One dataset of a split."""

    name: str | None = None
    """What a test set is called, also as a folder; others need none."""
    data_src: str | None = None
    """`corpus/task`, a short name such as `kaldi`, a module, or nothing for the recipe's own."""
    data_src_args: dict[str, Any] | None = None
    """The arguments of the module's `Dataset`."""
    only: dict[str, list[Any] | str] | None = None
    """Fields and their values, or files of values: the items to keep, `only: {speaker: [anna]}`."""
    leave_out: dict[str, list[Any] | str] | None = None
    """Likewise the items to drop, such as those held out for another set."""
    transform: Any = None
    """Applied to each sample of this dataset: an object with a `_target_`, or a dotted path."""
    weight: PositiveFloat = 1.0
    """How often each sample comes in an epoch of training: 2 is twice, 0.5 every other epoch."""


class DataOrganizer:
    """Puts the datasets of an experiment together, as the `dataset` block of a config says.

    An entry is a mapping with `name` (test sets only), `data_src` (see `DataSource`),
    `data_src_args` (arguments of the source's `Dataset`), `only` and `leave_out` (which of its
    items, by their fields), `transform` (a function of a sample) and `weight` (training sets only:
    how often each sample comes in an epoch).
    Where the `Dataset` takes a `recipe_dir` that `data_src_args` do not set, it gets ours.

    Args:
        recipe_dir: The recipe's folder; None for the current one.
        train: Entries that are combined into one dataset.
        valid: Likewise.
        test: Entries, each with a name of its own.
        preprocessor: A function of a sample, applied to all datasets after their own transforms:
            an object, or the dotted path of one.

    Raises:
        ConfigError: An entry is wrong; the message starts with its key.

    Example:
        >>> organizer = DataOrganizer(
        ...     test=[{"name": "clean", "data_src": "kaldi", "data_src_args": {"path": "data/a"}}]
        ... )
        >>> list(organizer.test)  # builds nothing
        ['clean']
    """

    def __init__(
        self,
        recipe_dir: str | os.PathLike[str] | None = None,
        train: Any = None,
        valid: Any = None,
        test: Any = None,
        preprocessor: Any = None,
    ) -> None:
        self.recipe_dir = recipe_dir
        self._train = parse_entries(train, f"{_KEY}.train")
        self._valid = parse_entries(valid, f"{_KEY}.valid")
        entries = parse_entries(test, f"{_KEY}.test", named=True)
        self._preprocessor = _as_function(preprocessor, f"{_KEY}.preprocessor")
        self.test = _TestSets(self, entries)

    @cached_property
    def train(self) -> CombinedDataset | None:
        """The training set, built at the first access; None if the config has none."""
        return self._combine(self._train, f"{_KEY}.train")

    @cached_property
    def valid(self) -> CombinedDataset | None:
        """The validation set, built at the first access; None if the config has none."""
        return self._combine(self._valid, f"{_KEY}.valid")

    def build(self, entry: DatasetEntry, key: str) -> Dataset:
        """Build the dataset of one entry; it is not kept.

        Raises:
            ConfigError: Its source or arguments are wrong, or it has no items.
        """
        dataset = self._construct(entry, key)
        transform = _as_function(entry.transform, f"{key}.transform")
        if transform is None and self._preprocessor is None:
            return dataset
        return TransformedDataset(dataset, transform, self._preprocessor)

    def _combine(self, entries: tuple[DatasetEntry, ...], key: str) -> CombinedDataset | None:
        names = [f"{key}.{i}" for i in range(len(entries))]
        datasets = [self.build(entry, name) for entry, name in zip(entries, names, strict=True)]
        weights = [entry.weight for entry in entries]
        return CombinedDataset(datasets, weights, names) if datasets else None

    def _construct(self, entry: DatasetEntry, key: str) -> Dataset:
        source = DataSource(entry.data_src, self.recipe_dir, f"{key}.data_src")
        kind = source.load("Dataset")
        arguments = _with_recipe_dir(kind, entry.data_src_args or {}, self.recipe_dir)
        source.check_arguments(kind, arguments)
        try:
            dataset = kind(**arguments)
        except EspnetError as error:
            raise error.at(f"{key}.data_src_args") from error
        except FileNotFoundError as error:
            if error.filename is None:
                error.add_note(_describe_failure(key, source.name))
                raise
            raise DataError(
                f"{key} ({source.name}) reads {os.fspath(error.filename)!r}, which does not exist.",
                fix=f"If the files of this dataset are not made yet: {create_command()}",
            ) from error
        except Exception as error:
            error.add_note(_describe_failure(key, source.name))
            raise
        return self._select(_check_dataset(dataset, key, source.name), entry, key)

    def _select(self, dataset: Dataset, entry: DatasetEntry, key: str) -> Dataset:
        if not entry.only and not entry.leave_out:
            return dataset
        try:
            kept = Subset(dataset, entry.only, entry.leave_out, self.recipe_dir)
        except EspnetError as error:
            raise error.at(key) from error
        if len(kept) == 0:
            raise ConfigError(
                key, key=key, problem=": only and leave_out keep no item", fix="Correct them."
            )
        return kept


def _describe_failure(key: str, name: str) -> str:
    return (
        f"Raised while building {key} ({name}). If its files are not made yet: {create_command()}"
    )


class _TestSets(Mapping[str, Any]):
    """The test sets by name; each is built at its first lookup, and kept."""

    def __init__(self, organizer: DataOrganizer, entries: tuple[DatasetEntry, ...]) -> None:
        self._organizer = organizer
        self._entries = {str(entry.name): (i, entry) for i, entry in enumerate(entries)}
        self._built: dict[str, Dataset] = {}

    def __getitem__(self, name: str) -> Dataset:
        if name not in self._built:
            i, entry = self._entries[name]
            self._built[name] = self._organizer.build(entry, f"{_KEY}.test.{i}")
        return self._built[name]

    # That of Mapping would build the dataset to find out.
    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<test sets: {', '.join(self._entries) or 'none'}>"


@names_places
def check_datasets(
    loaded: "LoadedConfig", splits: tuple[str, ...] = SPLITS, *, provided: bool = False
) -> None:
    """Check the entries of a config's `dataset` block, with file and line in the errors.

    The modules of the sources are imported; no dataset is built and no data is read.

    Args:
        loaded: The config.
        splits: Those to check.
        provided: A provider of the user builds the datasets: an entry that names no source, but a
            test set alone, or says more in keys of its own, is for it to read.

    Raises:
        ConfigError: An entry is wrong, names no source, has arguments that do not fit it, or names
            a function that does not exist.
    """
    block = resolved(loaded.config.get(_KEY), prefix=_KEY, loaded=loaded)
    # An organizer of the user's own may read other keys.
    if not isinstance(block, Mapping) or block.get("_target_", _TARGET) != _TARGET:
        return
    recipe_dir = block.get("recipe_dir") or loaded.config.get("recipe_dir")
    find_function(block.get("preprocessor"), key=f"{_KEY}.preprocessor")
    for split in splits:
        key = f"{_KEY}.{split}"
        for i, entry in enumerate(_entries_to_check(block.get(split), key, provided)):
            if entry is None:
                continue
            find_function(entry.transform, key=f"{key}.{i}.transform")
            source = DataSource(entry.data_src, recipe_dir, f"{key}.{i}.data_src")
            source.check_module()
            kind = source.load("Dataset")
            arguments = entry.data_src_args or {}
            source.check_arguments(kind, _with_recipe_dir(kind, arguments, recipe_dir))


def check_entries(loaded: "LoadedConfig", splits: tuple[str, ...]) -> None:
    """Check what the text of the `dataset` block tells: nothing of the user's own is imported.

    Raises:
        ConfigError: Keys of entries are unknown, or arguments of our own sources.
    """
    block = resolved(loaded.config.get(_KEY), prefix=_KEY, loaded=loaded)
    if not isinstance(block, Mapping) or block.get("_target_", _TARGET) != _TARGET:
        return
    errors: list[ConfigError] = []
    for split in splits:
        key = f"{_KEY}.{split}"
        entries = block.get(split)
        try:
            parse_entries(entries, key, named=split == "test")
        except ConfigError as error:
            errors.append(error)
        for i, entry in enumerate(entries if isinstance(entries, list) else ()):
            errors += _unknown_source_arguments(entry, f"{key}.{i}.data_src_args")
    with loaded.naming_places():
        raise_together(errors)


def _unknown_source_arguments(entry: Any, key: str) -> Iterator[ConfigError]:
    source, arguments = (
        (entry.get("data_src"), entry.get("data_src_args"))
        if isinstance(entry, Mapping)
        else ("", "")
    )
    module = SOURCES.get(str(source))
    signature = signature_without_import(f"{module}.Dataset") if module else None
    if signature is not None and isinstance(arguments, Mapping):
        known = {name: value for name, value in arguments.items() if name != "recipe_dir"}
        yield from unknown_arguments(signature, key, {**known, "_target_": f"{module}.Dataset"})


def _entries_to_check(values: Any, key: str, provided: bool) -> Sequence[DatasetEntry | None]:
    """Parse the entries of a split; None stands for one that is left to a provider."""
    named = key.endswith(".test")
    if not provided:
        return parse_entries(values, key, named=named)
    if not isinstance(values, Sequence):
        return ()
    left = [_is_left_to_provider(value) for value in values]
    names = [{"name": v.get("name")} if own else v for v, own in zip(values, left, strict=True)]
    entries = parse_entries(names, key, named=named)
    return [None if own else entry for entry, own in zip(entries, left, strict=True)]


def _is_left_to_provider(entry: Any) -> bool:
    """Tell whether an entry says nothing of a source, not even misspelt."""
    ours = set(DatasetEntry.model_fields) - {"name"}
    return isinstance(entry, Mapping) and not any(
        get_close_matches(str(key), ours, n=1, cutoff=_CLOSE) for key in entry if key != "name"
    )


def _with_recipe_dir(kind: Any, arguments: Mapping[str, Any], recipe_dir: Any) -> dict[str, Any]:
    signature = signature_of(kind)
    wants = signature is not None and "recipe_dir" in signature.parameters
    return {**({"recipe_dir": recipe_dir} if wants else {}), **arguments}


def _as_function(value: Any, key: str) -> Transform | None:
    if value is None:
        return None
    function: Transform = CalledWithId.around(build_function(value, key=key))
    return function


def _check_dataset(dataset: Any, key: str, source: str) -> Dataset:
    missing = [name for name in ("__len__", "__getitem__") if not hasattr(dataset, name)]
    if missing:
        raise ConfigError(
            key,
            key=key,
            problem=f": the Dataset of {source} has no {missing[0]}",
            fix=f"Write it: def {missing[0]}(self{', index' if 'get' in missing[0] else ''}): ...",
        )
    if len(dataset) == 0:
        raise ConfigError(
            key=f"{key}.data_src_args",
            problem=f": the Dataset of {source} has no items",
            fix=f"Check these arguments; if its files are not made yet: {create_command()}",
        )
    found: Dataset = dataset
    return found


def parse_entries(values: Any, key: str, *, named: bool = False) -> tuple[DatasetEntry, ...]:
    """Check the entries of a split; None counts as an empty list.

    Args:
        values: A list of mappings.
        key: Dotted key of the list, such as `dataset.test`, for the errors.
        named: Each entry must have a name that no other has.

    Raises:
        ConfigError: A key is unknown, a value of the wrong type, a name missing or there twice, or
            a weight is set where nothing is trained.
    """
    plain = resolved(values, prefix=key)
    if plain is None:
        return ()
    if not isinstance(plain, list | tuple):
        split = key.rpartition(".")[2]
        raise ConfigError(
            f"{key} is a {type(plain).__name__}",
            key=key,
            problem="but must be a list of datasets",
            fix=f"Write: {split}: [{{name: NAME, data_src: SOURCE, data_src_args: {{...}}}}]",
        )
    errors, entries = [], []
    for i, value in enumerate(plain):
        try:
            entries.append(validate(DatasetEntry, value, prefix=f"{key}.{i}"))
        except ConfigError as error:
            errors.append(error)
    raise_together(errors)
    _refuse_weights(entries, key)
    if named:
        names = [(f"{key}.{i}.name", entry.name) for i, entry in enumerate(entries)]
        check_names(names)
    return tuple(entries)


def _refuse_weights(entries: list[DatasetEntry], key: str) -> None:
    """Raise if a set that is only measured would count some samples twice or not at all."""
    for i, entry in enumerate(entries):
        if entry.weight != 1 and key.rpartition(".")[2] != "train":
            raise ConfigError(
                key=f"{key}.{i}.weight",
                value=entry.weight,
                problem="but only datasets to train on have weights",
                fix="Remove the line: scores are of each sample once.",
            )


def check_name(key: str, name: Any) -> None:
    """Raise a `ConfigError` unless a test set, and so a folder, can have this name."""
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"{key} is not set",
            key=key,
            fix="A test set needs a name, which is also the folder of its results. Write: name: "
            "test_clean",
        )
    if "/" in name or name in (".", "..") or not name.isprintable():
        better = "_".join(name.replace("/", " ").split()).strip(".") or "test"
        raise ConfigError(
            key=key,
            value=name,
            problem="which cannot be the name of one folder",
            fix=f"Write: name: {better}",
        )


def check_names(names: Sequence[tuple[str, Any]]) -> None:
    """Check each name, and that no two are the same.

    Args:
        names: The dotted key of each name, such as `dataset.test.0.name`, and the name.

    Raises:
        ConfigError: A name is missing, there twice, or no name of a folder.
    """
    first: dict[str, str] = {}
    for key, name in names:
        check_name(key, name)
        if name in first:
            raise ConfigError(
                key=key,
                value=name,
                problem=f"which is the name of {first[name].removesuffix('.name')} as well",
                fix=f"Write another one: name: {name}_2",
            )
        first[name] = key
