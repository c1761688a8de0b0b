"""A dictionary that forgets what it was given first when it has too much."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

V = TypeVar("V")
MAX_REMEMBERED = 10_000


class Bounded(OrderedDict[str, V]):
    """At most so many entries."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: str, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self._most:
            self.popitem(last=False)
