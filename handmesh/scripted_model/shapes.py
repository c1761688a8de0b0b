"""Describes JSON shapes as small functions from a value and its path to what is wrong with it.

A shape is built once, at import, out of the constructors below, and reads like the type it stands for:

    record({"type": one_of("text"), "text": text()}, {"cache_control": nullable(CACHE_CONTROL)})

Sentences and dotted paths are those of the Messages API (`messages.0.content.0.text.text: Field required`), so that a
client sees here what it would see there. Findings come in the order in which the API reports them: by position in the
document, required fields before optional ones, unknown fields last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong at one place; `unknown` when the thing is a field or a kind that nobody described."""

    path: str
    text: str
    unknown: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


Shape = Callable[[Any, str], Iterator[Finding]]


def under(path: str, key: str | int) -> str:
    """Returns the path of a field or an item."""
    return f"{path}.{key}" if path else str(key)


def listed(values: list[str], last: str = "or") -> str:
    """Returns quoted values as the API lists them: 'a', 'b' or 'c'."""
    quoted = [f"'{value}'" for value in values]
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}" if len(quoted) > 1 else quoted[0]


def anything(_value: Any, _path: str) -> Iterator[Finding]:
    """Accepts every value."""
    return iter(())


def text(pattern: str | None = None, min_length: int = 0, max_length: int | None = None) -> Shape:
    """Accepts a string; a pattern must match all of it."""
    compiled = re.compile(pattern) if pattern else None

    def check(value: Any, path: str) -> Iterator[Finding]:
        if not isinstance(value, str):
            yield Finding(path, "Input should be a valid string")
        elif len(value) < min_length:
            yield Finding(path, f"String should have at least {min_length} character{'s' if min_length > 1 else ''}")
        elif max_length is not None and len(value) > max_length:
            yield Finding(path, f"String should have at most {max_length} characters")
        elif compiled and not compiled.fullmatch(value):
            yield Finding(path, f"String should match pattern '^{pattern}$'")

    return check


def integer(minimum: int, maximum: int | None = None) -> Shape:
    """Accepts a whole number within limits that belong to it, never a boolean."""

    def check(value: Any, path: str) -> Iterator[Finding]:
        if not isinstance(value, int) or isinstance(value, bool):
            yield Finding(path, "Input should be a valid integer")
        elif value < minimum:
            yield Finding(path, f"Input should be greater than or equal to {minimum}")
        elif maximum is not None and value > maximum:
            yield Finding(path, f"Input should be less than or equal to {maximum}")

    return check


def number(minimum: float, maximum: float | None = None) -> Shape:
    """Accepts a number within limits that belong to it."""

    def check(value: Any, path: str) -> Iterator[Finding]:
        if not isinstance(value, int | float) or isinstance(value, bool):
            yield Finding(path, "Input should be a valid number")
        elif value < minimum:
            yield Finding(path, f"Input should be greater than or equal to {minimum:g}")
        elif maximum is not None and value > maximum:
            yield Finding(path, f"Input should be less than or equal to {maximum:g}")

    return check


def boolean(value: Any, path: str) -> Iterator[Finding]:
    """Accepts true and false."""
    if not isinstance(value, bool):
        yield Finding(path, "Input should be a valid boolean")


def mapping(value: Any, path: str) -> Iterator[Finding]:
    """Accepts an object, whatever is in it."""
    if not isinstance(value, dict):
        yield Finding(path, "Input should be a valid dictionary")


def one_of(*values: str) -> Shape:
    """Accepts one of some strings."""

    def check(value: Any, path: str) -> Iterator[Finding]:
        if value not in values:
            yield Finding(path, f"Input should be {listed(list(values))}")

    return check


def array(item: Shape, min_length: int = 0, max_length: int | None = None) -> Shape:
    """Accepts a list of one kind of item."""

    def check(value: Any, path: str) -> Iterator[Finding]:
        if not isinstance(value, list):
            yield Finding(path, "Input should be a valid list")
            return
        if len(value) < min_length:
            yield Finding(path, f"List should have at least {min_length} item after validation, not {len(value)}")
        if max_length is not None and len(value) > max_length:
            yield Finding(path, f"List should have at most {max_length} items after validation, not {len(value)}")
            return
        for index, entry in enumerate(value):
            yield from item(entry, under(path, index))

    return check


def nullable(shape: Shape) -> Shape:
    """Accepts null, too."""

    def check(value: Any, path: str) -> Iterator[Finding]:
        if value is not None:
            yield from shape(value, path)

    return check


def string_or(shape: Shape) -> Shape:
    """Accepts a string or another shape (`content` is text or a list of blocks)."""

    def check(value: Any, path: str) -> Iterator[Finding]:
        if not isinstance(value, str):
            yield from shape(value, path)

    return check


def tagged(variants: Mapping[str, Shape], key: str = "type") -> Shape:
    """Accepts an object whose `key` says which of the variants it is."""
    tags = ", ".join(f"'{tag}'" for tag in sorted(variants))

    def check(value: Any, path: str) -> Iterator[Finding]:
        if not isinstance(value, dict):
            yield Finding(path, "Input should be a valid dictionary or object to extract fields from")
        elif key not in value:
            yield Finding(under(path, key), "Field required")
        elif not isinstance(value[key], str):
            yield Finding(under(path, key), "Input should be a valid string")
        elif value[key] not in variants:
            sentence = f"Input tag '{value[key]}' found using '{key}' does not match any of the expected tags: {tags}"
            yield Finding(path, sentence, unknown=True)
        else:
            yield from variants[value[key]](value, under(path, value[key]))

    return check


def record(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None, *, closed: bool = True) -> Shape:
    """Accepts an object with described fields; unless it is closed, with others, too."""
    known = {**required, **(optional or {})}

    def check(value: Any, path: str) -> Iterator[Finding]:
        if not isinstance(value, dict):
            yield Finding(path, "Input should be a valid dictionary or object to extract fields from")
            return
        for name, shape in known.items():
            if name in value:
                yield from shape(value[name], under(path, name))
            elif name in required:
                yield Finding(under(path, name), "Field required")
        if closed:
            for name in value:
                if name not in known:
                    yield Finding(under(path, name), "Extra inputs are not permitted", unknown=True)

    return check
