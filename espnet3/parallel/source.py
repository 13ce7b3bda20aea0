"""The code that results depend on: of a class, and of what it uses from its own module."""

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from espnet3.config.fingerprint import digest, flatten

_PLAIN = (str, bytes, int, float, bool, type(None), tuple, list, dict, set, frozenset)
_MAX_VALUES = 1000
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def describe_code(thing: Any) -> dict[str, Any]:
    """Return a digest of the code of a class or function, and of what it uses of its module.

    Functions and classes are followed, constants are compared by value; what is imported from
    another module is not looked at, and comments, docstrings and layout do not count. Code of
    ESPnet3 and of Python itself is left out.
    """
    things = thing.__mro__ if isinstance(thing, type) else [thing]
    own = [each for each in things if _is_users(each)]
    described: dict[str, Any] = {"": _digest("\n".join(map(_normal_source, own)))}
    names = {getattr(each, "__name__", "") for each in own}
    for each in own:
        described.update(_used_globals(each, seen=names))
    return described


def digest_source(text: str) -> str:
    """Return a digest of the code of a module; comments, docstrings and layout do not count."""
    return _digest(_normalised(ast.parse(text)))


def _is_users(thing: Any) -> bool:
    package = str(getattr(thing, "__module__", "")).partition(".")[0]
    return package not in ("espnet3", "builtins", "abc", "typing")


def _used_globals(cls: Any, seen: set[str]) -> dict[str, Any]:
    module = vars(sys.modules.get(cls.__module__, object))
    found: dict[str, Any] = {}
    todo = list(_names_in(cls))
    while todo:
        name = todo.pop()
        if name in seen or name not in module:
            continue
        seen.add(name)
        value = module[name]
        if isinstance(value, FunctionType | type) and value.__module__ == cls.__module__:
            found[f".{name}"] = _digest(_normal_source(value))
            todo += _names_in(value)
        elif isinstance(value, _PLAIN) and not name.startswith("__"):
            found[f".{name}"] = _short_value(value)
    return found


def _short_value(value: Any) -> Any:
    if isinstance(value, str | bytes | int | float | None):
        return flatten(value, "value").get("value")
    if len(value) > _MAX_VALUES:  # a table: too long to look at each time
        return f"{type(value).__name__} of {len(value)}"
    return digest(flatten(value))[:16]


def _names_in(thing: Any) -> Iterator[str]:
    """Yield the global names that a function, or a class's functions, may use."""
    functions = vars(thing).values() if isinstance(thing, type) else [thing]
    for function in functions:
        function = getattr(function, "__func__", getattr(function, "fget", function))
        if isinstance(function, FunctionType):
            yield from _names_of_code(inspect.unwrap(function).__code__)


def _names_of_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of_code(constant)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _normal_source(thing: Any) -> str:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError, IndexError):
        return _normal_code(thing)  # typed at a prompt, or made by exec
    return _normalised(tree)


def _normalised(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, _Documented):
            _drop_docstring(node)
    return ast.unparse(tree)


def _drop_docstring(node: "_Documented") -> None:
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:] or [ast.Pass()]


def _normal_code(thing: Any) -> str:
    named = sorted(vars(thing).items()) if isinstance(thing, type) else [("", thing)]
    parts = []
    for name, function in named:
        function = getattr(function, "__func__", function)
        if isinstance(function, FunctionType):
            parts.append(f"{name} {_constants(function.__code__)}")
    return "\n".join(parts)


def _constants(code: CodeType) -> str:
    # Flat, because the order in which a set is written changes from process to process.
    inner = [_constants(c) if isinstance(c, CodeType) else flatten(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {inner}"
