"""Check a block of the config against the pydantic model of the module that reads it.

The errors of pydantic are worded here: what is wrong, where it was set, and the line to paste.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from espnet3.config.advice import (
    Advice,
    advise,
    did_you_mean,
    is_override,
    yaml_line,
)
from espnet3.config.resolve import resolved
from espnet3.config.sources import join_key
from espnet3.errors import ConfigError, Note, suggest
from espnet3.text import short_repr

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

M = TypeVar("M", bound=BaseModel)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_listed)]
"""Texts, of which one may be written without a list: `output_keys: hyp`."""

_EXACT_TYPES = ("int", "float", "bool", "str")
# These hold values, in which `type` may be any word.
_NOT_SCHEMAS = ("default", "metadata", "expected", "members", "serialization")


def _make_scalars_strict(schema: Any) -> None:
    if isinstance(schema, dict):
        kind = schema.get("type")
        if kind in _EXACT_TYPES:
            # A field that was declared lax on purpose stays so.
            schema.setdefault("strict", True)
        if kind == "float":
            schema.setdefault("allow_inf_nan", False)
        # Without a type of its own it maps the names of fields, which may be any word.
        skipped = _NOT_SCHEMAS if isinstance(kind, str) else ()
        for key, part in schema.items():
            if key not in skipped:
                _make_scalars_strict(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _make_scalars_strict(part)


class FrozenConfig(BaseModel):
    """Base of all config models: frozen, without unknown keys, fields documented by a string below.

    Numbers, booleans and strings are taken as YAML typed them: `"4"` and `true` are no integers, 1
    is no boolean, 12 is no string. An integer may stand for a float, a list for a tuple or set, a
    string for a path or enum. `.inf` and `.nan` are no numbers that a setting can have.
    """

    # Built when first used: most commands import many models, and read few of them. For the same
    # reason not `use_attribute_docstrings`, which parses the source of each; see `field_docs`.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Make scalars strict; `strict=True` for all would refuse a list for a tuple."""
        schema = handler(source)
        _make_scalars_strict(schema)
        return schema

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe each key by the string below its field."""
        schema = handler(core_schema)
        keys = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_docs(cls).items():
            if (key := cls.model_fields[name].alias or name) in keys:
                keys[key].setdefault("description", text)
        return schema


@cache
def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the string below each field of a model and of its bases, by name."""
    docs: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, FrozenConfig):
            docs.update(_written_docs(each))
    described = ((name, field.description) for name, field in model.model_fields.items())
    docs.update({name: text for name, text in described if text})
    return {name: docs[name] for name in model.model_fields if name in docs}


def _written_docs(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    try:
        source = textwrap.dedent(inspect.getsource(model))
    except (OSError, TypeError):  # typed at a prompt, or made by `create_model`
        return
    nodes = next(ast.iter_child_nodes(ast.parse(source))).__dict__.get("body", ())
    for field, below in pairwise(nodes):
        match field, below:
            case [
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ]:
                yield name, inspect.cleandoc(text)


def validate(
    model: type[M],
    values: Mapping[str, Any] | None,
    *,
    prefix: str = "",
    loaded: "LoadedConfig | None" = None,
    homes: Mapping[str, str] = MappingProxyType({}),
) -> M:
    """Build `model` from a resolved copy of `values`; None counts as an empty mapping.

    Args:
        model: A `FrozenConfig`, as a rule.
        values: A block of the config. It is never changed, nor kept.
        prefix: Dotted key of `values` in the config, such as `parallel`, for the errors.
        loaded: Where the values come from, so that the errors name file and line.
        homes: The keys that set some of the values, by name, where these stand elsewhere.

    Raises:
        ConfigError: One error that lists every problem.
    """
    plain = resolved(values, prefix=prefix, loaded=loaded)
    subject = Subject(model, {} if plain is None else plain, prefix, loaded, homes)
    failure = None
    try:
        if not subject.missing_values():
            return model.model_validate(subject.values)
    except ValidationError as error:
        failure = error
    # Outside of the except block, so that pydantic's own text is not printed above ours.
    raise BlockError(subject.text(failure), subject, failure)


class BlockError(ConfigError):
    """The problems of a block, each with the place of its own key once the config is known."""

    # From a message and parts alone as well, as other errors are: see `at` and `below`.
    def __init__(
        self,
        message: str = "",
        subject: "Subject | None" = None,
        failure: ValidationError | None = None,
        **parts: Any,
    ) -> None:
        self._subject, self._failure = subject, failure
        super().__init__(message, **parts)

    def locate(self, config: Any) -> None:
        """Word the problems again, with their places, unless that was done."""
        if self._subject is not None and self._subject.loaded is None:
            self._subject = replace(self._subject, loaded=config)
            text = self._subject.text(self._failure)
            self.args, self.fix = (text,), getattr(text, "fix", "")
        elif self._subject is None:
            super().locate(config)

    def __reduce__(self) -> tuple[Any, ...]:
        # The subject holds a model and the config; the text, which is worded by now, says it all.
        return ConfigError, self.args


Path = tuple[str | int, ...]

_ABOUT_KEYS = ("missing", "extra_forbidden")


@dataclass(frozen=True)
class Subject:
    """Input of a check: plain `values` against `model`."""

    model: type[BaseModel]
    values: Any
    prefix: str
    loaded: "LoadedConfig | None"
    homes: Mapping[str, str]
    """The keys of values that were moved, by name."""

    def text(self, failure: ValidationError | None) -> str:
        """Return the message: one problem, or a list."""
        problems = self.describe(failure) if failure else self.missing_values()
        if len(problems) == 1:
            return problems[0]
        return f"{len(problems)} problems:\n" + "\n".join(f"- {p}" for p in problems)

    def missing_values(self) -> list[str]:
        """Return a line for each value that is `???`."""
        return [
            Note(
                f"{self._key(path)} is '???'{self._set_in(path)}, which stands for a value that "
                "you must give.",
                fix=f"Write: {path[-1]}: VALUE",
            )
            for path in _find_open(self.values, ())
        ]

    def describe(self, error: ValidationError) -> list[str]:
        """Return a line for each wrong key."""
        groups: dict[Path, list[ErrorDetails]] = {}
        for details in error.errors(include_url=False):
            groups.setdefault(self._path(details), []).append(details)
        # A union reports its other members on the value as a whole; the deepest reason is the one.
        deepest = [p for p in groups if not any(q[: len(p)] == p and q != p for q in groups)]
        return [self._line(path, groups[path]) for path in deepest]

    def _line(self, path: Path, group: list[ErrorDetails]) -> str:
        kinds = {details["type"] for details in group}
        if kinds == {"extra_forbidden"}:
            return self._unknown(path)
        if kinds == {"missing"}:
            return self._missing(path)
        return self._wrong(path, [d for d in group if d["type"] not in _ABOUT_KEYS])

    def _unknown(self, path: Path) -> str:
        known = sorted(_field_names(_models_at(self.model, path[:-1])))
        value = _value_at(self.values, path)
        hint = did_you_mean(self._key(path), value, known, self.loaded)
        hint = hint.strip() or f"Known keys: {', '.join(known)}."
        return Note(f"{self._key(path)} is not a known key{self._set_in(path)}.", fix=hint)

    def _missing(self, path: Path) -> str:
        name = str(path[-1])
        models = _models_at(self.model, path[:-1])
        docs = (field_docs(model) for model in models)
        meaning = next((f" ({known[name]})" for known in docs if name in known), "")
        below = self._key(path[:-1])
        where = f" under {below}{self._set_in(path[:-1])}" if below else ""
        return Note(
            f"{self._key(path)} is required but not set{meaning}.",
            fix=f"Write{where}: {name}: VALUE",
        )

    def _wrong(self, path: Path, group: list[ErrorDetails]) -> str:
        value = _value_at(self.values, path)
        reasons = " or ".join(dict.fromkeys(_reason(details) for details in group))
        key = self._key(path) or "The configuration"
        # A whole mapping says little where the message of the model's own validator names the keys.
        by_validator = group[0]["type"] in ("value_error", "assertion_error")
        what = "" if by_validator and isinstance(value, Mapping) else f" is {short_repr(value)}"
        comma = ", but " if what else ": "
        hint = _hint(path, value, group[0]) if len(group) == 1 else ""
        hint = hint or self._meant(path, value) or self._default(path)
        # A validator's own line is for a file; what was typed is corrected where it was.
        reasons, write, line = reasons.partition(" Write: ")
        if write and not (hint and is_override(self._key(path), self.loaded)):
            hint = f"Write: {line}"
        problem = f"{key}{what}{self._set_in(path)}{comma}{reasons.rstrip('.')}."
        return Note(problem, fix=hint.strip())

    def _meant(self, path: Path, value: Any) -> str:
        """Return the line with the value that another toolkit's word stands for."""
        key = self._key(path)
        has = self.loaded.has if self.loaded else None
        advice = advise(tuple(key.split(".")), value, (), has=has) if path else None
        if advice is not None and not advice.key and key == "parallel.env":
            return f" {advice.why}"  # one that needs options of its own
        if advice is None or advice.key != key:
            return ""
        if advice.more and not is_override(key, self.loaded):
            return f" Write: {advice.line()}"
        line = advice.in_place_of(key) if advice.more else self._line_for(path, advice.value)
        return f" Write: {line}"

    def _line_for(self, path: Path, value: Any) -> str:
        """Return the line to paste: into the shell, if it was typed there."""
        if is_override(self._key(path), self.loaded):
            return Advice(self._key(path), value, "").in_place_of(self._key(path))
        return yaml_line(str(path[-1]), value)

    def _default(self, path: Path) -> str:
        """Return the line with the default, where there is a plain one."""
        for model in _models_at(self.model, path[:-1]):
            field = model.model_fields.get(str(path[-1])) if path else None
            if field is not None and isinstance(field.default, str | int | float):
                return f" Write: {self._line_for(path, field.default)}"
        return ""

    def _path(self, details: ErrorDetails) -> Path:
        """Return the error's location without the names of union members that pydantic adds."""
        values, path = self.values, list[str | int]()
        for i, part in enumerate(details["loc"]):
            is_last = i == len(details["loc"]) - 1
            if _has(values, part):
                values = values[part]
            elif not (is_last and details["type"] == "missing"):
                continue
            path.append(part)
        return tuple(path)

    def _key(self, path: Path) -> str:
        if path and path[0] in self.homes:
            return join_key(self.homes[str(path[0])], *path[1:])
        return join_key(self.prefix, *path)

    def _set_in(self, path: Path) -> str:
        return self.loaded.set_in(self._key(path)) if self.loaded else ""


def _has(values: Any, part: str | int) -> bool:
    if isinstance(values, Mapping):
        return part in values
    return isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)


def _value_at(values: Any, path: Path) -> Any:
    for part in path:
        values = values[part]
    return values


def _find_open(values: Any, path: Path) -> Iterator[Path]:
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _find_open(value, (*path, key))
    elif isinstance(values, list | tuple):
        for i, value in enumerate(values):
            yield from _find_open(value, (*path, i))
    elif isinstance(values, str) and values == "???" and path:
        yield path


def _models_at(model: type[BaseModel], path: Path) -> list[type[BaseModel]]:
    """Return the models that may stand at `path`, also inside a list or a mapping."""
    models = [model]
    for part in path:
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        if fields:
            models = [m for field in fields for m in _models_in(field.annotation)]
    return models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _field_names(models: list[type[BaseModel]]) -> set[str]:
    return {field.alias or name for model in models for name, field in model.model_fields.items()}


def _reason(details: ErrorDetails) -> str:
    message = details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    # pydantic names Python's types, users write YAML.
    message = re.sub(r"a valid dictionary( or (object|instance).*)?$", "a mapping", message)
    return re.sub(r"^(Input|String|List|Value|Set|Tuple|Dictionary) should ", "must ", message)


def _hint(path: Path, value: Any, details: ErrorDetails) -> str:
    """Return the line to paste, where it follows from the value."""
    name = str(path[-1]) if path else ""
    kind = details["type"]
    if kind in ("literal_error", "enum"):
        expected = re.findall(r"'([^']*)'", str(details.get("ctx", {}).get("expected", "")))
        return suggest(str(value), expected)
    if kind == "string_type" and isinstance(value, int | float):
        return f' Quote it: {name}: "{value}"'
    if isinstance(value, str) and kind in ("int_type", "float_type", "bool_type"):
        return _unquoted(name, value, kind)
    return ""


def _unquoted(name: str, value: str, kind: str) -> str:
    parsers = {"int_type": int, "float_type": float, "bool_type": {"true": True, "false": False}}
    parser: Any = parsers[kind]
    try:
        parsed = parser[value.lower()] if isinstance(parser, dict) else parser(value)
    except (ValueError, KeyError):
        return ""
    return f" Write it without quotes: {yaml_line(name, parsed)}"
