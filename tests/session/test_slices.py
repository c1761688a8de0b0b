"""Slices and pages, as arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import Invalid
from services.session.slices import MAX_PAGE, Ask, Cut, Span, after, next_read, resolve, token

_small = st.integers(0, 40)


@given(head=st.integers(0, 30), start=_small, end=_small, last=_small)
def test_a_slice_is_what_a_list_would_give(head: int, start: int, end: int, last: int) -> None:
    """[start, end) and the last n of it mean what they mean for a Python list."""
    log = list(range(1, head + 1))
    wanted = log[max(start, 1) - 1 : end - 1 if end else None]
    if last:
        wanted = wanted[-last:]
    span = resolve(Ask(start=start, end=end, last=last), head)
    assert list(range(span.start, span.end)) == wanted


@given(head=st.integers(1, 30), anchor=st.integers(1, 31), before=_small, after_=_small)
def test_around_an_anchor(head: int, anchor: int, before: int, after_: int) -> None:
    """n before, and m from the anchor on; one past the end is an anchor too, for times."""
    log = list(range(1, head + 1))
    wanted = log[max(0, anchor - 1 - before) : anchor - 1] + log[anchor - 1 : anchor - 1 + after_]
    span = resolve(Ask(before=before, after=after_), head, anchor)
    assert list(range(span.start, span.end)) == wanted


@given(start=st.integers(1, 40), length=_small, most=st.integers(1, 20), descending=st.booleans())
def test_reading_piece_by_piece_covers_a_span_once(start: int, length: int, most: int, descending: bool) -> None:
    """Going on from each token, forwards or backwards, every position is looked at once and in order."""
    span = Span(start, start + length)
    seen: list[int] = []
    while span:
        part = next_read(span, most, descending=descending)
        positions = list(range(part.start, part.end))
        for position in reversed(positions) if descending else positions:
            seen.append(position)
            span = after(span, position, descending=descending)
        assert token(span, descending=descending) == ((span.end if descending else span.start) if span else 0)
    wanted = list(range(start, start + length))
    assert seen == (wanted[::-1] if descending else wanted)


@given(sizes=st.lists(st.integers(1, 100), max_size=30), most=st.integers(1, 20), room=st.integers(1, 300))
def test_a_page_is_cut_by_count_and_bytes(sizes: list[int], most: int, room: int) -> None:
    """A page holds at most so many items and bytes, and never nothing when there is something."""
    cut = Cut(most, room)
    taken = 0
    for size in sizes:
        if not cut.takes(size):
            break
        taken += 1
    assert taken <= most
    assert sum(sizes[:taken]) <= room or taken == 1
    assert taken or not sizes
    if taken < len(sizes):
        assert taken == most or sum(sizes[: taken + 1]) > room


def test_page_sizes_are_bounded() -> None:
    """0 is the default of 100, and nobody gets more than the most."""
    assert [Ask(page_size=size).limit for size in (0, 1, 5_000)] == [100, 1, MAX_PAGE]


@pytest.mark.parametrize("field", ["start", "end", "page_size", "last", "before", "after"])
def test_negative_numbers_mean_nothing(field: str) -> None:
    """A negative number is an error and not a surprise."""
    with pytest.raises(Invalid):
        Ask(**{field: -1}).check(anchored=False)


def test_an_anchor_needs_a_direction() -> None:
    """An anchor alone asks for nothing."""
    with pytest.raises(Invalid):
        Ask().check(anchored=True)
