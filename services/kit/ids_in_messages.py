"""The ids that a request has in its own fields: which they are, its descriptor says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message

from services.kit import ids

_id_fields: dict[str, tuple[tuple[str, bool], ...]] = {}


def check_ids(message: Message, *, first: bool = True) -> None:
    """Raises Invalid for the first id in the message's own fields that has not the form of ids.

    A minted id must be there unless its field is `optional`; a chosen id may be left out. In a stream of requests the
    `first` names what it is about, and the others may leave it out.
    """
    for name, required in _fields_with_ids(message.DESCRIPTOR):
        value = getattr(message, name)
        if isinstance(value, str):
            if value or (first and required and name in ids.MINTED_FIELDS):
                ids.check(name, value)
        else:
            for each in value:
                ids.check(name.removesuffix("s"), each)


def _fields_with_ids(descriptor: Any) -> tuple[tuple[str, bool], ...]:
    known = _id_fields.get(descriptor.full_name)
    if known is None:
        known = _id_fields[descriptor.full_name] = tuple(_find(descriptor))
    return known


def _find(descriptor: Any) -> Iterator[tuple[str, bool]]:
    for field in descriptor.fields:
        if field.name.removesuffix("s") in ids.MINTED_FIELDS | ids.CHOSEN_FIELDS:
            yield field.name, not field.has_presence
