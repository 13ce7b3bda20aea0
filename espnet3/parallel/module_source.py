"""The text of a module, definition by definition, without comments, docstrings and layout.

A module of the user's own counts as a whole. A script does not: the lines that choose workers and
call the runner are edited all the time, and change no result. So of the script that runs, only that
counts which can be reached by name from the definitions that are used: what binds such a name, what
may change it, and all that these mention. Where code looks names up by itself (`globals()`,
`eval`), everything counts.
"""

import ast
import builtins
import hashlib
import io
import math
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from espnet3.config.redact import redact
from espnet3.memory import no_collections

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LONGEST_SHOWN = 60
# Methods that change the containers of Python.
_CHANGING = {
    "add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert",
    "move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault",
    "sort", "subtract", "update",
}  # fmt: skip
_EMPTY_CALLS = {
    "dict", "list", "set", "tuple", "deque", "defaultdict", "OrderedDict", "Counter",
}  # fmt: skip
# What a process asks for, with another answer in each process.
_PASSING = {
    "time", "time_ns", "perf_counter", "monotonic", "process_time", "now", "utcnow", "today",
    "uuid1", "uuid4", "getpid", "urandom", "gethostname", "getnode", "mkdtemp", "mkstemp",
    "gettempdir", "token_hex", "token_bytes", "cpu_count", "device_count", "is_available",
    "get_device_name", "random", "Random", "default_rng", "RandomState", "get_ident",
}  # fmt: skip
# Variables of the environment that tell where and as what a process runs.
_OF_THE_PLACE = re.compile(
    r"(SLURM|PBS|SGE|JOB|LSB|OMPI|PMI|TORCHELASTIC)_\w+|(LOCAL_|GROUP_|NODE_)?RANK|WORLD_SIZE|"
    r"MASTER_(ADDR|PORT)|CUDA_VISIBLE_DEVICES|HOSTNAME|TMPDIR|PWD|OMP_NUM_THREADS"
)

# What runs a file that it is given by name.
_LOADERS = {
    "run_path", "spec_from_file_location", "SourceFileLoader", "load_source", "exec", "execfile",
}  # fmt: skip


@dataclass(frozen=True)
class Import:
    """Request of an import statement, or of a dotted name in a text."""

    module: str
    names: tuple[str, ...] = ()
    level: int = 0
    is_guess: bool = False
    """Whether it only looks like the name of a module, such as that of a `_target_`."""


@dataclass
class ModuleText:
    """Definitions of a module; two files of the same text have the same definitions."""

    definitions: dict[str, Any] = field(default_factory=dict)
    """A digest of each, or the value itself where it is a plain one; "" for other statements."""
    imports: list[Import] = field(default_factory=list)
    values: dict[str, ast.expr | None] = field(default_factory=dict)
    """What is assigned to a name, attribute or default; None if more than once."""
    functions: dict[str, list[_Function]] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    """Names that the module itself gives something, outside of its functions."""
    imported: dict[str, Import] = field(default_factory=dict)
    """Where names come from that the module only passes on."""
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))
    text: str = ""

    def says(self, name: str, value: Any) -> bool:
        """Tell whether the text alone says that `name` has this value."""
        node = self.values.get(name)
        if node is None:
            return False
        try:
            return _same(ast.literal_eval(node), value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return False

    def starts_plain(self, name: str) -> bool:
        """Tell whether a name begins as a plain literal or an empty container, as a cache does."""
        node = self.values.get(name)
        if isinstance(node, ast.Call):
            callee = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
            callee = callee.id if isinstance(callee, ast.Name) else callee
            return callee in _EMPTY_CALLS and not node.keywords and _are_names(node.args)
        try:
            return node is not None and bool([ast.literal_eval(node)])
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return False

    def differs_by_nature(self, name: str) -> bool:
        """Tell whether a value is another in each process, as a time is; only its text counts."""
        node = self.values.get(name)
        inner = [] if node is None else list(ast.walk(node))
        said = {n.id for n in inner if isinstance(n, ast.Name)}
        said |= {n.attr for n in inner if isinstance(n, ast.Attribute)}
        texts = [str(n.value) for n in inner if isinstance(n, ast.Constant)]
        return bool(_PASSING & said) or any(map(_OF_THE_PLACE.fullmatch, texts))

    def changed_by(self, qualname: str) -> set[str]:
        """Return the global names that a function changes when it runs."""
        nodes = self.functions.get(qualname, [])
        return {name for node in nodes for name in names_changed_in(node)}


def _are_names(nodes: list[ast.expr]) -> bool:
    return all(isinstance(node, ast.Name) for node in nodes)  # defaultdict(list)


def _same(one: Any, other: Any) -> bool:
    """Compare with types: 1, 1.0 and True are equal to Python."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        same_keys = list(map(repr, one)) == list(map(repr, other))
        return same_keys and all(map(_same, one.values(), other.values()))
    # By repr, because NaN differs from itself and -0.0 equals 0.0.
    return bool(repr(one) == repr(other)) if isinstance(one, float) else bool(one == other)


_parsed: dict[tuple[bytes, bool, bool], ModuleText] = {}


def read_module(file: str, *, is_script: bool = False) -> ModuleText:
    """Return what the text of a file says; the same text is parsed once in a process.

    Args:
        file: the path; one that is not of Python counts with all of its bytes.
        is_script: whether it runs as `__main__`, so that what stands under that name counts.
    """
    # Read each time: a file that is written twice within one tick of the file system's clock has
    # the same times and size before and after. It is the parsing that takes long.
    with open(file, "rb") as stream:
        content = stream.read()
    is_python = file.endswith((".py", ".pyw")) or is_script
    key = (hashlib.sha256(content).digest(), is_python, is_script)
    if key not in _parsed:
        with no_collections():  # a tree has many nodes
            _parsed[key] = _parse(content, is_python=is_python, is_script=is_script)
    return _parsed[key]


def _parse(content: bytes, *, is_python: bool, is_script: bool) -> ModuleText:
    if is_python:
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
            text = io.TextIOWrapper(io.BytesIO(content), encoding).read()  # with any line ends
            return parse_module(text, is_script=is_script)
        except (SyntaxError, ValueError, RecursionError):
            pass  # Python itself will say what is wrong with it
    return ModuleText({"": hashlib.sha256(content).hexdigest()[:16]})


def parse_module(text: str, *, is_script: bool = False) -> ModuleText:
    """Return what a text says."""
    found = ModuleText(tree=ast.parse(text), text=text)
    collector = _Collector(found)
    for statement in without_texts(found.tree.body):
        if is_script or not is_main_guard(statement):
            collector.add(statement)
    collector.finish()
    return found


def is_main_guard(node: ast.stmt) -> bool:
    """Tell whether a statement is `if __name__ == "__main__":`, which an import passes by."""
    if not isinstance(node, ast.If) or node.orelse or not isinstance(node.test, ast.Compare):
        return False
    sides = [node.test.left, *node.test.comparators]
    names = [side.id for side in sides if isinstance(side, ast.Name)]
    texts = [side.value for side in sides if isinstance(side, ast.Constant)]
    equal = isinstance(node.test.ops[0], ast.Eq)
    return equal and names == ["__name__"] and texts == ["__main__"]


def is_for_type_checkers(node: ast.AST) -> bool:
    """Tell whether a statement is `if TYPE_CHECKING:`, which never runs."""
    if not isinstance(node, ast.If) or node.orelse:
        return False
    test = node.test
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def without_texts(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a body that do something, which docstrings do not."""
    return [node for node in body if not _is_text(node)]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def digest_text(text: str) -> str:
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}


class Normal:
    """Writes nodes in a form that depends neither on layout nor on the version of Python.

    `ast.unparse` would do, at three times the time.
    """

    def __init__(self) -> None:
        self.imports: list[Import] = []
        self.files: list[Import] = []
        """What texts such as `helper.py` would be as modules."""
        self.loads_files = False
        """Whether something calls what runs a file by its name."""

    def text(self, node: Any) -> str:
        """Return the form of a node, and note what it imports."""
        parts: list[str] = []
        self._write(node, parts.append)
        return "".join(parts)

    def _write(self, node: Any, put: Any) -> None:
        kind = node.__class__
        if kind is ast.Name:
            put(f"`{node.id}")
        elif kind is list:
            put("[")
            for item in node:
                self._write(item, put)
            put("]")
        elif kind is ast.Attribute:
            self._write(node.value, put)
            put(f".{node.attr}")
        elif kind is ast.Constant:
            value = node.value
            put(f"{value!r}'")
            if value.__class__ is str and "." in value:
                self._guess(value)
        elif kind in _FIELDS or isinstance(node, ast.AST):
            self._write_fields(node, kind, put)
        else:
            put(f"{node!r},")

    def _write_fields(self, node: Any, kind: type[ast.AST], put: Any) -> None:
        if kind is ast.Call:
            self._note_call(node)
        elif kind is ast.Import or kind is ast.ImportFrom:
            self._note(node)
        if kind not in _FIELDS:
            skipped = {"ctx", "type_comment", "kind"}
            _FIELDS[kind] = tuple(name for name in kind._fields if name not in skipped)
        put(f"({kind.__name__}")
        for name in _FIELDS[kind]:
            value: Any = getattr(node, name, None)
            # Empty fields are left out: a newer Python has more of them.
            if value is None or value == []:
                continue
            if name == "body" and value.__class__ is list:
                value = without_texts(value) or [ast.Pass()]
            put(f" {name}=")
            self._write(value, put)
        put(")")

    def _note(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            self.imports += [Import(alias.name) for alias in node.names]
        else:
            names = tuple(alias.name for alias in node.names)
            self.imports.append(Import(node.module or "", names, node.level))

    def _note_call(self, node: ast.Call) -> None:
        """Note `import_module("a")` and `import_module(".a", __package__)`."""
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        self.loads_files = self.loads_files or name in _LOADERS
        if name not in ("import_module", "__import__") or not node.args:
            return
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            module = first.value.lstrip(".")
            level = len(first.value) - len(module)
            self.imports.append(Import(module, level=level))

    def _guess(self, text: str) -> None:
        if len(text) >= 200 or not all(part.isidentifier() for part in text.split(".")):
            return
        self.imports.append(Import(text, is_guess=True))
        if text.endswith(".py"):
            self.files.append(Import(text.removesuffix(".py")))


class _Collector:
    """Sorts the statements of a module by what they define."""

    def __init__(self, found: ModuleText) -> None:
        self._found = found
        self._normal = Normal()
        self._parts: dict[str, list[str]] = {}
        self._order: dict[str, list[str]] = {}

    def add(self, node: ast.stmt, prefix: str = "") -> None:
        if isinstance(node, _FUNCTIONS):
            name = prefix + node.name
            self._put(name, node)
            self._found.functions.setdefault(name, []).append(node)
            self._note_defaults(name, node)
            self._found.bound.add(name)
        elif isinstance(node, ast.ClassDef):
            self._add_class(node, prefix)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._add_import(node, prefix)
        elif not is_for_type_checkers(node):
            self._add_other(node, prefix)

    def _add_class(self, node: ast.ClassDef, prefix: str) -> None:
        name = prefix + node.name
        self._found.bound.add(name)
        header = [node.decorator_list, node.bases, node.keywords]
        self._parts.setdefault(name, []).append(self._normal.text(header))
        for inner in without_texts(node.body):
            self.add(inner, f"{name}.")

    def _add_import(self, node: ast.Import | ast.ImportFrom, prefix: str) -> None:
        for alias in node.names:
            one: ast.stmt
            if isinstance(node, ast.Import):
                one = ast.Import([alias])
            else:
                one = ast.ImportFrom(node.module, [alias], node.level)
            bound = alias.asname or alias.name.partition(".")[0]
            if isinstance(node, ast.Import) and alias.asname is None:
                self._normal.text(one)  # its name says all: whoever uses it must say it
            else:
                self._put(prefix.removesuffix(".") if bound == "*" else prefix + bound, one)
            self._found.bound.add(prefix + bound)
            level = 0 if isinstance(node, ast.Import) else node.level
            module = alias.name if isinstance(node, ast.Import) else node.module or ""
            self._found.imported[prefix + bound] = Import(module, (alias.name,), level)

    def _add_other(self, node: ast.stmt, prefix: str) -> None:
        targets = _plain_targets(node)
        for name in targets or [_name_of(node)]:
            key = (prefix + name) if name else prefix.removesuffix(".")
            self._put(key, node)
            self._order.setdefault(prefix, []).append(key if targets else f"*{key}")
            known = key in self._found.values or not targets
            self._found.values[key] = None if known else getattr(node, "value", None)
        self._found.bound.update(prefix + name for name in names_bound_in(node))
        for inner in ast.walk(node):
            if isinstance(inner, _FUNCTIONS):  # under an `if`, or made in a loop
                self._found.functions.setdefault(prefix + inner.name, []).append(inner)

    def _put(self, key: str, node: ast.stmt) -> None:
        self._parts.setdefault(key, []).append(self._normal.text(node))

    def _note_defaults(self, name: str, node: _Function) -> None:
        positional = [*node.args.posonlyargs, *node.args.args]
        given = zip(reversed(positional), reversed(node.args.defaults), strict=False)
        keyword = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        for argument, default in (*given, *keyword):
            key = f"{name}.{argument.arg}"
            self._found.values[key] = None if key in self._found.values else default

    def finish(self) -> None:
        """Turn the parts into digests, and short plain values into themselves."""
        for prefix, order in self._order.items():
            # Where a name is set twice, or a loop fills a table, the order of statements matters.
            if len(set(order)) < len(order) or any(key.startswith("*") for key in order):
                self._parts.setdefault(prefix.removesuffix("."), []).append(f"order {order}")
        for key, parts in self._parts.items():
            self._found.definitions[key] = self._shown(key, "\n".join(parts))
        files = self._normal.files if self._normal.loads_files else []
        self._found.imports = list(dict.fromkeys([*self._normal.imports, *files]))

    def _shown(self, key: str, text: str) -> Any:
        node = self._found.values.get(key)
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        constant = node.operand if negative and isinstance(node, ast.UnaryOp) else node
        if isinstance(constant, ast.Constant) and len(self._parts[key]) == 1:
            value = ast.literal_eval(node)  # type: ignore[arg-type]
            return value if can_be_shown(key, value) else digest_text(text)
        return digest_text(text)


def can_be_shown(key: str, value: Any) -> bool:
    """Tell whether a refusal may show a value: a plain one, neither long nor maybe a secret."""
    if value is not None and type(value) not in (str, int, float, bool):
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if not isinstance(value, str):
        return True
    return len(value) <= _LONGEST_SHOWN and bool(redact({key: value}) == {key: value})


def _plain_targets(node: ast.stmt) -> list[str]:
    """Return the names that an assignment sets, if it sets nothing else."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names if len(names) == len(targets) else []


def _name_of(node: ast.stmt) -> str:
    """Return what a statement is mostly about, for the refusal: a table that a loop fills."""
    loops = {
        id(name)
        for loop in ast.walk(node)
        if isinstance(loop, ast.For | ast.AsyncFor | ast.comprehension)
        for name in ast.walk(loop.target)
    }
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute | ast.Subscript) and not isinstance(inner.ctx, ast.Load):
            dotted = inner.attr if isinstance(inner, ast.Attribute) else ""
            owner = inner.value
            if isinstance(owner, ast.Name):
                return f"{owner.id}.{dotted}" if dotted else owner.id
        is_set = isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
        if is_set and id(inner) not in loops:
            return str(getattr(inner, "id", ""))
        if isinstance(inner, (*_FUNCTIONS, ast.ClassDef)):
            return inner.name
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return function.value.id
    return ""


def names_bound_in(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds where it stands, not inside of functions."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield node.name
        return
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest
    for child in ast.iter_child_nodes(node):
        yield from names_bound_in(child)


def root_name(node: ast.AST) -> str:
    """Return `a` of `a.b[c].d`; empty if it begins with something else."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def names_changed_in(function: ast.AST) -> Iterator[str]:
    """Yield names that a function declares `global`, or whose content it changes."""
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield root_name(node)
        elif isinstance(node, ast.AugAssign):
            yield root_name(node.target)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _CHANGING:
            yield root_name(node.func)


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
    is_own: Callable[[Import], bool],
) -> ModuleText:
    """Return the part of a script that these definitions of it depend on.

    Args:
        script: the whole of it.
        names: what is used of it.
        values: what its names hold now.
        is_data: whether the value of a name is described as such, so that how it came about
            does not matter.
        is_own: whether an import may be of one of the user's own modules.
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
            is_wanted = _is_for_its_effect(each, mentioned, is_own)
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


def _is_for_its_effect(
    each: _Statement, mentioned: set[str], is_own: Callable[[Import], bool]
) -> bool:
    """Tell whether a statement imports all of a module of the user's own, or names without one."""
    node = each.node
    if not isinstance(node, ast.Import | ast.ImportFrom) or each.binds & mentioned:
        return False
    level, module = (0, node.names[0].name) if isinstance(node, ast.Import) else (
        node.level, node.module or ""
    )  # fmt: skip
    return bool(level or is_own(Import(module)))


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
