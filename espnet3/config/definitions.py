"""Read classes and functions from their text, without importing them.

To import torch and Lightning takes seconds. Whether `optimizer.lrr` is misspelt stands in the text
of `torch.optim.AdamW`, and can be reported before. Each function returns None where the text does
not tell for certain: a name that is bound twice, or by `import *`, a decorator, an argument that
only a base class knows. The caller then imports.
"""

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from inspect import Parameter, Signature
from typing import Any

from espnet3.config.trust import current_trust

INTACT = ("espnet3", "torch", "lightning")
"""Packages of which a definition in the text can be imported, unless the installation is broken."""

UNREAD: Any = type("Unread", (), {"__repr__": lambda self: "..."})()
"""Stands for a default value that is no literal."""

_KEEPS_SIGNATURE = {"_defaults_from_env_vars"}  # above the methods of Lightning's Trainer
_MOST_STEPS = 20
_Found = ast.ClassDef | ast.FunctionDef
_Bound = _Found | tuple[int, str, str] | None
"""What binds a name: a definition; level, module and name of an import; or something else."""


@dataclass(frozen=True)
class Definition:
    """A class or function in the text of a module."""

    module: str
    file: str
    node: _Found

    @property
    def is_intact(self) -> bool:
        """Tell whether it need not be imported to know that it can be."""
        return self.module.partition(".")[0] in INTACT

    @property
    def is_ours(self) -> bool:
        """Tell whether it is of ESPnet3."""
        return self.module.startswith("espnet3.")

    def signature(self) -> Signature | None:
        """Return how it is called."""
        if isinstance(self.node, ast.FunctionDef):
            return _signature(self.node)
        own = dict[str, list[_Bound]]()
        for name, what in _bindings(self.node.body):
            own.setdefault(name, []).append(what)
        # A decorator, a metaclass or `__new__` may take other arguments than `__init__` does.
        if self.node.decorator_list or self.node.keywords or "__new__" in own:
            return None
        if "__init__" not in own:
            base = self._base()
            return base.signature() if base else None if self.node.bases else Signature()
        init = own["__init__"][-1]
        if len(own["__init__"]) > 1 or not isinstance(init, ast.FunctionDef):
            return None
        signature = _signature(init)
        parameters = list(signature.parameters.values()) if signature else []
        return signature and signature.replace(parameters=parameters[1:])  # without `self`

    def argument_names(self) -> set[str] | None:
        """Return the names that can be given; see `targets.argument_names`."""
        signature = self.signature()
        if signature is None:
            return None
        parameters = signature.parameters.values()
        named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return named
        # It hands the others on to its base class.
        base = self._base()
        inherited = base.argument_names() if base is not None else None
        return None if inherited is None else named | inherited

    def lineage(self) -> "list[Definition] | None":
        """Return a class and all that it derives from."""
        found = [self]
        for base in self._bases():
            above = base.lineage() if base is not None else None
            if above is None:
                return None
            found += above
        return found

    def _base(self) -> "Definition | None":
        """Return the class that it derives from, if it is one."""
        bases = self._bases()
        return bases[0] if len(bases) == 1 else None

    def _bases(self) -> "list[Definition | None]":
        bases = self.node.bases if isinstance(self.node, ast.ClassDef) else []
        return [
            _in_module(self.module, base.id) if isinstance(base, ast.Name) else None
            for base in bases
        ]


def find_definition(path: str) -> Definition | None:
    """Return what a dotted path names, from the text; None if that is uncertain, or was imported.

    What is loaded already tells more than its text, and costs nothing.
    """
    if current_trust() is not None:
        return None  # packed models have rules of their own
    parts = path.split(".")
    for i in range(len(parts) - 1, 0, -1):
        spec = _spec(".".join(parts[:i]))
        if spec is not None:
            is_outside = i == len(parts) - 1 and spec.name not in sys.modules
            return _in_module(spec.name, parts[-1]) if is_outside else None
    return None


def written_signature(path: str) -> Signature | None:
    """Return how what a dotted path names is called, as far as its text tells."""
    definition = find_definition(path)
    return None if definition is None else definition.signature()


def is_ours_alone(path: str) -> bool:
    """Tell whether a dotted path names a class or function of ESPnet3 that derives from no other.

    False also where the text does not tell.
    """
    definition = find_definition(path)
    if definition is None or isinstance(definition.node, ast.FunctionDef):
        return definition is not None and definition.is_ours and not definition.node.decorator_list
    above = definition.lineage()
    return above is not None and all(each.is_ours for each in above)


def _spec(name: str) -> ModuleSpec | None:
    """Return where a module is; the packages around it are not imported."""
    first, *rest = name.split(".")
    try:
        spec = find_spec(first)  # of a name without dots, this imports nothing
        for i, part in enumerate(rest):
            places = spec.submodule_search_locations if spec is not None else None
            if places is None:
                return None
            spec = PathFinder.find_spec(".".join([first, *rest[:i], part]), list(places))
    # KeyError: a namespace package inside another, whose place only an import tells.
    except (ImportError, ValueError, AttributeError, KeyError):
        return None
    return spec


def _in_module(module: str, name: str, steps: int = _MOST_STEPS) -> Definition | None:
    """Follow a name through the imports of modules to where it is defined."""
    spec = _spec(module)
    file = spec.origin if spec is not None else None
    if spec is None or file is None or not file.endswith(".py") or not steps:
        return None
    bound = _names_of(file).get(name, [])
    if len(bound) != 1:
        return None
    found = bound[0]
    if isinstance(found, ast.ClassDef | ast.FunctionDef):
        return Definition(module, file, found)
    if isinstance(found, tuple):
        level, source, original = found
        package = module if spec.submodule_search_locations is not None else spec.parent or ""
        start = package.split(".")[: len(package.split(".")) - level + 1] if level else []
        return _in_module(".".join([*start, *filter(None, [source])]), original, steps - 1)
    return None


def _names_of(file: str) -> dict[str, list[_Bound]]:
    try:
        stat = os.stat(file)
        return _read(file, stat.st_mtime_ns, stat.st_size)
    except (OSError, SyntaxError, ValueError):
        return {}


@lru_cache(maxsize=256)
def _read(file: str, mtime: int, size: int) -> dict[str, list[_Bound]]:
    """Return what binds each name at the top of a module; None for what is not followed."""
    with open(file, "rb") as source:
        tree = ast.parse(source.read())
    found = dict[str, list[_Bound]]()
    for name, what in _bindings(tree.body):
        found.setdefault(name, []).append(what)
    return found


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, _Bound]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            yield statement.name, statement
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                what = (statement.level, statement.module or "", alias.name)
                yield alias.asname or alias.name, what
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                yield alias.asname or alias.name.partition(".")[0], None
        else:
            # In a branch or a loop, or assigned: which of them counts shows when it runs.
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
                    yield node.id, None
                elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield node.name, None
                elif isinstance(node, ast.alias):
                    yield node.asname or node.name.partition(".")[0], None


def _signature(function: ast.FunctionDef) -> Signature | None:
    decorators = {ast.unparse(each) for each in function.decorator_list}
    if not decorators <= _KEEPS_SIGNATURE:
        return None
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    found = [
        _parameter(each, default, Parameter.POSITIONAL_ONLY)
        if each in arguments.posonlyargs
        else _parameter(each, default, Parameter.POSITIONAL_OR_KEYWORD)
        for each, default in zip(positional, [*required, *arguments.defaults], strict=True)
    ]
    if arguments.vararg is not None:
        found.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    found += [
        _parameter(each, default, Parameter.KEYWORD_ONLY)
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg is not None:
        found.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(found)


def _parameter(argument: ast.arg, default: ast.expr | None, kind: Any) -> Parameter:
    value = Parameter.empty if default is None else _literal(default)
    return Parameter(argument.arg, kind, default=value)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return UNREAD
