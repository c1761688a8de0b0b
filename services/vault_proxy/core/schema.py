"""How a tool's input schema is mended so that the model's API takes it.

The API wants an object at the root, no combinator there, JSON Schema 2020-12, and plain property names. Servers send
what they like. A mended schema may allow more than the server's own: the server checks the input again. What cannot be
mended raises SchemaRefused, and only that tool is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

DEPTH = 32  # schemas inside schemas
NODES = 4_000  # schemas in all
SCHEMA_BYTES = 100_000
ROOT_STEPS = 200  # references and branches followed to find out what the root is
HINT_CHARACTERS = 300
PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
COMBINATORS = ("allOf", "anyOf", "oneOf")


class SchemaRefused(ValueError):
    """The schema cannot be mended. Its text says why and holds nothing of the schema."""


class _TooMuch(SchemaRefused):
    """The budget is spent: to leave out what is left would be to guess."""


def mend(raw: Any) -> Schema:
    """Returns a schema that the model's API takes. Raises SchemaRefused."""
    if not isinstance(raw, dict):
        raise SchemaRefused("the input schema is no object")
    root = _Root(raw).plain(raw)
    document = {key: raw[key] for key in ("$defs", "definitions") if isinstance(raw.get(key), dict)} | root
    schema = _Cleaner(document).clean(document, DEPTH)
    assert isinstance(schema, dict), "the copy of an object is an object"
    schema["type"] = "object"
    if not all(PROPERTY_NAME.fullmatch(name) for name in schema.setdefault("properties", {})):
        raise SchemaRefused("a property's name is not one that the model's API takes")
    try:
        size = len(json.dumps(schema, allow_nan=False))
    except ValueError:
        raise SchemaRefused("the input schema holds a number that JSON has not") from None
    if size > SCHEMA_BYTES:
        raise SchemaRefused(f"the input schema is over {SCHEMA_BYTES} bytes")
    return schema


class _Root:
    """Takes `$ref` and combinators off a schema's root, in at most ROOT_STEPS steps."""

    def __init__(self, document: Schema) -> None:
        self._document = document
        self._left = ROOT_STEPS

    def plain(self, schema: Any) -> Schema:
        """Returns a schema of type object that says, without them, what this one says."""
        self._left -= 1
        if self._left < 0:
            raise _TooMuch("the input schema refers to itself, or to too much")
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            raise SchemaRefused("the input schema allows nothing")
        kind = schema.get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise SchemaRefused("the input schema is not of type object")
        parts = [{key: value for key, value in schema.items() if key not in ("$ref", *COMBINATORS)}]
        if isinstance(reference := schema.get("$ref"), str):
            parts.append(self.plain(resolve(self._document, reference)))
        parts += [self.plain(part) for part in _list(schema.get("allOf"))]
        for key in ("anyOf", "oneOf"):
            if branches := _list(schema.get(key)):
                parts.append(_any_of(self._objects(branches)))
        return parts[0] if len(parts) == 1 else _all_of(parts)

    def _objects(self, branches: list[Any]) -> list[Schema]:
        """Returns the branches that an object can meet. Raises SchemaRefused when there is none."""
        found, problem = [], SchemaRefused("no branch of the input schema is an object")
        for branch in branches:
            try:
                found.append(self.plain(branch))
            except _TooMuch:
                raise
            except SchemaRefused as refused:
                problem = refused
        if not found:
            raise problem
        return found


def _all_of(parts: list[Schema]) -> Schema:
    """Merges object schemas that must all hold."""
    merged: Schema = {}
    for part in parts:
        merged = {**part, **merged, "properties": _merge_properties(merged, part, "allOf")}
    merged["required"] = list(dict.fromkeys(name for part in parts for name in _required(part)))
    descriptions = [part["description"] for part in parts if _text(part.get("description"))]
    if descriptions:
        merged["description"] = "\n".join(descriptions)
    if sum(1 for part in parts if part.get("properties")) > 1:
        merged.pop("additionalProperties", None)  # one part would forbid what another names
    return merged


def _any_of(branches: list[Schema]) -> Schema:
    """Merges object schemas of which one must hold: all their properties, and what every one of them requires."""
    if len(branches) == 1:
        return branches[0]
    properties: Schema = {}
    for branch in branches:
        properties = _merge_properties({"properties": properties}, branch, "anyOf")
    wanted = [_required(branch) for branch in branches]
    common = set(wanted[0]).intersection(*wanted[1:])
    merged: Schema = {"properties": properties, "required": [name for name in wanted[0] if name in common]}
    rest = ["+".join(name for name in names if name not in common) for names in wanted]
    if all(rest) and len(hint := f"Give one of: {', '.join(dict.fromkeys(rest))}.") <= HINT_CHARACTERS:
        merged["description"] = hint
    return merged


def _merge_properties(first: Schema, second: Schema, combinator: str) -> Schema:
    merged = dict(_dict(first.get("properties")))
    for name, schema in _dict(second.get("properties")).items():
        if name in merged and merged[name] != schema:
            merged[name] = {combinator: [merged[name], schema]}
        else:
            merged[name] = schema
    return merged


def resolve(document: Schema, reference: str) -> Any:
    """Returns what a local reference (`#`, `#/$defs/name`) points to. Raises SchemaRefused."""
    pointer = reference.removeprefix("#")
    found: Any = document
    if not reference.startswith("#") or (pointer and not pointer.startswith("/")):
        raise SchemaRefused("the input schema refers to another document")
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise SchemaRefused("the input schema refers to what it does not hold")
    return found


class _Cleaner:
    """Keeps the keywords of JSON Schema 2020-12 whose values have the right form, and drops all others."""

    def __init__(self, document: Schema) -> None:
        self._document = document
        self._nodes = 0

    def clean(self, schema: Any, depth: int) -> Schema | bool:
        """Returns a clean copy. Raises SchemaRefused past DEPTH or NODES."""
        self._nodes += 1
        if depth == 0 or self._nodes > NODES:
            raise SchemaRefused("the input schema is too deep or too large")
        if not isinstance(schema, dict):
            return schema if isinstance(schema, bool) else True
        cleaned: Schema = {}
        for key, value in _modern(schema).items():
            if key in _SCHEMA:
                cleaned[key] = self.clean(value, depth - 1)
            elif key in _SCHEMA_LIST and _list(value):
                cleaned[key] = [self.clean(each, depth - 1) for each in value]
            elif key in _SCHEMA_MAP and isinstance(value, dict):
                cleaned[key] = {str(name): self.clean(each, depth - 1) for name, each in value.items()}
            elif key == "$ref":
                if self._resolves(value):
                    cleaned[key] = value
            elif key in _PLAIN and _PLAIN[key](value):
                cleaned[key] = value
        return cleaned

    def _resolves(self, reference: Any) -> bool:
        try:
            return isinstance(reference, str) and isinstance(resolve(self._document, reference), dict | bool)
        except SchemaRefused:
            return False


def _modern(schema: Schema) -> Schema:
    """Spells what older drafts spelled in another way as 2020-12 does."""
    modern = dict(schema)
    if isinstance(items := modern.get("items"), list):
        modern["prefixItems"] = items
        modern["items"] = modern.pop("additionalItems", True)
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if modern.get(exclusive) is True and _number(modern.get(bound)):
            modern[exclusive] = modern.pop(bound)
    return modern


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> Schema:
    return value if isinstance(value, dict) else {}


def _required(schema: Schema) -> list[str]:
    return [name for name in _list(schema.get("required")) if isinstance(name, str)]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value) and len(set(value)) == len(value)


def _type(value: Any) -> bool:
    words = value if isinstance(value, list) else [value]
    return (
        bool(words) and all(isinstance(each, str) and each in TYPES for each in words) and len(set(words)) == len(words)
    )


def _anything(value: Any) -> bool:
    return True


_SCHEMA = frozenset(
    {"additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_SCHEMA_LIST = frozenset({*COMBINATORS, "prefixItems"})
_SCHEMA_MAP = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_PLAIN: dict[str, Callable[[Any], bool]] = {
    "type": _type,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "const": _anything,
    "default": _anything,
    "examples": lambda value: isinstance(value, list),
    "required": _names,
    "title": _text,
    "description": _text,
    "format": _text,
    "pattern": _text,
    "deprecated": _flag,
    "readOnly": _flag,
    "writeOnly": _flag,
    "uniqueItems": _flag,
    "multipleOf": lambda value: _number(value) and value > 0,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"), _count),
    **dict.fromkeys(("minProperties", "maxProperties"), _count),
}
