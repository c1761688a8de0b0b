"""A value that does not show itself."""

from __future__ import annotations

import hmac
from typing import Generic, NoReturn, TypeVar

T = TypeVar("T")


class Secret(Generic[T]):
    """Holds a value that is read by `reveal()` only.

    Its repr, its text and its place in any f-string are `<secret>`; JSON, pickle and copy refuse it. So a secret that
    is logged, put into an error or sent somewhere by mistake shows nothing.
    """

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """Returns the value. Every call of this is a place to look at in a review."""
        return self._value

    def __repr__(self) -> str:
        return "<secret>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        mine, theirs = self._value, other._value
        if isinstance(mine, str) and isinstance(theirs, str):
            return hmac.compare_digest(mine.encode(), theirs.encode())
        return bool(mine == theirs)

    __hash__ = None  # type: ignore[assignment]  # a hash of a secret is a hint at it

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret is neither pickled nor copied")
