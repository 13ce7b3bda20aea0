"""The statements of a script that given definitions of it depend on.

A module of the user's own counts as a whole. A script does not: the lines that choose workers and
call the runner are edited all the time, and change no result. So of the script that runs, only that
counts which can be reached by name from the definitions that are used: what binds such a name, what
may change it, and all that these mention. Where code looks names up by itself (`globals()`,
`eval`), everything counts.
"""

import ast
import builtins
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from espnet3.parallel.module_source import (
    Import,
    ModuleText,
    is_for_type_checkers,
    names_bound_in,
    names_changed_in,
    parse_module,
    root_name,
    without_texts,
)
from espnet3.parallel.own_modules import imported_names

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
LOOKUPS = {"globals", "exec", "eval", "vars", "locals", "__import__"}
# They look, and leave what they are given as it is.
_HARMLESS = {
    "print", "len", "range", "isinstance", "issubclass", "str", "repr", "id", "type", "sorted",
    "sum", "min", "max", "hash", "int", "float", "bool", "list", "tuple", "dict", "set",
    "frozenset", "enumerate", "zip", "abs", "round", "format", "any", "all", "hasattr",
    "callable",
}  # fmt: skip
_CALLERS = {"espnet3.trainer.train", "espnet3.config.load.load_config"}
"""Of ours, which leave the classes and functions that they are given as they are."""
# Their state is no result.
_NO_RESULTS = {"logging", "warnings", "sys", "time", "argparse", "espnet3", "pathlib"}


@dataclass
class _Statement:
    """A statement at the top of a script, however deep in `if`, `for` or `with`."""

    node: ast.stmt
    headers: list[ast.AST]
    """What stands above it: conditions, loops."""
    binds: set[str] = field(default_factory=set)
    mentions: set[str] = field(default_factory=set)
    touches: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    registers: set[str] = field(default_factory=set)
    """What decorates it as a method, such as `TABLE.add`."""
    looks_up: bool = False
    """Whether functions in it find names that they do not mention."""
    sets_unnamed: bool = False
    """Whether it may bind names that it does not mention."""


def reachable_part(
    script: ModuleText,
    names: set[str],
    values: Mapping[str, Any],
    is_data: Callable[[str], bool],
) -> ModuleText:
    """Return the part of a script that these definitions of it depend on.

    Args:
        script: the whole of it.
        names: what is used of it.
        values: what its names hold now.
        is_data: whether the value of a name is described as such, so that how it came about
            does not matter.
    """
    statements = list(_statements(script.tree.body, [], values))
    effects = _effects(statements)
    mentioned = {name for each in statements for name in each.mentions}
    needed = set(names)
    taken: set[int] = set()
    found_more = True
    # More than once, because a statement may need what one further up does.
    while found_more:
        found_more = False
        for i, each in enumerate(statements):
            is_wanted = _is_for_its_effect(each, mentioned)
            if i not in taken and (is_wanted or _counts(each, needed, effects, values, is_data)):
                taken.add(i)
                needed |= each.mentions
                found_more = True
    # What such code finds when it runs cannot be read from its text, so all of the script counts.
    if any(statements[i].looks_up for i in taken):
        taken = set(range(len(statements)))
    nodes = [_in_headers(statements[i]) for i in sorted(taken)]
    text = ast.unparse(ast.fix_missing_locations(ast.Module(nodes, [])))
    return parse_module(text, is_script=True)


def _in_headers(statement: _Statement) -> ast.stmt:
    """Return a statement below what stands above it, without its neighbours."""
    node = statement.node
    for header in reversed(statement.headers):
        if isinstance(header, ast.For | ast.AsyncFor):
            node = ast.For(header.target, header.iter, [node], [])
        elif isinstance(header, ast.With | ast.AsyncWith):
            node = ast.With(header.items, [node])
        elif isinstance(header, ast.If | ast.While):
            if not _is_main_test(header):
                node = ast.If(header.test, [node], [])
        elif isinstance(header, ast.Match):
            node = ast.If(header.subject, [node], [])
    return node


def _is_main_test(header: ast.If | ast.While) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(header.test))


def _statements(
    body: list[ast.stmt], headers: list[ast.AST], values: Mapping[str, Any]
) -> Iterator[_Statement]:
    for node in without_texts(body):
        if is_for_type_checkers(node):
            continue
        blocks = _blocks(node)
        if not blocks:
            yield from (_analyse(each, headers, values) for each in _one_by_one(node))
        for negated, block in blocks:
            header: ast.AST = node
            if negated and isinstance(node, ast.If | ast.While):
                header = ast.If(ast.UnaryOp(ast.Not(), node.test), [], [])
            yield from _statements(block, [*headers, header], values)


def _one_by_one(node: ast.stmt) -> list[ast.stmt]:
    """Return an import statement for each of the names in one."""
    if isinstance(node, ast.Import):
        return [ast.Import([alias]) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
    return [node]


def _blocks(node: ast.stmt) -> list[tuple[bool, list[ast.stmt]]]:
    if isinstance(node, _DEFINITIONS):
        return []
    if isinstance(node, ast.Match):
        return [(False, case.body) for case in node.cases]
    blocks: list[tuple[bool, list[ast.stmt]]] = []
    for name in ("body", "orelse", "finalbody"):
        if inner := getattr(node, name, None):
            blocks.append((name == "orelse", inner))
    blocks += [(False, handler.body) for handler in getattr(node, "handlers", [])]
    return blocks


def _analyse(node: ast.stmt, headers: list[ast.AST], values: Mapping[str, Any]) -> _Statement:
    found = _Statement(node, headers)
    found.binds = set(names_bound_in(node))
    found.mentions = set(_globals_in(node, frozenset()))
    for header in headers:
        for part in _header_parts(header):
            found.binds |= set(names_bound_in(part))
            found.mentions |= set(_globals_in(part, frozenset()))
    found.touches = set(_touched_in(node, values))
    found.calls = set(_called_in(node)) | set(_decorators_of(node))
    found.registers = set(_decorators_of(node, ast.Attribute))
    is_definition = isinstance(node, _DEFINITIONS)
    found.looks_up = is_definition and any(map(_looks_up, ast.walk(node)))
    found.sets_unnamed = not is_definition and any(map(_looks_up, _executed(node)))
    return found


def _header_parts(header: ast.AST) -> list[ast.AST]:
    names = ("test", "target", "iter", "subject", "items")
    parts = [getattr(header, name) for name in names if getattr(header, name, None) is not None]
    return [node for part in parts for node in (part if isinstance(part, list) else [part])]


def _globals_in(node: ast.AST, local: frozenset[str]) -> Iterator[str]:
    """Yield the names that a node mentions and that are not local to a function in it."""
    if isinstance(node, ast.Name):
        if node.id not in local:
            yield node.id
        return
    inner = local
    if isinstance(node, _SCOPES):
        outside = [*getattr(node, "decorator_list", []), *_annotations_and_defaults(node)]
        for each in outside:
            yield from _globals_in(each, local)
        body: Sequence[ast.AST] = node.body if isinstance(node.body, list) else [node.body]
        inner = local | _locals_of(node, body)
        for each in body:
            yield from _globals_in(each, inner)
        return
    for child in ast.iter_child_nodes(node):
        yield from _globals_in(child, inner)


def _annotations_and_defaults(node: Any) -> Iterator[ast.AST]:
    arguments = node.args
    yield from (each for each in (*arguments.defaults, *arguments.kw_defaults) if each is not None)
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    yield from (each.annotation for each in every if each.annotation is not None)
    if getattr(node, "returns", None) is not None:
        yield node.returns


def _locals_of(node: Any, body: Sequence[ast.AST]) -> frozenset[str]:
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    bound = {each.arg for each in every} | {n for each in body for n in names_bound_in(each)}
    declared = {
        name
        for each in body
        for inner in ast.walk(each)
        if isinstance(inner, ast.Global)
        for name in inner.names
    }
    return frozenset(bound - declared)


def _touched_in(node: ast.AST, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield names whose value a statement may change when it runs, without binding them."""
    for inner in _executed(node):
        if isinstance(inner, ast.Attribute | ast.Subscript):
            if not isinstance(inner.ctx, ast.Load):
                yield root_name(inner)
        elif isinstance(inner, ast.Call):
            if isinstance(inner.func, ast.Attribute):
                yield root_name(inner.func.value)
            if getattr(inner.func, "id", "") not in _HARMLESS and not _is_ours(inner.func, values):
                for argument in (*inner.args, *(keyword.value for keyword in inner.keywords)):
                    yield from _handed_over(argument)


def _is_ours(function: ast.expr, values: Mapping[str, Any]) -> bool:
    """Tell whether a call is one of `espnet3.trainer.train`, or the like, by whatever name."""
    value = values.get(root_name(function))
    for part in ast.unparse(function).split(".")[1:]:
        value = getattr(value, part, None)
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    return name in _CALLERS


def _handed_over(argument: ast.AST) -> Iterator[str]:
    if isinstance(argument, ast.List | ast.Tuple | ast.Set):
        for each in argument.elts:
            yield from _handed_over(each)
    elif isinstance(argument, ast.Dict):
        for each in argument.values:
            yield from _handed_over(each)
    else:
        yield root_name(argument)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a statement is passed, which the bodies of functions in it do not."""
    yield node
    if isinstance(node, _SCOPES):
        parts: list[ast.AST] = [*getattr(node, "decorator_list", [])]
        parts += _annotations_and_defaults(node)
    else:
        parts = list(ast.iter_child_nodes(node))
    for part in parts:
        yield from _executed(part)


def _called_in(node: ast.AST) -> Iterator[str]:
    for inner in _executed(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
            yield inner.func.id


def _decorators_of(node: ast.AST, kind: type[ast.expr] = ast.expr) -> Iterator[str]:
    for decorator in getattr(node, "decorator_list", []):
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(called, kind):
            yield root_name(called)


def _effects(statements: list[_Statement]) -> dict[str, set[str]]:
    """Return which globals each function of the script may change, by itself or others."""
    functions = {s.node.name: s.node for s in statements if isinstance(s.node, _SCOPES[:2])}
    effects = {name: set(names_changed_in(node)) for name, node in functions.items()}
    calls = {name: set(_globals_in(node, frozenset())) for name, node in functions.items()}
    # Each round carries an effect one call further, and no chain of calls is longer than this.
    for _ in functions:
        for name in functions:
            for other in calls[name] & effects.keys():
                effects[name] |= effects[other]
    return effects


def _looks_up(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", "") in LOOKUPS
    return getattr(node, "attr", "") == "modules" and root_name(node) == "sys"


def _counts(
    each: _Statement,
    needed: set[str],
    effects: Mapping[str, set[str]],
    values: Mapping[str, Any],
    is_data: Callable[[str], bool],
) -> bool:
    if any(name in needed and not is_data(name) for name in each.binds):
        return True
    if each.sets_unnamed:
        return True
    registers = {name for name in each.registers if not isinstance(values.get(name), ModuleType)}
    changed = each.touches.union(registers, *(effects.get(name, ()) for name in each.calls))
    wanted = changed & needed
    return any(_can_change(name, values) and not is_data(name) for name in wanted)


def _is_for_its_effect(each: _Statement, mentioned: set[str]) -> bool:
    """Tell whether a statement imports all of a module of the user's own, or names without one."""
    node = each.node
    if not isinstance(node, ast.Import | ast.ImportFrom) or each.binds & mentioned:
        return False
    level, module = (0, node.names[0].name) if isinstance(node, ast.Import) else (
        node.level, node.module or ""
    )  # fmt: skip
    return bool(level or imported_names([Import(module)], ""))


def _can_change(name: str, values: Mapping[str, Any]) -> bool:
    if name not in values:
        return not hasattr(builtins, name)
    value = values[name]
    if isinstance(value, ModuleType):
        top = value.__name__.partition(".")[0]
        # Of the standard library, these hold what results may depend on: environment and seed.
        return top not in _NO_RESULTS and (top in ("os", "random") or top not in _stdlib())
    return not isinstance(value, str | bytes | int | float | complex | bool | type(None))


def _stdlib() -> frozenset[str]:
    return frozenset(sys.stdlib_module_names)
