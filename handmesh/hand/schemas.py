"""Makes a tool's schema of a function's signature, and checks input against the signature."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from handmesh.hand.answers import ToolError
from handmesh.hand.call import Call
from handmesh.sandbox.v1 import tool_pb2

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


@dataclass(frozen=True)
class Tool:
    """A tool, as a model is told of it. `schema` is the JSON Schema of its input, an object."""

    name: str
    description: str
    schema: Mapping[str, Any]
    idempotent: bool = False
    read_only: bool = False

    def message(self) -> tool_pb2.Tool:
        """Makes the message of it."""
        return tool_pb2.Tool(
            name=self.name,
            description=self.description,
            input_schema_json=json.dumps(self.schema),
            idempotent=self.idempotent,
            read_only=self.read_only,
        )


@dataclass(frozen=True)
class Signature:
    """A function's parameters: each one's type, those that must be there, and the one that takes the `Call`, if any."""

    types: Mapping[str, Any]
    required: tuple[str, ...]
    call: str | None

    @classmethod
    def of(cls, function: Callable[..., object]) -> Signature:
        """Reads a function's annotations. Raises TypeError for a parameter that no JSON can be."""
        hints = typing.get_type_hints(function, include_extras=True)
        found, required, call = {}, [], None
        for name, parameter in inspect.signature(function).parameters.items():
            if name == "self":
                continue
            kind = hints.get(name, str)
            if kind is Call:
                call = name
                continue
            _schema(kind)
            found[name] = kind
            if parameter.default is inspect.Parameter.empty:
                required.append(name)
        return cls(found, tuple(required), call)

    def schema(self) -> dict[str, Any]:
        """Returns the JSON Schema of the input."""
        properties = {name: _schema(kind) for name, kind in self.types.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": list(self.required),
            "additionalProperties": False,
        }

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments. Raises ToolError, in words for the model, for what the function does not take."""
        kept = {name: value for name, value in given.items() if value is not None or name in self.required}
        unknown = sorted(kept.keys() - self.types.keys())
        if unknown:
            raise ToolError(f"there is no parameter {', '.join(unknown)}; there are: {', '.join(self.types) or 'none'}")
        missing = [name for name in self.required if name not in kept]
        if missing:
            raise ToolError(f"needed and not given: {', '.join(missing)}")
        for name, value in kept.items():
            if not _fits(value, self.types[name]):
                raise ToolError(f"{name} must be {json.dumps(_schema(self.types[name]))}")
        return kept


def _schema(kind: Any) -> dict[str, Any]:
    """Returns the schema of a type: a plain one, list[...], dict, Literal[...], X | None, Annotated[X, text]."""
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        text = next((note for note in notes if isinstance(note, str)), "")
        return _schema(inner) | ({"description": text} if text else {})
    if get_origin(kind) is Literal:
        return {"enum": list(get_args(kind))}
    if get_origin(kind) in (Union, types.UnionType):
        inner = [each for each in get_args(kind) if each is not type(None)]
        if len(inner) == 1:
            return _schema(inner[0])
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind is dict or get_origin(kind) is dict:
        return {"type": "object"}
    if kind is list or get_origin(kind) is list:
        items = get_args(kind)
        return {"type": "array"} | ({"items": _schema(items[0])} if items else {})
    raise TypeError(f"a tool's parameter cannot be of the type {kind!r}")


def _fits(value: object, kind: Any) -> bool:
    schema = _schema(kind)
    if "enum" in schema:
        return value in schema["enum"]
    match schema.get("type"):
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
    return isinstance(value, dict)
