"""Write JSON Schemas of config files, with which editors complete and check keys.

A file names its schema in its first line, as the files of the templates do:
`# yaml-language-server: $schema=.schema/training.json`.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from espnet3.cli.config_files import KINDS, file_model, trainer_arguments
from espnet3.cli.console import UsageError, make_parser
from espnet3.errors import suggest
from espnet3.io.atomic import write_text
from espnet3.text import on_one_line

FOLDER = ".schema"
"""Beside the config files."""
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFERRED = {
    "type": "string",
    "pattern": r"\$\{.+\}|^\?\?\?$",
    "description": "A value that is found elsewhere, such as ${vars.width}.",
}
_ONE_TEXT = {"type": "string"}
# What a validator turns into the field's own type, so that pydantic's schema does not have it.
_ALSO: Mapping[str, Any] = {
    "best_model_criterion": {
        "type": "array",
        "items": {
            "type": "array",
            "prefixItems": [_ONE_TEXT, {"type": "integer", "minimum": 1}, {"enum": ["min", "max"]}],
            "minItems": 3,
            "maxItems": 3,
        },
    },
    "init": {"anyOf": [_ONE_TEXT, {"type": "object"}, {"type": "array"}]},
    "output_artifacts": {
        "type": "object",
        "additionalProperties": {
            "anyOf": [_ONE_TEXT, {"$ref": "#/$defs/ArtifactConfig"}],
        },
    },
    "model_type": {"const": "char"},
}
_IN_PLACE = ("best_model_criterion", "init", "output_artifacts")
"""Those that stand for the field's own schema, instead of beside it."""
_KEEP_REQUIRED = ("MetricEntry",)
"""An item of a list, which is never merged with another file's."""


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("schema", __doc__ or "")
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?",
        help=f"that of the config files; the schemas go to FOLDER/{FOLDER} (default: conf, or .)",
    )  # fmt: skip
    parser.add_argument(
        "--print", metavar="KIND", dest="shown",
        help=f"write one to standard output instead: {', '.join(KINDS)}",
    )  # fmt: skip
    return parser


def schema(argv: Sequence[str]) -> int:
    """Write the schemas, and say which line names them.

    Raises:
        UsageError: there is no such folder, or no such kind of config.
    """
    args = _parser().parse_args(argv)
    if args.shown is not None:
        if args.shown not in KINDS:
            raise UsageError(
                f"there is no kind of config {args.shown!r}.{suggest(args.shown, KINDS)} "
                f"Kinds: {', '.join(KINDS)}."
            )
        print(_text(args.shown), end="")
        return 0
    folder = Path(args.folder or ("conf" if Path("conf").is_dir() else "."))
    if not folder.is_dir():
        raise UsageError(f"{on_one_line(folder)} is no folder.", fix="Write: espnet3 schema conf")
    for path in write_schemas(folder):
        print(on_one_line(path))
    print(f"\nFirst line of a training config: {modeline('training')}")
    return 0


def write_schemas(folder: Path) -> list[Path]:
    """Write the schema of each kind to a folder of config files, and return the paths."""
    places = [folder / FOLDER / f"{kind}.json" for kind in KINDS]
    places[0].parent.mkdir(exist_ok=True)
    for kind, path in zip(KINDS, places, strict=True):
        write_text(path, _text(kind))
    return places


def modeline(kind: str) -> str:
    """Return the line by which a config file names its schema to editors."""
    return f"# yaml-language-server: $schema={FOLDER}/{kind}.json"


def _text(kind: str) -> str:
    return json.dumps(make_schema(kind), indent=1) + "\n"


def make_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of config file."""
    made = file_model(kind).model_json_schema(by_alias=True)
    blocks = made.pop("$defs")
    for name, block in blocks.items():
        _loosen(block, keep_required=name in _KEEP_REQUIRED)
    _loosen(made, keep_required=False)
    properties = made["properties"]
    if "trainer" in properties:
        blocks["Trainer"] = _trainer()
        properties["trainer"] = {
            "description": properties["trainer"].get("description", ""),
            "anyOf": [{"$ref": "#/$defs/Trainer"}, {"type": "null"}, {"$ref": "#/$defs/deferred"}],
        }
    if kind in ("parallel", "launch"):
        made["required"] = [kind]
    return {
        "$schema": _DIALECT,
        "title": f"ESPnet3 {kind} config",
        **{key: part for key, part in made.items() if key != "title"},
        "$defs": {"deferred": _DEFERRED, **blocks},
    }


def _loosen(block: dict[str, Any], *, keep_required: bool) -> None:
    """Accept what a file may say: interpolations, one text for a list, null for a block.

    A block may be spread over several files, so that no key is required in one of them.
    """
    if not keep_required:
        block.pop("required", None)
    block.pop("title", None)
    for name, part in block.get("properties", {}).items():
        block["properties"][name] = _accept(name, part)


def _accept(name: str, part: dict[str, Any]) -> dict[str, Any]:
    about: dict[str, Any] = {
        key: part.pop(key) for key in ("description", "default") if key in part
    }
    part.pop("title", None)
    if "description" in about:
        about["description"] = " ".join(about["description"].split())
    if not part:  # any value
        return about
    choices = part.pop("anyOf", None) or [part]
    if name in _ALSO:
        choices = [*([] if name in _IN_PLACE else choices), deepcopy(_ALSO[name])]
    if any(_is_texts(choice) for choice in choices):
        choices = [*choices, _ONE_TEXT]
    for choice in choices:
        _accept_inside(choice)
    if not any(choice.get("type") == "null" for choice in choices):
        choices = [*choices, {"type": "null"}]
    return {**about, "anyOf": [*choices, {"$ref": "#/$defs/deferred"}]}


def _accept_inside(choice: dict[str, Any]) -> None:
    """Accept interpolations as items of a list, and as values of a mapping."""
    for key in ("items", "additionalProperties"):
        inner = choice.get(key)
        if isinstance(inner, dict) and inner and "prefixItems" not in inner:
            choice[key] = {"anyOf": [inner, {"$ref": "#/$defs/deferred"}]}


def _is_texts(choice: Mapping[str, Any]) -> bool:
    return choice.get("type") == "array" and choice.get("items") == {"type": "string"}


def _trainer() -> dict[str, Any]:
    text = "Argument of Lightning's Trainer."
    properties = {
        argument.name: {"description": text, "default": _json_safe(argument.default)}
        for argument in trainer_arguments()
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _json_safe(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
