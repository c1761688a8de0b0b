"""Slices of a log, and how they are cut into pages. Pure arithmetic on positions.

A span is [start, end): inclusive, exclusive, clamped to what the log has.
"""

from __future__ import annotations

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


def next_read(span: Span, most: int, *, descending: bool) -> Span:
    """Says which part of a span is read next: its first positions, or its last."""
    if descending:
        return Span(max(span.start, span.end - most), span.end)
    return Span(span.start, min(span.end, span.start + most))


def after(span: Span, position: int, *, descending: bool) -> Span:
    """Returns what is left of a span once it was looked at up to a position, this one included."""
    return Span(span.start, position) if descending else Span(position + 1, span.end)


def token(span: Span, *, descending: bool) -> int:
    """Returns where the next page starts, when this is left: `start_position`, or backwards `end_position`; or 0."""
    if not span:
        return 0
    return span.end if descending else span.start


@dataclass
class Cut:
    """What still fits on a page. Something always fits on an empty one."""

    most: int
    room: int = PAGE_BYTES
    taken: int = 0

    def takes(self, size: int) -> bool:
        """Takes an item of that many bytes, or says that the page ends before it."""
        if self.taken and (self.full or size > self.room):
            return False
        self.taken += 1
        self.room -= size
        return True

    @property
    def full(self) -> bool:
        """Whether nothing more fits, however small."""
        return self.taken >= self.most
