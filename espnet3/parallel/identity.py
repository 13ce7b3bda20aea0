"""Fingerprint of a run: everything its results depend on, key by key."""

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3.config.content import WEIGHTS, changed_files, is_same
from espnet3.config.fingerprint import diff, files_in, flatten, setting_of
from espnet3.config.redact import REDACTED, mask, stands_for
from espnet3.parallel.code_digests import RULE, code_in, describe_modules, module_of, modules_above
from espnet3.shards.items import items_digest
from espnet3.shards.manifest import Manifest
from espnet3.text import first_few

if TYPE_CHECKING:
    from espnet3.parallel.base_runner import BaseRunner
    from espnet3.shards.items import Items

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
