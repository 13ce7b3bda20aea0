"""What the results of a run depend on, key by key, so that a change can be named."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from espnet3.config.fingerprint import diff, file_identity, flatten, same_file
from espnet3.config.redact import redact
from espnet3.parallel.source import describe_code
from espnet3.shards.items import items_digest
from espnet3.shards.manifest import Manifest

if TYPE_CHECKING:
    from espnet3.parallel.base_runner import BaseRunner
    from espnet3.shards.items import Items

# Where and how fast things run must not change results, so it may differ between two calls.
_NOT_RESULTS = ("config.parallel", "config.device", "config.num_device", "config.num_nodes")


def describe_run(runner: "BaseRunner", items: "Items") -> dict[str, Any]:
    """Return all that the results depend on, flat: items, settings, code, config and parameters."""
    provider = runner.provider
    described: dict[str, Any] = {"items": items_digest(items)}
    for name, value in runner.result_settings().items():
        described.update(flatten(value, name))
    for role, cls in (("runner", type(runner)), ("provider", type(provider))):
        described[role] = _name(cls)
        code = describe_code(cls)
        described.update({f"{role}.code{name}": value for name, value in code.items()})
    for name, value in sorted(_state(provider).items()):
        # Secrets are none of the results', and a manifest is read by others.
        flat = redact(flatten(value, name.lstrip("_")))
        described.update({k: v for k, v in flat.items() if not _is_in_parallel_block(k, flat)})
    ignored = (*_NOT_RESULTS, *getattr(provider, "fingerprint_ignore", ()), *runner.not_results)
    return {key: value for key, value in described.items() if not is_below(key, ignored)}


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


def changes(manifest: Manifest, described: Mapping[str, Any]) -> list[str]:
    """Return what differs between a run's manifest and the run that is asked for, line by line."""
    lines = [_in_words(line) for line in diff(manifest.fingerprint, described)]
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


def _in_words(line: str) -> str:
    """Say that code changed; two digests tell nobody anything."""
    key = line.partition(":")[0]
    is_code = re.fullmatch(r"(runner|provider)\.code(\.\w+)?|code\..+", key)
    both = re.findall(r"'[0-9a-f]{16}'", line)
    return f"{key}: the code changed" if is_code and len(both) == 2 else line
