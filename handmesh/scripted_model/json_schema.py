"""Tells whether a value is a JSON Schema of draft 2020-12, by the meta-schema's structural rules.

The API refuses a tool whose schema breaks them, and the usual breaches are remains of older drafts: `items` as a list,
`required: true` on a property, `exclusiveMinimum: true`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


def is_schema(value: Any) -> bool:
    """Returns whether the value is a schema; unknown keywords are annotations and always allowed."""
    if isinstance(value, bool):
        return True
    if not isinstance(value, dict):
        return False
    return all(KEYWORDS[name](content) for name, content in value.items() if name in KEYWORDS)


def _string(value: Any) -> bool:
    return isinstance(value, str)


def _boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _count(value: Any) -> bool:
    return _number(value) and value >= 0 and value == int(value)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_string, value)) and len(set(value)) == len(value)


def _type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names) and _names(names)


def _array(value: Any) -> bool:
    return isinstance(value, list)


def _schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_schema, value))


def _map_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


KEYWORDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("$id", "$schema", "$ref", "$anchor", "$dynamicRef", "$dynamicAnchor", "$comment"), _string),
    **dict.fromkeys(("title", "description", "format", "pattern", "contentEncoding", "contentMediaType"), _string),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _boolean),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"), _count),
    **dict.fromkeys(("minProperties", "maxProperties"), _count),
    **dict.fromkeys(("items", "contains", "additionalProperties", "propertyNames", "not", "if", "then"), is_schema),
    **dict.fromkeys(("else", "unevaluatedItems", "unevaluatedProperties", "contentSchema"), is_schema),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _schemas),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "dependentSchemas"), _map_of(is_schema)),
    "dependentRequired": _map_of(_names),
    "multipleOf": _positive,
    "required": _names,
    "enum": _array,
    "examples": _array,
    "type": _type,
}
