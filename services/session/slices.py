"""Slices of a log, and how they are cut into pages. Pure arithmetic on positions.

A span is [start, end): inclusive, exclusive, clamped to what the log has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.kit.errors import Invalid

DEFAULT_PAGE = 100
MAX_PAGE = 1_000
PAGE_BYTES = 3 * 1024 * 1024
MAX_SCAN = 10_000  # positions that one page of a filtered slice looks at


@dataclass(frozen=True)
class Span:
    """Positions from `start` to before `end`."""

    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True)
class Ask:
    """A slice as it was asked for; 0 means what `GetEventsRequest` says it means."""

    start: int = 0
    end: int = 0
    page_size: int = 0
    last: int = 0
    before: int = 0
    after: int = 0
    kinds: frozenset[str] = frozenset()
    descending: bool = False

    def check(self, *, anchored: bool) -> None:
        """Raises Invalid (`ARGUMENT_INVALID`) for numbers that mean nothing."""
        for field, value in (
            ("start_position", self.start),
            ("end_position", self.end),
            ("page_size", self.page_size),
            ("last", self.last),
            ("before", self.before),
            ("after", self.after),
        ):
            if value < 0:
                raise Invalid("ARGUMENT_INVALID", f"{field} is negative: {value}", field=field)
        if anchored and not (self.before or self.after):
            raise Invalid("ARGUMENT_INVALID", "an anchor needs before or after", field="before")

    @property
    def limit(self) -> int:
        """Most events on a page."""
        return min(self.page_size or DEFAULT_PAGE, MAX_PAGE)


def resolve(ask: Ask, head: int, anchor: int | None = None) -> Span:
    """Says which positions are meant, in a log whose last position is `head`."""
    if anchor is not None:
        return Span(max(1, anchor - ask.before), min(anchor + ask.after, head + 1))
    start = max(1, ask.start)
    end = min(ask.end or head + 1, head + 1)
    if ask.last:
        start = max(start, end - ask.last)
    return Span(start, end)


def next_reads(span: Span, *, descending: bool, most: int) -> Span:
    """Says which part of a span is read next: its first positions, or its last."""
    if descending:
        return Span(max(span.start, span.end - most), span.end)
    return Span(span.start, min(span.end, span.start + most))


def fitting(sizes: Sequence[int], most: int, room: int) -> int:
    """Counts the items, from the first on, that fit: at most `most`, and at most `room` bytes; one always fits."""
    taken = 0
    for size in sizes[:most]:
        room -= size
        if room < 0 and taken:
            break
        taken += 1
    return taken


def remaining(span: Span, position: int, *, descending: bool) -> int:
    """Returns the page token after `position` was looked at: the next `start_position` or `end_position`, or 0."""
    if descending:
        return position if position > span.start else 0
    return position + 1 if position + 1 < span.end else 0
