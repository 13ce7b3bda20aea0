"""Spell text so that OmegaConf reads it back as it is."""

import re
from typing import Any


def escaped(text: str) -> str:
    r"""Spell `${X}` as `\${X}`, so that it is text and no interpolation."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text)


def quoted(text: str) -> str:
    """Spell text as an argument of a resolver, whatever it contains."""
    spelled = re.sub(
        r"(\\*)(\$\{|'|\Z)",
        lambda match: match[1] * 2 + ("\\" + match[2] if match[2] else ""),
        text,
    )
    return f"'{spelled}'"


def escaped_values(values: Any) -> Any:
    """Copy plain containers with all their strings escaped."""
    if isinstance(values, dict):
        return {key: escaped_values(value) for key, value in values.items()}
    if isinstance(values, list):
        return [escaped_values(value) for value in values]
    return escaped(values) if isinstance(values, str) else values
