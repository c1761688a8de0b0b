"""How input schemas are mended for the model's API."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.vault_proxy.core.schema import SchemaRefused, mend

TEXT = {"type": "string"}
NUMBER = {"type": "number"}


def given_(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


MENDED = {
    "a plain schema stays": (given_(a=TEXT) | {"required": ["a"]}, given_(a=TEXT) | {"required": ["a"]}),
    "nothing said is an object": ({}, given_()),
    "no type is an object": ({"properties": {"a": TEXT}}, given_(a=TEXT)),
    "one of the types is object": ({"type": ["object", "null"], "properties": {"a": TEXT}}, given_(a=TEXT)),
    "unknown keywords go": (
        given_(a={**TEXT, "x-thing": 1, "nullable": True})
        | {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "x"},
        given_(a=TEXT),
    ),
    "root anyOf": (
        {"type": "object", "anyOf": [given_(a=TEXT) | {"required": ["a"]}, given_(b=TEXT) | {"required": ["b"]}]},
        given_(a=TEXT, b=TEXT) | {"required": [], "description": "Give one of: a, b."},
    ),
    "root oneOf keeps what all require": (
        {"oneOf": [given_(a=TEXT, t=TEXT) | {"required": ["t", "a"]}, given_(t=TEXT) | {"required": ["t"]}]},
        given_(a=TEXT, t=TEXT) | {"required": ["t"]},
    ),
    "branches that disagree": (
        {"anyOf": [given_(a=TEXT), given_(a=NUMBER)]},
        given_(a={"anyOf": [TEXT, NUMBER]}) | {"required": []},
    ),
    "a branch that is no object": (
        {"anyOf": [{"type": "null"}, given_(a=TEXT) | {"required": ["a"]}]},
        given_(a=TEXT) | {"required": ["a"]},
    ),
    "root allOf": (
        {"allOf": [given_(a=TEXT) | {"required": ["a"], "additionalProperties": False}, given_(b=NUMBER)]},
        given_(a=TEXT, b=NUMBER) | {"required": ["a"]},
    ),
    "root $ref": (
        {"$ref": "#/$defs/In", "$defs": {"In": given_(a={"$ref": "#/$defs/T"}), "T": TEXT}},
        given_(a={"$ref": "#/$defs/T"}) | {"required": [], "$defs": {"In": given_(a={"$ref": "#/$defs/T"}), "T": TEXT}},
    ),
    "a reference in a branch": (
        {"anyOf": [{"$ref": "#/definitions/A"}], "definitions": {"A": given_(a=TEXT)}},
        given_(a=TEXT) | {"required": [], "definitions": {"A": given_(a=TEXT)}},
    ),
    "a reference to nothing": (given_(a={"$ref": "#/$defs/none", "title": "A"}), given_(a={"title": "A"})),
    "a reference to elsewhere": (given_(a={"$ref": "https://evil.example/x.json"}), given_(a={})),
    "combinators inside stay": (
        given_(a={"anyOf": [TEXT, {"type": "null"}]}),
        given_(a={"anyOf": [TEXT, {"type": "null"}]}),
    ),
    "tuples as older drafts spell them": (
        given_(a={"type": "array", "items": [TEXT, NUMBER], "additionalItems": False}),
        given_(a={"type": "array", "prefixItems": [TEXT, NUMBER], "items": False}),
    ),
    "exclusive bounds as draft 4 spells them": (
        given_(a={"type": "number", "minimum": 3, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False}),
        given_(a={"type": "number", "exclusiveMinimum": 3, "maximum": 9}),
    ),
    "keywords of the wrong form go": (
        given_(a={"type": "any", "required": True, "enum": [], "minLength": -1, "pattern": 7, "description": "d"}),
        given_(a={"description": "d"}),
    ),
}


@pytest.mark.parametrize(("raw", "mended"), MENDED.values(), ids=MENDED.keys())
def test_a_schema_is_mended(raw: dict[str, Any], mended: dict[str, Any]) -> None:
    """The result is an object without combinators at its root, and says as much as it can of what was said."""
    assert mend(raw) == mended


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = TEXT
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return given_(a=schema)


def fan(levels: int) -> dict[str, Any]:
    """References that fan out: ten to the power of `levels` branches when all are followed."""
    following = {f"L{level}": {"anyOf": [{"$ref": f"#/$defs/L{level + 1}"}] * 10} for level in range(levels)}
    return {"$ref": "#/$defs/L0", "$defs": {**following, f"L{levels}": given_(a=TEXT)}}


REFUSED = {
    "no schema": None,
    "no object": [],
    "true": True,
    "a text": TEXT,
    "no object among the branches": {"anyOf": [TEXT, NUMBER]},
    "a part that is no object": {"allOf": [given_(a=TEXT), TEXT]},
    "itself": {"$ref": "#"},
    "in circles": {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
    "what is not there": {"$ref": "#/$defs/A"},
    "another document": {"$ref": "https://evil.example/x.json"},
    "never": {"allOf": [False]},
    "a property's name with a space": given_(**{"a b": TEXT}),
    "a property's name that is too long": given_(**{"a" * 65: TEXT}),
    "too deep": deep(60),
    "too many": given_(**{f"p{number}": {"items": TEXT} for number in range(3000)}),
    "too large": given_(a={"description": "x" * 200_000}),
    "too many branches": fan(9),
    "no number of JSON": given_(a={"const": float("nan")}),
}


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_mended_is_refused(raw: Any) -> None:
    """Refused with a reason, whatever it is. Following every branch of the worst would take years."""
    with pytest.raises(SchemaRefused):
        mend(raw)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.text(max_size=3)
    | st.sampled_from(["object", "#/$defs/a", "#"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "anyOf",
                    "oneOf",
                    "allOf",
                    "$ref",
                    "$defs",
                    "required",
                    "enum",
                    "a",
                    "not",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)


@given(json_values)
def test_every_mended_schema_is_one_that_the_api_takes(raw: Any) -> None:
    """Whatever a server sends: an object at the root, no combinator there, known keywords only, and mending it again
    changes nothing."""
    try:
        schema = mend(raw)
    except SchemaRefused:
        return
    assert schema["type"] == "object"
    assert isinstance(schema["properties"], dict)
    assert not {"anyOf", "oneOf", "allOf", "$ref", "$schema"} & schema.keys()
    assert mend(schema) == schema
