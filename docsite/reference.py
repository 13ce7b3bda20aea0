"""Write the reference pages: config keys from their models, commands from their parsers, the API
from its docstrings. Nothing of it is kept in the repository, so that it cannot be out of date."""

import importlib
import inspect
import io
import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout, suppress
from typing import Any
from unittest.mock import patch

from espnet3.cli.main import VERBS, main
from espnet3.cli.schema import ContextConfig, file_model, trainer_arguments
from espnet3.systems.base.stages import STAGES

PUBLIC = {
    "espnet3.parallel": (
        "set_parallel", "use_parallel", "get_parallel_config", "parallel_map", "get_client",
        "BaseRunner", "EnvironmentProvider", "register_backend",
    ),
    "espnet3.parallel.config": ("ParallelConfig",),
    "espnet3.shards.merge": ("join_files",),
    "espnet3.systems.base.inference_provider": ("InferenceProvider",),
    "espnet3.systems.base.inference_runner": ("InferenceRunner",),
    "espnet3.systems.base.system": ("BaseSystem",),
    "espnet3.systems.base.stages": ("stage",),
    "espnet3.cli.recipe": ("run_recipe",),
    "espnet3.trainer": ("train",),
    "espnet3.components.data.data_organizer": ("DataOrganizer",),
    "espnet3.components.data.dataset_builder": ("DatasetBuilder",),
    "espnet3.components.data.corpus": ("Corpus",),
    "espnet3.components.data.file_durations": ("measure_files",),
    "espnet3.systems.asr.metrics.wer": ("WER",),
    "espnet3.systems.asr.metrics.cer": ("CER",),
    "espnet3.systems.asr.inference": ("Speech2Text",),
}  # fmt: skip
"""What users import, by module."""

_FILES = {
    "training": "Stages 1 to 5: `--training_config`.",
    "inference": "`infer`: `--inference_config`.",
    "metrics": "`measure` and `report`: `--metrics_config`.",
    "publication": "`pack_model` and `upload_model`: `--publication_config`.",
}
_LIGHTNING = "https://lightning.ai/docs/pytorch/stable/common/trainer.html"


def make_pages() -> dict[str, str]:
    """Return the text of each generated page, by its path in `docs/`."""
    return {
        "reference/keys.md": _keys(),
        "reference/commands.md": _commands(),
        "reference/api.md": _api(),
    }


# Keys


def _keys() -> str:
    parts = [
        "# Configuration keys\n\nEvery key that a stage or a command reads, from the models that "
        "check it. What a key in a file does that is not here: "
        "[Unused settings](../recipes.md#unused-settings). Editors can check all of them: "
        "[Editors and shells](../editors.md).\n",
        "## Every config\n\n" + _table(ContextConfig.model_json_schema(by_alias=True), stages=True),
    ]
    blocks: dict[str, tuple[str, dict[str, Any]]] = {}
    for kind, text in _FILES.items():
        schema = file_model(kind).model_json_schema(by_alias=True)
        own = {k: v for k, v in schema["properties"].items() if k not in ContextConfig.model_fields}
        for path, name in _walk(own, schema["$defs"]):
            places, _ = blocks.get(name, ("", {}))
            if f"`{path}`" not in places:
                joined = f"{places}, `{path}`" if places else f"`{path}`"
                blocks[name] = (joined, schema["$defs"][name])
        table = _table({"properties": own}, stages=True)
        parts.append(f"## {kind.capitalize()} config\n\n{text}\n\n{table}")
    parts.append("## Blocks\n")
    for places, block in sorted(blocks.values(), key=lambda entry: entry[0]):
        about = " ".join(block.get("description", "").split())
        parts.append(f"### {places}\n\n{about}\n\n{_table(block)}")
    parts.append(_trainer())
    return "\n\n".join(parts) + "\n"


def _walk(
    properties: Mapping[str, Any], blocks: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each block below some keys."""
    for key, part in properties.items():
        for name, ending in _blocks_of(part):
            if name == "Criterion":  # written as a list
                continue
            path = f"{prefix}{key}{ending}"
            yield path, name
            yield from _walk(blocks[name].get("properties", {}), blocks, f"{path}.")


def _blocks_of(part: Mapping[str, Any], ending: str = "") -> Iterator[tuple[str, str]]:
    if "$ref" in part:
        yield part["$ref"].rpartition("/")[2], ending
    for choice in [*part.get("anyOf", ()), *part.get("oneOf", ())]:
        yield from _blocks_of(choice, ending)
    if isinstance(part.get("items"), dict):
        yield from _blocks_of(part["items"], f"{ending}[]")
    if isinstance(part.get("additionalProperties"), dict):
        yield from _blocks_of(part["additionalProperties"], f"{ending}.NAME")


def _table(schema: Mapping[str, Any], *, stages: bool = False) -> str:
    required = schema.get("required", ())
    lines = ["| key | type | default | meaning |" + " read by |" * stages]
    lines.append("|---|---|---|---|" + "---|" * stages)
    for key, part in schema["properties"].items():
        cells = [f"`{key}`", _type(part), _default(part, key in required), _meaning(part)]
        cells += [_readers(key)] if stages else []
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


_NAMES = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}


def _type(part: Mapping[str, Any]) -> str:
    """Return the type in words."""
    choices = part.get("anyOf") or part.get("oneOf")
    if choices:
        words = [_type(choice) for choice in choices if choice.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "const" in part:
        return f"`{part['const']}`"
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if "$ref" in part or part.get("type") == "object":
        return "mapping"
    if part.get("type") == "array":
        if part.get("items", {}).get("$ref", "").endswith("/Criterion"):
            return "list of `[metric, number, min or max]`"
        inner = _type(part["items"]) if part.get("items") else "any"
        return f"list of {'texts' if inner == 'text' else inner}"
    return _NAMES.get(part.get("type", ""), "any") + _limits(part)


def _limits(part: Mapping[str, Any]) -> str:
    is_integer = part.get("type") == "integer"
    if part.get("exclusiveMinimum") == 0:
        return ", 1 or more" if is_integer else " above 0"
    if "minimum" in part:
        return f", {part['minimum']:g} or more"
    return ""


def _default(part: Mapping[str, Any], is_required: bool) -> str:
    if is_required:
        return "required"
    value = part.get("default")
    if value in (None, "", [], {}) or isinstance(value, dict):
        return ""
    spelled = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{spelled.removesuffix('.0')}`"


def _meaning(part: Mapping[str, Any]) -> str:
    return " ".join(part.get("description", "").split())


def _readers(key: str) -> str:
    readers = [
        stage.name
        for stage in STAGES
        if any(read == key or read.startswith(f"{key}.") for read in stage.reads)
    ]
    if key == "launch":
        readers = ["[`espnet3 launch`](commands.md#espnet3-launch)"]
    everywhere = key in ("recipe_dir", "exp_tag", "exp_dir", "vars", "defaults")
    return "all" if everywhere else ", ".join(readers)


def _trainer() -> str:
    rows = [
        f"| `{name}` | {'' if default is None else f'`{default!s}`'} |"
        for name, default in trainer_arguments()
    ]
    about = (
        f"Arguments of [Lightning's `Trainer`]({_LIGHTNING}), passed on as they are; what may be "
        "set, and what ESPnet3 does itself: [the trainer block](../training.md#the-trainer-block)."
    )
    return "\n".join([f"### `trainer`\n\n{about}\n", "| key | default |", "|---|---|", *rows])


# Commands


def _commands() -> str:
    parts = [
        "# Commands\n\nWhat `espnet3 COMMAND --help` prints. The exit code is 0 if all went well, "
        "1 after an error, 2 for a wrong call, 130 after Ctrl-C.\n"
    ]
    for verb, text in VERBS.items():
        parts.append(f"## espnet3 {verb}\n\n{text[0].upper()}{text[1:]}.\n\n{_help(verb)}")
    return "\n\n".join(parts) + "\n"


def _help(verb: str) -> str:
    printed = io.StringIO()
    # argparse wraps its text at the width of the terminal, which is not that of a page.
    with patch.dict(os.environ, {"COLUMNS": "92", "NO_COLOR": "1"}), redirect_stdout(printed):
        with suppress(SystemExit):  # with which argparse ends the program after its help
            main([verb, "--help"])
    return f"```text\n{printed.getvalue().rstrip()}\n```"


# API


def _api() -> str:
    parts = [
        "# Python API\n\nThe names that recipes and scripts import. All others may change without "
        "notice.\n"
    ]
    for module, names in PUBLIC.items():
        parts.append(f"## {module}")
        loaded = importlib.import_module(module)
        parts += [_describe(name, getattr(loaded, name)) for name in names]
    return "\n\n".join(parts) + "\n"


def _describe(name: str, value: Any) -> str:
    parts = [f"### `{name}`", _signature(name, value), _docstring(value)]
    if inspect.isclass(value):
        parts += [
            f"#### `{name}.{method}`\n\n{_signature(method, found)}\n\n{_docstring(found)}"
            for method, found in _methods(value)
        ]
    return "\n\n".join(part for part in parts if part)


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name in vars(kind):
        found = inspect.getattr_static(kind, name)
        plain = found.__func__ if isinstance(found, staticmethod | classmethod) else found
        if not name.startswith("_") and inspect.isfunction(plain) and plain.__doc__:
            yield name, plain


def _signature(name: str, value: Any) -> str:
    try:
        parameters = inspect.signature(value)
    except (ValueError, TypeError):
        return ""
    kept = [each for each in parameters.parameters.values() if each.name not in ("self", "cls")]
    shown = ", ".join(_parameter(each) for each in kept)
    stars = [i for i, each in enumerate(kept) if each.kind is each.KEYWORD_ONLY]
    if stars and not any(each.kind is each.VAR_POSITIONAL for each in kept):
        words = [_parameter(each) for each in kept]
        words.insert(stars[0], "*")
        shown = ", ".join(words)
    line = f"{name}({shown})"
    if len(line) > 88:
        line = f"{name}(\n    {shown.replace(', ', ',' + chr(10) + '    ')},\n)"
    return f"```python\n{line}\n```"


def _parameter(parameter: inspect.Parameter) -> str:
    name = str(parameter.replace(annotation=inspect.Parameter.empty))
    return re.sub(r"<[^>]+>", "...", name).replace(" = ", "=")


_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Example|Examples|Attributes|Note):\s*$")


def _docstring(value: Any) -> str:
    """Return a docstring in Google style as Markdown."""
    lines = (inspect.getdoc(value) or "").splitlines()
    parts: list[str] = []
    section, body = "", list[str]()
    for line in [*lines, "Note:"]:
        match = _SECTION.match(line)
        if match is None:
            body.append(line)
            continue
        parts.append(_section(section, textwrap.dedent("\n".join(body)).strip("\n")))
        section, body = match[1], []
    return "\n\n".join(part for part in parts if part)


def _section(name: str, body: str) -> str:
    if not name or not body:
        return body
    if name.startswith("Example"):
        return f"**{name}**\n\n```python\n{body}\n```"
    if name in ("Args", "Raises", "Attributes"):
        items = re.sub(r"^(\S[^:\n]*): ?", r"- `\1`: ", body, flags=re.MULTILINE)
        return f"**{name}**\n\n" + re.sub(r"\n\s+", " ", items)
    return f"**{name}**\n\n{body}"
