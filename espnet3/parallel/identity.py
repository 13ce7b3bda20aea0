"""What the results of a run depend on, key by key, so that a change can be named."""

import ast
import hashlib
import inspect
import os
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from espnet3.config.fingerprint import diff, file_identity, files_in, flatten, same_file
from espnet3.shards.items import items_digest
from espnet3.shards.manifest import Manifest

if TYPE_CHECKING:
    from espnet3.shards.items import Items

# Where and how fast things run must not change results, so it may differ between two sessions.
_NOT_RESULTS = ("config.parallel", "config.device", "config.num_device", "config.num_nodes")


def describe_run(
    runner: type, provider: Any, items: "Items", batch_size: int | None
) -> dict[str, Any]:
    """Return all that the results depend on, flat: items, batching, code, config and parameters."""
    described: dict[str, Any] = {
        "items": items_digest(items),
        "batch_size": batch_size,
        "runner": _name(runner),
        "runner.code": source_digest(runner),
        "provider": _name(type(provider)),
        "provider.code": source_digest(type(provider)),
    }
    ignored = (*_NOT_RESULTS, *getattr(provider, "fingerprint_ignore", ()))
    for name, value in sorted(_state(provider).items()):
        for key, leaf in flatten(value, name.lstrip("_")).items():
            if not any(key == skip or key.startswith((f"{skip}.", f"{skip}_")) for skip in ignored):
                described[key] = leaf
    return described


def _state(provider: Any) -> dict[str, Any]:
    try:
        return dict(vars(provider))
    except TypeError:
        return {}


def _name(cls: type) -> str:
    # `__main__` is where a script is run from, not what it is.
    return cls.__qualname__.rpartition("<locals>.")[2]


def source_digest(cls: type) -> str:
    """Return a digest of the code of a class and of its bases outside this package.

    Comments, docstrings and layout do not count.
    """
    parts = [_normal_source(base) for base in cls.__mro__ if _is_users(base)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _is_users(cls: type) -> bool:
    return cls is not object and not cls.__module__.startswith(("espnet3.", "abc", "typing"))


def _normal_source(cls: type) -> str:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError, IndexError):
        return _normal_code(cls)  # typed at a prompt, or made by exec
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node)
    return ast.unparse(tree)


def _drop_docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:] or [ast.Pass()]


def _normal_code(cls: type) -> str:
    functions = {name: inspect.unwrap(getattr(cls, name)) for name in sorted(vars(cls))
                 if callable(getattr(cls, name))}  # fmt: skip
    return "\n".join(
        f"{name} {_constants(function.__code__)}"
        for name, function in functions.items()
        if hasattr(function, "__code__")
    )


def _constants(code: Any) -> str:
    inner = [_constants(c) if inspect.iscode(c) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {inner}"


def identify_files(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return size, time and checksum of each file that the config names."""
    return files_in(described)


def changes(manifest: Manifest, described: Mapping[str, Any]) -> list[str]:
    """Return what differs between a run's manifest and the run that is asked for, line by line."""
    lines = diff(manifest.fingerprint, described)
    for key, old in manifest.files.items():
        path = described.get(key)
        if path != manifest.fingerprint.get(key):
            continue  # another file: the line above says so
        if not os.path.isfile(str(path)):
            lines.append(f"{key}: the file {path} is gone")
        elif not same_file(old, str(path)):
            new = file_identity(str(path))
            lines.append(
                f"{key}: the file {path} has other content "
                f"({old['size']} bytes then, {new['size']} bytes now)"
            )
    return lines
