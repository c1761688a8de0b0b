"""Says on standard error how far a part is, for whoever waits: a line every few seconds at most."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

EVERY_SECONDS = 5.0
T = TypeVar("T")


def told(line: str) -> None:
    """Prints a line."""
    print(line, file=sys.stderr, flush=True)


def telling(what: str, items: Sequence[T]) -> Iterator[T]:
    """Gives the items one after the other, and tells now and then how many were."""
    begun = last = time.monotonic()
    for number, item in enumerate(items):
        now = time.monotonic()
        if now - last >= EVERY_SECONDS:
            last = now
            told(f"  {what}: {number} of {len(items)} after {now - begun:.0f} s")
        yield item
