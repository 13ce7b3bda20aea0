"""The modules of a recipe that others of its modules import, and so depend on."""

import ast
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from espnet3.parallel.source import digest_source


def describe_imports(things: Iterable[Any], recipe_dir: str | os.PathLike[str]) -> dict[str, str]:
    """Return a digest of each module of the recipe that these classes and functions import.

    From the text of the modules, imports inside of functions included: what happens to be loaded
    already must make no difference. The modules of the things themselves are left out, because of
    these it is known which parts are used.

    Args:
        things: classes and functions.
        recipe_dir: the folder that holds the recipe's own modules.
    """
    root = Path(os.path.realpath(recipe_dir))
    start = {str(getattr(thing, "__module__", "")) for thing in things}
    digests: dict[str, str] = {}
    seen, todo = set[str](), list(start)
    while todo:
        name = todo.pop()
        file = None if name in seen else _own_file(name, root)
        seen.add(name)
        if file is not None:
            text = file.read_text(encoding="utf-8")
            todo += _imports(text, name, is_package=file.name == "__init__.py")
            digests[name] = digest_source(text)
    return {name: digests[name] for name in sorted(digests.keys() - start)}


def _own_file(name: str, root: Path) -> Path | None:
    """Return the file of a module, if it is one of the recipe's."""
    try:
        spec = sys.modules[name].__spec__ if name in sys.modules else importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # no module, or one without a file
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    file = Path(os.path.realpath(spec.origin))
    is_own = file.is_relative_to(root) and "site-packages" not in file.parts
    return file if is_own and file.is_file() else None


def _imports(text: str, name: str, *, is_package: bool) -> Iterator[str]:
    """Yield the names of all that a module may import; some are not modules but what they hold."""
    package = name.split(".") if is_package else name.split(".")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from _with_parents(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[: i + 1]) for i in range(len(parts)))
