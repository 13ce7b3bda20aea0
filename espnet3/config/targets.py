"""Import the object that a `_target_` names, or read it from its text, and explain failures."""

import ast
import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from inspect import Parameter, Signature
from types import ModuleType
from typing import TYPE_CHECKING, Any

from espnet3.config.sources import join_key
from espnet3.config.trust import PackedModelError, current_trust
from espnet3.errors import ConfigError, closest, suggest

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


_PACKAGES = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "espnet2": "espnet",
    "faiss": "faiss-cpu",
    "git": "GitPython",
    "jose": "python-jose",
    "magic": "python-magic",
    "nemo": "nemo_toolkit",
    "OpenSSL": "pyOpenSSL",
    "PIL": "Pillow",
    "pyannote": "pyannote.audio",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "whisper": "openai-whisper",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}
"""Modules whose package is called otherwise: `pip install` of the module finds none, or another."""

RESERVED = ("_target_", "_args_", "_recursive_", "_convert_", "_partial_")


class BadTarget(Exception):
    """A dotted path that breaks off; the text ends "model._target_ is 'a.b', but ..."."""


@dataclass(frozen=True)
class BadArgument:
    """Reason why arguments do not fit a signature."""

    reason: str
    name: str = ""
    """The argument that the target does not have, if that is the reason."""
    hint: str = ""
    known: tuple[str, ...] = ()
    """The arguments that the target has."""

    def hint_at(
        self, key: str, node: Mapping[str, Any], loaded: "LoadedConfig | None" = None
    ) -> str:
        """Return what to write for the argument in the node with this key."""
        from espnet3.config.advice import did_you_mean  # for errors only

        if not self.name:
            return self.hint
        full = join_key(key, self.name)
        return did_you_mean(full, node.get(self.name), self.known, loaded) or self.hint


def locate(path: str) -> Any:
    """Import what the dotted path names.

    Raises:
        BadTarget: A part of the path does not exist. An error raised inside an imported module is
            passed on as it is.
        PackedModelError: A packed model asks for it, and it is no part of ESPnet3.
    """
    trust = current_trust()
    if trust is not None and not trust.code and not trust.allows(path):
        raise PackedModelError(
            f"The packed model {trust.root} names {path!r:.80}, which is no part of ESPnet3: "
            "importing it would run foreign code. If you trust those who packed the model: "
            "from_packed(path, trust_remote_code=True)"
        )
    first, *rest = path.split(".")
    if not rest:
        raise BadTarget(f"a target needs its module. Write: _target_: package.module.{path}")
    if not all((first, *rest)):
        raise BadTarget("a part between two dots is empty. Write: _target_: package.module.Name")
    found: Any = _import_first(path, first)
    for i, part in enumerate(rest, start=1):
        parent = path.split(".")[:i]
        found = _step(found, ".".join(parent), part, ".".join(rest[i:]))
    return found


def locate_callable(path: str) -> Any:
    """Import a class or a function.

    Raises:
        BadTarget: There is none, or it is something else, such as a module.
    """
    found = locate(path)
    if isinstance(found, ModuleType):
        known = _names_in(found)
        # Its own, not what it imports.
        own = [n for n in known if getattr(getattr(found, n, None), "__module__", "") == path]
        example = next(iter(own), "NAME")
        raise BadTarget(
            f"that is a module, no class or function. It has: {_listing(own or known)}. Write: "
            f"_target_: {path}.{example}"
        )
    if not callable(found):
        raise BadTarget(
            f"that is {found!r:.80}, of type {type(found).__name__}, which is not callable. Write "
            "the dotted path of a class or function: _target_: package.module.Name"
        )
    return found


def _import_first(path: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The module is there, and one that it imports is not.
        if error.name != name:
            raise
    if name in _PACKAGES:
        raise BadTarget(
            f"there is no module {name!r}; its package is called {package_of(name)!r}. Install it: "
            f"pip install {package_of(name)}"
        )
    known = {module.name for module in pkgutil.iter_modules()} | set(sys.builtin_module_names)
    raise BadTarget(
        f"there is no module {name!r}.{suggest(name, known)} If it is yours, put the folder that "
        f"holds it on the path: export PYTHONPATH=FOLDER:$PYTHONPATH; if not, pip install {name}"
    )


def package_of(module: str) -> str:
    """Return what to install for a module that is missing; often it has the same name."""
    return _PACKAGES.get(module.partition(".")[0], module.partition(".")[0])


def install_hint(error: BaseException) -> str:
    """Return ` (pip install PyYAML)` where a well-known module is missing; empty otherwise.

    Any other may be one of the user's own.
    """
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return f" (pip install {package_of(name)})" if name in _PACKAGES else ""


def _step(parent: Any, parent_path: str, part: str, rest: str) -> Any:
    # Before submodules: a package may export a class under the name of one of its modules.
    if hasattr(parent, part):
        return getattr(parent, part)
    if isinstance(parent, ModuleType):
        try:
            return importlib.import_module(f"{parent_path}.{part}")
        except ModuleNotFoundError as error:
            # "a.b is not a package" has the name "a.b.c" as well.
            if error.name != f"{parent_path}.{part}":
                raise
    known = _names_in(parent)
    close = closest(part, known)
    hint = f"It has: {_listing(known)}."
    if close:
        fixed = ".".join(filter(None, [parent_path, close, rest]))
        hint = f"Did you mean {close!r}? Write: _target_: {fixed}"
    raise BadTarget(f"{parent_path!r} has no {part!r}. {hint}")


def _names_in(parent: Any) -> list[str]:
    submodules = pkgutil.iter_modules(getattr(parent, "__path__", []))
    names = {module.name for module in submodules} | set(dir(parent))
    return sorted(name for name in names if not name.startswith("_"))


def _listing(names: Iterable[str], limit: int = 12) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "") or "nothing public"


def signature_of(target: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature, or None for one written in C that does not tell it."""
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def signature_at(path: str, *, with_defaults: bool = False) -> inspect.Signature | None:
    """Return the signature of what a dotted path names; it is imported if its text does not tell.

    Args:
        path: of a class or function.
        with_defaults: each default is needed as it is; else it may be `UNREAD`.

    Raises:
        BadTarget: There is no such thing.
    """
    written = written_signature(path)
    parameters = written.parameters.values() if written is not None else ()
    if written is None or (with_defaults and any(p.default is UNREAD for p in parameters)):
        return signature_of(locate(path))
    return written


def signature_without_import(path: str) -> inspect.Signature | None:
    """Return the same of what is loaded already, or as far as the text tells; nothing is raised."""
    if path.rpartition(".")[0] not in sys.modules:
        return written_signature(path)
    try:
        return signature_of(locate(path))
    except (BadTarget, PackedModelError):
        return None  # the check of targets has the words for it


def find_bad_argument(signature: inspect.Signature, node: Mapping[str, Any]) -> BadArgument | None:
    """Return why the arguments of a config node do not fit, or None if they do."""
    names = [name for name in node if name not in RESERVED]
    try:
        signature.bind(*node.get("_args_", ()), **dict.fromkeys(names))
    except TypeError as error:
        return _diagnose(signature, names, str(error))
    return None


def unknown_arguments(
    signature: inspect.Signature, key: str, node: Mapping[str, Any]
) -> Iterator[ConfigError]:
    """Yield an error for each argument in the node with this key that its target does not have."""
    left = dict(node)
    while (bad := find_bad_argument(signature, left)) is not None and bad.name:
        yield _refusal(bad, key, node)
        del left[bad.name]


def _diagnose(signature: inspect.Signature, names: list[str], reason: str) -> BadArgument:
    parameters = signature.parameters.values()
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [name for name in names if name not in known]
    if unknown and not takes_any:
        # One that is set as well may be meant: a file has `channels`, an override `channls`.
        hint = suggest(unknown[0], known) or f" It takes: {', '.join(known) or 'nothing'}."
        reason = f"it takes no argument {unknown[0]!r}"
        return BadArgument(reason, unknown[0], hint, tuple(known))
    missing = [p.name for p in parameters if p.default is p.empty and p.name in known]
    lines = "; ".join(f"{name}: VALUE" for name in missing if name not in names)
    return BadArgument(reason, hint=f" Write: {lines}" if lines and "missing" in reason else "")


def refuse_argument(bad: BadArgument | None, key: str, node: Mapping[str, Any]) -> None:
    """Raise if an argument in the node with this key is none of its target.

    Raises:
        ConfigError: naming the argument.
    """
    if bad is not None and bad.name:
        raise _refusal(bad, key, node)


def _refusal(bad: BadArgument, key: str, node: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        key=join_key(key, bad.name),
        problem=f"is no argument of {node['_target_']}",
        fix=lambda loaded: bad.hint_at(key, node, loaded),
    )


def check_arguments(
    key: str, target: str, block: Mapping[str, Any], *, hidden: Collection[str] = ()
) -> None:
    """Refuse arguments that a class does not take, those of its base classes included.

    Args:
        key: of the block, such as `runner`.
        target: dotted path of the class.
        block: its arguments; names that Hydra reserves are let pass.
        hidden: arguments that others than users give, which are not worth a mention.

    Raises:
        ConfigError: there is no such class, or it takes no such arguments.
    """
    # Not on the start-up path of workers.
    from espnet3.config.advice import did_you_mean, raise_together

    definition = find_definition(target)
    known = definition.argument_names() if definition is not None else None
    if known is None:
        try:
            known = argument_names(locate_callable(target))
        except BadTarget as bad:
            name = join_key(key, "_target_")
            raise ConfigError(key=name, value=target, problem=f"but {bad}") from None
    if known is None:
        return
    takes = f"It takes: {', '.join(sorted(known.difference(hidden))) or 'nothing'}."

    def refused(name: str) -> ConfigError:
        full = join_key(key, name)
        hint = partial(did_you_mean, full, block[name], sorted(known))
        problem = f"is no argument of {target}"
        return ConfigError(key=full, problem=problem, fix=lambda loaded: hint(loaded) or takes)

    raise_together([refused(name) for name in block if name not in {*known, *RESERVED}])


def argument_names(target: Any) -> set[str] | None:
    """Return the names that can be given; None if any can.

    A class that hands `**kwargs` on to its base class takes the names of that one as well.
    """
    names: set[str] = set()
    if (
        _is_class(target)
        and target.__init__ is object.__init__
        and target.__new__ is object.__new__
    ):
        return names  # it takes none; the signature of object's own method would let all pass
    # Each class's own: an inherited one comes up again with its own class.
    functions = [vars(cls).get("__init__") for cls in target.__mro__] if _is_class(target) else []
    for function in [f for f in functions if f is not None] or [target]:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return None
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names - {"self"}
    return None


def _is_class(target: Any) -> bool:
    return isinstance(target, type)


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
