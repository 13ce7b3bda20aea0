"""Check a block of the config against the pydantic model of the module that reads it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from omegaconf import DictConfig
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationError,
)
from pydantic_core import CoreSchema

from espnet3.config.problems import Subject
from espnet3.config.resolve import resolved
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

M = TypeVar("M", bound=BaseModel)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_listed)]
"""Texts, of which one may be written without a list: `output_keys: hyp`."""

_EXACT_TYPES = ("int", "float", "bool", "str")
_NOT_SCHEMAS = ("default", "metadata", "expected", "members", "serialization")


def _make_scalars_strict(schema: Any) -> None:
    if isinstance(schema, dict):
        kind = schema.get("type")
        if kind in _EXACT_TYPES:
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

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Make scalars strict; `strict=True` for all would refuse a list for a tuple."""
        schema = handler(source)
        _make_scalars_strict(schema)
        return schema


def validate(
    model: type[M],
    values: Mapping[str, Any] | DictConfig | None,
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
    problems = subject.missing_values()
    try:
        if not problems:
            return model.model_validate(subject.values)
    except ValidationError as error:
        problems = subject.describe(error)
    if len(problems) == 1:
        raise ConfigError(problems[0])
    raise ConfigError(f"{len(problems)} problems:\n" + "\n".join(f"- {p}" for p in problems))
