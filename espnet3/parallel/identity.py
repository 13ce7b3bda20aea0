"""Fingerprint of a run: everything its results depend on, key by key; and digests of the code.

The rule for code: all of the text of each module of the user's own that classes and functions come
from, or that such a module imports, at the top or inside of a function. Comments, docstrings and
layout do not count. Which part of a module a result depends on cannot be known from outside
(registries, patches, decorators, tables that a loop fills), and a change that is overlooked is
worse than one that has to be accepted. Only the script that runs counts in part: see
`module_source`.

The text does not tell what comes from the environment, from a file or from the function that made a
class. So the values that the code will find are described as well: globals, defaults, class
attributes and closure cells, where they can be reached by name. Code without a text, typed at a
prompt or made by `exec`, counts as Python compiled it.
"""

import ast
import contextlib
import dis
import functools
import inspect
import logging
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from espnet3.config.content import WEIGHTS, changed_files, is_same
from espnet3.config.fingerprint import diff, files_in, flatten, setting_of
from espnet3.config.redact import REDACTED, mask, stands_for
from espnet3.parallel.module_source import (
    LOOKUPS,
    ModuleText,
    Normal,
    digest_text,
    reachable_part,
    read_module,
)
from espnet3.parallel.own_modules import (
    Home,
    OwnModule,
    Value,
    absolute_name,
    file_of,
    find_module,
    follow_imports,
    imported_names,
    is_own_file,
    names_something,
    settle,
    shown_name,
)
from espnet3.shards.manifest import Manifest, items_digest
from espnet3.text import first_few

if TYPE_CHECKING:
    from espnet3.parallel.base_runner import BaseRunner
    from espnet3.shards.manifest import Items


logger = logging.getLogger(__name__)

RULES = {"fingerprint": "2"}
"""Noted beside a fingerprint: secrets are digests, and folders are among the files. Before, what
looked like a secret was left out, and folders were."""

_SHOWN_FILES = 3
_RULE = "code_rule"
_CODE = re.compile(r"(runner|provider)\.code(\..+)?|code\..+")
# Where and how fast things run must not change results, so it may differ between two calls.
_NOT_RESULTS = ("config.parallel", "config.device", "config.num_device", "config.num_nodes")


def describe_run(runner: "BaseRunner", items: "Items") -> dict[str, Any]:
    """Return all that the results depend on, flat: items, settings, code, config and parameters.

    Values are as they are: what `redact` made of a path would name nothing. What is written for
    others to read goes through `mask` first.
    """
    provider = runner.provider
    described: dict[str, Any] = {"items": items_digest(items)}
    for name, value in runner.result_settings().items():
        described.update(flatten(value, name, with_state=True))
    for role, cls in (("runner", type(runner)), ("provider", type(provider))):
        described[role] = _name(cls)
    for name, value in sorted(_state(provider).items()):
        flat = flatten(value, name.lstrip("_"), with_state=True)
        described.update({k: v for k, v in flat.items() if not _is_in_parallel_block(k, flat)})
    ignored = not_results_of(runner)
    # Before the code is described: an ignored `_target_` must not add the module that it names.
    kept = {key: value for key, value in described.items() if not is_below(key, ignored)}
    kept = with_code(runner, kept)
    # And after, because the code has keys of its own.
    return {key: value for key, value in kept.items() if not is_below(key, ignored)}


def not_results_of(runner: "BaseRunner") -> tuple[str, ...]:
    """Return the keys of a description that results do not depend on."""
    own = getattr(runner.provider, "fingerprint_ignore", ())
    return (*_NOT_RESULTS, *own, *runner.not_results)


def is_below(key: str, prefixes: Iterable[str]) -> bool:
    """Tell whether a dotted key is one of the prefixes, or inside one."""
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)


def _is_in_parallel_block(key: str, flat: Mapping[str, Any]) -> bool:
    """Tell whether a key is of a block such as `parallel_gpu`; `parallel_wavegan` is a model."""
    block = re.match(r"config\.parallel_\w+", key)
    return block is not None and (f"{block[0]}.env" in flat or flat.get(block[0]) == "{}")


def _state(provider: Any) -> dict[str, Any]:
    try:
        return dict(vars(provider))
    except TypeError:
        return {}


def _name(cls: type) -> str:
    # `__main__` is where a script is run from, not what it is.
    return cls.__qualname__.rpartition("<locals>.")[2]


def changes(
    manifest: Manifest,
    described: Mapping[str, Any],
    *,
    outputs: Sequence[str | PathLike[str]] = (),
    ignored: Sequence[str] = (),
) -> list[str]:
    """Return what differs between a run's manifest and the run that is asked for, line by line.

    Args:
        manifest: of the run that is there.
        described: what `describe_run` returned for the one that is asked for.
        outputs: the folders that the run writes; see `files_in`.
        ignored: what `not_results_of` returned; an earlier version may have noted more.

    Raises:
        ConfigError: a file or folder that a value names cannot be read.
    """
    masked = mask(described)
    before = _in_todays_form(manifest, described, masked)
    before = {key: value for key, value in before.items() if not is_below(key, ignored)}
    lines = [_in_words(line) for line in diff(*comparable(before, masked))]
    now = files_in(described, outputs=outputs, with_parts=True)
    unknown, later = list[str](), list[str]()
    for key in sorted(manifest.files.keys() | now.keys()):
        setting = setting_of(key)
        if setting not in masked or before.get(setting) != masked[setting]:
            continue  # another value: a line above says so
        old, new = manifest.files.get(key), now.get(key)
        path = str((old or new or {}).get("path", described[setting]))
        if old is None and not _is_complete(manifest):
            unknown.append(f"{setting} ({path})")
        elif new is None and os.path.exists(path):
            continue  # noted by an earlier version: the run writes it
        elif old is None and _is_inside(path, outputs):
            continue  # made by the run
        elif old is None and not _is_model(path, new or {}):
            later.append(f"{setting} ({path})")
        elif line := _file_change(path, old, new):
            lines.append(f"{setting}: {line}")
    if unknown:
        text = "Not compared, because an earlier version planned the run without noting it: %s"
        logger.warning(text, ", ".join(unknown))
    if later:
        logger.warning(
            "Not there when the run was planned: %s. If the run did not make it, and results "
            "depend on it, choose another output_dir or start over: resume=False",
            ", ".join(later),
        )
    return lines


def _is_model(path: str, identity: Mapping[str, Any]) -> bool:
    """Tell whether a file or folder that came later is an input for sure.

    A log, a cache or a list of what was done is often made by the run itself, which must resume
    after a kill.
    """
    return any(name.endswith(WEIGHTS) for name in (path, *identity.get("files", ())))


def _is_inside(path: str, folders: Sequence[str | PathLike[str]]) -> bool:
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in folders)


def _is_complete(manifest: Manifest) -> bool:
    return all(manifest.versions.get(name) == rule for name, rule in RULES.items())


def _in_todays_form(
    manifest: Manifest, described: Mapping[str, Any], masked: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fingerprint with secrets as they would be masked now, where they are the same.

    What counts as one depends on the environment; and an earlier version left them out.
    """
    before = dict(manifest.fingerprint)
    other = [key for key in before.keys() & masked.keys() if before[key] != masked[key]]
    same = [key for key in other if stands_for(before[key], described[key])]
    is_old = not _is_complete(manifest)
    left_out = [key for key in other if is_old and _fits(before[key], described[key])]
    if left_out:
        text = "Not compared, because an earlier version took it for a secret: %s"
        logger.warning(text, ", ".join(sorted(left_out)))
    opaque = [k for k, v in before.items() if is_old and k not in masked and _is_opaque(v)]
    if opaque:
        text = "Not compared, because an earlier version did not look into objects: %s"
        logger.warning(text, ", ".join(sorted(opaque)))
    kept = {key: value for key, value in before.items() if key not in opaque}
    inside = [key for key in masked if is_below(key, opaque)]
    return kept | {key: masked[key] for key in (*same, *left_out, *inside)}


def _is_opaque(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("object of ")


def _fits(old: Any, new: Any) -> bool:
    """Tell whether a text with parts left out may have been this value."""
    if not isinstance(old, str) or REDACTED not in old:
        return False
    pattern = ".*".join(map(re.escape, old.split(REDACTED)))
    return re.fullmatch(pattern, str(new), re.DOTALL) is not None


def _file_change(
    path: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> str | None:
    """Return how what a path names differs; None if it does not."""
    if new is None:
        assert old is not None
        return f"the {_kind(old)} {path} is gone"
    if old is None:
        # What the hub has is often fetched by the workers of the very first run.
        return None if new.get("kind") == "hub" else f"the {_kind(new)} {path} was not there"
    if _kind(old) != _kind(new):
        return f"{path} was a {_kind(old)} and is a {_kind(new)}"
    if is_same(dict(old), dict(new), path):
        return None
    return f"the {_kind(new)} {path} has other content{_details(old, new)}"


def _kind(identity: Mapping[str, Any]) -> str:
    kind = identity.get("kind", "file")
    return "model of the hub" if kind == "hub" else str(kind)


def _details(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if "commit" in new and old.get("commit") != new["commit"]:
        return f" (commit {old.get('commit')} then, {new['commit']} now)"
    if files := changed_files(dict(old), dict(new)):
        return f" ({first_few(files, _SHOWN_FILES)})"
    if old.get("size") != new.get("size"):
        return f" ({old.get('size')} bytes then, {new.get('size')} bytes now)"
    return " (of the same size)"


def with_code(runner: "BaseRunner", described: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with that of the code added, each definition once.

    What the runner depends on is `runner.code`, what else the provider does is `provider.code`, and
    the rest, of what a config names, is `code`. So `accept_changes=["runner.code"]` is enough after
    any change of what the runner uses.
    """
    found: dict[str, Any] = {_RULE: RULE}
    known: set[str] = set()
    for role, owner in (("runner", runner), ("provider", runner.provider)):
        inner = [value for name, value in _state(owner).items() if name != "provider"]
        code = describe_modules([type(owner), *code_in(inner)])
        own = module_of(type(owner))
        for name in sorted(code.keys() - known):
            short = "" if name == own else name.removeprefix(f"{own}.")
            key = f"{role}.code.{short}".rstrip(".")
            while key in found:  # a function of its own module, and a module, of one name
                key += "~"
            found[key] = code[name]
        known |= code.keys()
    targets = [v for k, v in described.items() if k.endswith("._target_") and isinstance(v, str)]
    named = describe_modules([], modules_above(targets))
    found |= {f"code.{name}": value for name, value in named.items()} | dict(described)
    twice = {f"code.{name}" for name in known}
    return {key: value for key, value in found.items() if key not in twice}


def comparable(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return two descriptions as they can be compared.

    One of an earlier version has another form of the code, which says nothing about this one.
    """
    if before.get(_RULE) == after.get(_RULE) or _RULE not in after:
        return before, after
    if any(map(_CODE.fullmatch, before)):
        logger.warning(
            "The results so far are of an ESPnet3 that described code in another way: whether the "
            "code changed since then was not compared"
        )
    return _without_code(before), _without_code(after)


def _without_code(described: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in described.items() if k != _RULE and not _CODE.fullmatch(k)}


def _in_words(line: str) -> str:
    """Describe a change of code in words instead of digests."""
    key, _, change = line.partition(": ")
    if not _CODE.fullmatch(key) or not re.search(r"'(value )?[0-9a-f]{16}'", change):
        return line
    if change.endswith("(not set)"):
        return f"{key}: the code is gone"
    if change.startswith("(not set)"):
        return f"{key}: the code is new"
    is_value = change.count("'value ") == 2
    return f"{key}: the value changed" if is_value else f"{key}: the code changed"


RULE = 2
"""Of how code is described; the one before compared only parts of the runner's own module."""

_SCRIPT = "__main__"
_FEW = 100
_WRAPPERS = (
    staticmethod, classmethod, property, functools.cached_property, functools.partialmethod,
    functools.partial, functools.singledispatchmethod, MethodType,
)  # fmt: skip
_ASKS_WHERE = ("cwd", "abspath", "realpath", "resolve", "absolute")


def describe_code(*things: Any) -> dict[str, Any]:
    """Return a digest, or the value, of each definition that the code of these things depends on.

    Args:
        things: classes, functions and other callables; instances count with their class.

    Returns:
        By `module.definition`, without the module for those of the first thing's own.
    """
    things = tuple(thing for thing in things if thing is not None)
    own = module_of(things[0]) if things else ""
    described = describe_modules(things)
    return {
        "" if key == own else key.removeprefix(f"{own}."): value for key, value in described.items()
    }


def describe_modules(things: Iterable[Any], names: Iterable[str] = ()) -> dict[str, Any]:
    """Return the same by full names, also for modules that are known by name alone."""
    things = list(things)
    walk = _follow(things)
    walk.modules.update(names)
    described = {**_describe_texts(walk), **walk.code, **_describe_packages(things)}
    for key, (value, is_all) in walk.described_values().items():
        # Beside the text, if it does not say all: what a class does with it may have changed.
        described[key if is_all else f"{key}.value"] = value
    return dict(sorted(described.items()))


def _follow(things: Iterable[Any]) -> "_Walk":
    walk = _Walk()
    for thing in things:
        walk.visit(thing)
    return walk


def module_of(thing: Any) -> str:
    """Return the module of a class or function as the keys have it."""
    return _shown(_module_name(thing))


def modules_above(targets: Iterable[str]) -> set[str]:
    """Return the names of the modules that dotted paths may lie in."""
    split = [target.split(".") for target in targets]
    return {".".join(parts[:i]) for parts in split for i in range(1, len(parts))}


def code_in(values: Any, depth: int = 3) -> Iterator[Any]:
    """Yield functions, classes and objects of the user's own in plain containers, if not too many.

    What is longer than a hundred is data.
    """
    if isinstance(values, Mapping) and depth and len(values) <= _FEW:
        values = list(values.values())
    if isinstance(values, list | tuple) and depth:
        for value in values[:_FEW]:
            yield from code_in(value, depth - 1)
    elif isinstance(values, (FunctionType, type, *_WRAPPERS)) or _is_own(type(values).__module__):
        yield values


def modules_named(settings: Any) -> set[str]:
    """Return what texts in the settings of a run may name: `_target_`s, functions and modules."""
    texts = [text for text in flatten(settings).values() if isinstance(text, str)]
    dotted = [text for text in texts if all(part.isidentifier() for part in text.split("."))]
    dotted = [text for text in dotted if "." not in text or names_something(text)]
    return {*modules_above(dotted), *dotted}


def own_files(things: Iterable[Any], names: Iterable[str] = ()) -> list[str]:
    """Return the files of the user's own modules that these things depend on, the script apart.

    Args:
        things: classes and functions.
        names: of modules, or of what may be one.
    """
    walk = _follow(things)
    walk.modules.update(names)
    return sorted(_own_modules(walk))


def _module_name(thing: Any) -> str:
    while not isinstance(thing, type | FunctionType):
        inner = next(iter(_inside(thing)), None)
        thing = type(thing) if inner is None else inner
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__", ""))
    return str(thing.__module__)


def _shown(module: str) -> str:
    """Return the name of a module as keys have it."""
    if module == _SCRIPT:
        return _SCRIPT
    return shown_name(module, file_of(sys.modules.get(module)))


# Modules


def _own_modules(walk: "_Walk") -> dict[str, OwnModule]:
    start = [find_module(name) for name in sorted(walk.modules) if name != _SCRIPT]
    part = walk.script_part()
    if part is not None:
        package = str(getattr(sys.modules.get(_SCRIPT), "__package__", None) or "")
        start += map(find_module, imported_names(part.imports, package))
    found = follow_imports(filter(None, start))
    # A script that others import counts as the script that it is.
    found.pop(os.path.realpath(file_of(sys.modules.get(_SCRIPT))) if part else "", None)
    return found


def _describe_texts(walk: "_Walk") -> dict[str, Any]:
    described: dict[str, Any] = {}
    part = walk.script_part()
    if part is not None:
        described.update(_with_prefix(_SCRIPT, part.definitions))
    used: set[str] = set()
    for _, module in sorted(_own_modules(walk).items()):
        name = module.shown
        while name in used:  # two recipes call their package `dataset`
            name += "~"
        used.add(name)
        described.update(_with_prefix(name, module.text().definitions))
    return described


def _with_prefix(module: str, definitions: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{module}.{name}" if name else module: value for name, value in definitions.items()}


def _describe_packages(things: Iterable[Any]) -> dict[str, Any]:
    """Return text and version of installed classes and functions that are named themselves."""
    described: dict[str, Any] = {}
    for thing in things:
        for kind in thing.__mro__ if isinstance(thing, type) else (thing,):
            module = _module_name(kind)
            file = file_of(sys.modules.get(module))
            top = module.partition(".")[0]
            if not file or is_own_file(file) or top == "espnet3" or top in sys.stdlib_module_names:
                continue
            if kind is thing and file.endswith(".py"):
                everything = sorted(read_module(file).definitions.items())
                described[module] = digest_text(repr(everything))
            described[f"package.{top}"] = _version(top)
    return described


@functools.cache
def _version(top: str) -> str:
    """Return the version of an installed package, without what it was built for."""
    from importlib import metadata

    try:
        version = metadata.version(top)
    except metadata.PackageNotFoundError:
        version = str(getattr(sys.modules.get(top), "__version__", "unknown"))
    return version.partition("+")[0]


# What is reached in this process


@dataclass
class _Found:
    """A value, and whether it counts."""

    module: str
    path: str
    """Its name in the module, as the text has it."""
    owner: Any
    """What holds it, under `name`."""
    name: str
    read: Callable[[], Any]
    value: Value | None = None


class _Walk:
    """Follows functions and classes to all that they use, by name."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        """Whose code was seen."""
        self.code: dict[str, Any] = {}
        """Digests of code without a text."""
        self._used: set[str] = set()  # definitions of the script
        self._found: dict[tuple[int, str], _Found] = {}
        self._changed: set[tuple[str, str]] = set()  # by functions that were seen, as they run
        self._seen: dict[int, Any] = {}
        self._texts: dict[str, ModuleText | None] = {}
        self._homes: dict[str, Home] = {}
        self._part: list[ModuleText | None] = []

    def visit(self, thing: Any) -> None:
        """Follow a class, a function or anything that has some inside."""
        todo = [thing]
        while todo:
            thing = todo.pop()
            if id(thing) not in self._seen:
                self._seen[id(thing)] = thing  # kept, so that its id stays its own
                todo += self._step(thing)

    def _step(self, thing: Any) -> list[Any]:
        if isinstance(thing, type):
            return self._step_class(thing)
        if isinstance(thing, FunctionType):
            return self._step_function(thing)
        if thing is None or isinstance(thing, ModuleType):
            return []
        return [*_inside(thing), type(thing)]

    def _step_class(self, cls: type) -> list[Any]:
        if not _is_own(cls.__module__):
            return [each for each in cls.__mro__[1:] if _is_own(each.__module__)]
        module, qualname = cls.__module__, _plain(cls.__qualname__)
        self._note_module(module, qualname)
        if self._text(module) is None:
            names = [_plain(base.__qualname__) for base in cls.__bases__]
            self.code[_free(f"{_shown(module)}.{qualname}", self.code)] = digest_text(repr(names))
        todo: list[Any] = [*cls.__mro__[1:], type(cls)]
        for name, value in list(vars(cls).items()):
            if isinstance(value, (FunctionType, type, *_WRAPPERS)):
                todo.append(value)
            # Slots and the like only describe attributes of instances.
            elif not _is_dunder(name) and not inspect.isdatadescriptor(value):
                read = functools.partial(inspect.getattr_static, cls, name)
                todo += self._add(_Found(module, f"{qualname}.{name}", cls, name, read))
        return todo

    def _step_function(self, function: FunctionType) -> list[Any]:
        module = str(function.__globals__.get("__name__", ""))
        wrapped = getattr(function, "__wrapped__", None)
        text = self._text(module)
        is_generated = text is not None and _is_generated(function)
        if not _is_own(module) or is_generated:
            return [wrapped, *code_in(list(_cells(function).values()))]
        qualname = _plain(function.__qualname__)
        self._note_module(module, qualname)
        if text is None or function.__code__.co_filename.startswith("<"):
            self.code[_free(f"{_shown(module)}.{qualname}", self.code)] = _digest(function)
            code = function.__code__
            self.modules.update(_steps_of(code, "IMPORT_NAME"))
            self._changed.update((module, name) for name in _steps_of(code, "STORE_GLOBAL"))
        if text is not None:
            self._note_changes(text, module, qualname)
        todo = [*self._globals(function, module), wrapped]
        for name in _arguments(function):
            read = functools.partial(_argument, function, name)
            todo += self._add(_Found(module, f"{qualname}.{name}", function, name, read))
        return todo

    def _note_module(self, module: str, qualname: str) -> None:
        self.modules.add(module)
        if module == _SCRIPT:
            self._used.add(qualname.partition(".")[0])

    def _note_changes(self, text: ModuleText, module: str, qualname: str) -> None:
        # A function inside of another is part of its text.
        outer = qualname.partition(".")[0]
        for name in text.changed_by(qualname) | text.changed_by(outer):
            self._changed.add((module, name))
            if name in text.imported:
                self._changed.add((self._origin(text, module, name), name))

    def _origin(self, text: ModuleText, module: str, name: str) -> str:
        package = str(getattr(sys.modules.get(module), "__package__", None) or "")
        return absolute_name(text.imported[name], package)

    def _globals(self, function: FunctionType, module: str) -> list[Any]:
        todo: list[Any] = []
        scope = function.__globals__
        names = set(_names_of(function.__code__))
        # Such code may reach any global without naming it.
        if names & {*LOOKUPS, "modules"} and self._text(module) is None:
            names |= scope.keys()
        for name in names & scope.keys():
            if isinstance(scope[name], ModuleType):
                todo += self._attributes(scope[name], names)
            elif not _is_dunder(name):
                todo += self._add_global(module, scope, name)
        return todo

    def _attributes(self, module: ModuleType, names: set[str]) -> list[Any]:
        """Follow `module.NAME`; which of the names stand after it, the compiled code hides."""
        if not is_own_file(file_of(module)):
            return []
        self.modules.add(module.__name__)
        scope = vars(module)
        known = [n for n in names & scope.keys() if not isinstance(scope[n], ModuleType)]
        return [
            thing
            for name in known
            if not _is_dunder(name)
            for thing in self._add_global(module.__name__, scope, name)
        ]

    def _add_global(self, module: str, scope: dict[str, Any], name: str) -> list[Any]:
        text = self._text(module)
        value = scope[name]
        if module == _SCRIPT:
            self._used.add(name)
        if isinstance(value, FunctionType | type):
            return [value]
        if text is not None and name in text.imported:
            origin = self._origin(text, module, name)
            theirs = vars(sys.modules[origin]) if origin in sys.modules else {}
            original = text.imported[name].names[0]
            if not _is_own(origin):
                return list(_inside(value))
            if theirs.get(original) is value and origin != module:
                return self._add_global(origin, theirs, original)
        return self._add(_Found(module, name, scope, name, functools.partial(scope.get, name)))

    def _add(self, found: _Found) -> list[Any]:
        """Note a value; return the code in it, which is to be followed."""
        key = (id(found.owner), found.name)
        if key in self._found:
            return []
        value = found.read()
        if isinstance(value, FunctionType | type):
            return [value]
        try:
            found.value = Value(value, self._home(found.module))
        except Exception:  # whatever a class of others does when it is taken apart
            return [value]
        self._found[key] = found
        return [*_inside(value), *found.value.references]

    def described_values(self) -> dict[str, tuple[Any, bool]]:
        """Return the values that the text does not tell, and whether they say all."""
        described: dict[str, tuple[Any, bool]] = {}
        for each in self._found.values():
            assert each.value is not None
            key = f"{_shown(each.module)}.{each.path}"
            now = each.value.described(each.path)
            value = settle(each.owner, each.name, each.read, self._home(each.module), now)
            if self._counts(each):
                described[_free(key, described)] = (value, each.value.is_complete)
        return described

    def _counts(self, each: _Found) -> bool:
        text = self._text(each.module)
        if each.value is None or not each.value.is_known:
            return False
        is_changed = (each.module, each.path) in self._changed
        if text is None:
            return not is_changed
        if "." not in each.path and each.path not in text.bound:
            return False  # a function made it, when it ran
        if is_changed and text.starts_plain(each.path):
            return False
        return not text.says(each.path, each.read()) and not text.differs_by_nature(each.path)

    def script_part(self) -> ModuleText | None:
        """Return what counts of the script; None if nothing of it does, or it has no text."""
        if not self._part:
            self._part.append(self._script_part() if self._used else None)
        return self._part[0]

    def _script_part(self) -> ModuleText | None:
        script = self._text(_SCRIPT)
        if script is None:
            return None
        found = [each for each in self._found.values() if each.module == _SCRIPT]
        data = {e.path for e in found if self._counts(e) and e.value and e.value.is_complete}
        scope = vars(sys.modules[_SCRIPT])
        try:
            return reachable_part(
                script,
                self._used,
                scope,
                data.__contains__,
                lambda each: bool(imported_names([each], "")),
            )
        except RecursionError:  # an expression of a thousand parts: then all of it counts
            return script

    def _text(self, module: str) -> ModuleText | None:
        if module not in self._texts:
            self._texts[module] = _read_text(module)
        return self._texts[module]

    def _home(self, module: str) -> Home:
        if module not in self._homes:
            self._homes[module] = _find_home(module, self._text(module))
        return self._homes[module]


def _read_text(module: str) -> ModuleText | None:
    """Return the text of a loaded module of the user's own, if it has one."""
    file = file_of(sys.modules.get(module))
    try:
        own = is_own_file(file) and os.path.isfile(file)
        return read_module(file, is_script=module == _SCRIPT) if own else None
    except OSError:
        return None


def _find_home(module: str, text: ModuleText | None) -> Home:
    file = file_of(sys.modules.get(module))
    folder = os.path.dirname(file)
    for _ in module.split(".")[1:]:
        folder = os.path.dirname(folder)
    here = ""
    if text is None or any(word in text.text for word in _ASKS_WHERE):
        with contextlib.suppress(OSError):  # the folder is gone
            here = os.getcwd()
    return Home(filter(None, [folder, here]))


@functools.lru_cache(maxsize=4096)
def _is_own_name(module: str, file: str) -> bool:
    if file:
        return is_own_file(file)
    top = module.partition(".")[0]
    # The module name that `collections.namedtuple` gives to its generated `__new__`.
    if top.startswith("namedtuple_"):
        return False
    # Typed at a prompt, or made by `exec` under some name.
    return module == _SCRIPT or top not in {"espnet3", "builtins", *sys.stdlib_module_names}


def _is_own(module: str) -> bool:
    found = sys.modules.get(module)
    if found is not None and not file_of(found) and module in sys.builtin_module_names:
        return False
    return _is_own_name(str(module), file_of(found))


def _is_generated(function: FunctionType) -> bool:
    """Tell whether a function is one that `dataclass` and others write for a class."""
    return function.__code__.co_filename.startswith("<") and _is_dunder(function.__name__)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _plain(qualname: str) -> str:
    return qualname.replace("<locals>.", "").replace("<lambda>", "lambda")


def _free(key: str, taken: Mapping[str, Any]) -> str:
    while key in taken:
        key += "~"
    return key


def _inside(thing: Any) -> Iterator[Any]:
    """Yield the functions that a wrapper of Python has inside."""
    for name in ("__func__", "func", "fget", "fset", "fdel", "__wrapped__"):
        if isinstance(thing, _WRAPPERS) or name == "__wrapped__":
            inner = inspect.getattr_static(thing, name, None)
            # Found statically first: a class with a `__getattr__` may answer to any name.
            inner = getattr(thing, name, None) if inner is not None else None
            if inner is not None:
                yield inner


def _cells(function: FunctionType) -> dict[str, Any]:
    found: dict[str, Any] = {}
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # not filled yet
            found[name] = cell.cell_contents
    return found


def _arguments(function: FunctionType) -> dict[str, Any]:
    """Return what a function brings along: defaults, attributes, what it took from around it."""
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    defaults = zip(reversed(positional), reversed(function.__defaults__ or ()), strict=False)
    brought = {**dict(defaults), **(function.__kwdefaults__ or {}), **_cells(function)}
    return {**vars(function), **brought}


def _argument(function: FunctionType, name: str) -> Any:
    return _arguments(function)[name]


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def _steps_of(code: CodeType, operation: str) -> Iterator[str]:
    """Yield the names that compiled code uses in one way, such as in an import."""
    for step in dis.get_instructions(code):
        if step.opname == operation:
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _steps_of(constant, operation)


def _digest(function: FunctionType) -> str:
    """Return a digest of a function that no file has; a notebook knows the text of its cells."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        if isinstance(tree.body[0], ast.FunctionDef | ast.AsyncFunctionDef):
            return digest_text(Normal().text(tree.body[0]))
    except (OSError, TypeError, SyntaxError, IndexError):
        pass
    return digest_text(_compiled(function.__code__))


def _compiled(code: CodeType) -> str:
    constants = [c for c in code.co_consts if not isinstance(c, CodeType)]
    if constants and isinstance(constants[0], str) and code.co_consts[0] is constants[0]:
        constants[0] = None if code.co_name != "<lambda>" else constants[0]  # the docstring
    inner = [_compiled(c) for c in code.co_consts if isinstance(c, CodeType)]
    # Not their repr: the order in which a set is written changes from process to process.
    value = Value(constants, Home([])).described("constants")
    # Since Python 3.11 the bytecode itself does not contain where a `try` begins and ends.
    table = code.co_exceptiontable.hex()
    return f"{code.co_code.hex()} {code.co_names} {code.co_freevars} {value} {table} {inner}"
