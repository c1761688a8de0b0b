"""Ids sort by age, survive case folding, and are checked before anything sees them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit import ids
from services.kit.errors import Invalid

MOMENTS = st.integers(0, 2**48 - 1)
NOISE = st.binary(min_size=10, max_size=10)


@given(MOMENTS, MOMENTS, NOISE, NOISE)
def test_minted_ids_sort_by_age(one: int, other: int, noise: bytes, more: bytes) -> None:
    """The order of the text is the order of time."""
    first, second = ids.spell("sess", one, noise), ids.spell("sess", other, more)
    assert ids.MINTED.fullmatch(first)
    assert (one < other) <= (first < second)


@given(st.text(max_size=60))
def test_only_the_form_passes(text: str) -> None:
    """Whatever passes the check is safe in a subject, a path and a policy."""
    try:
        ids.check("session_id", text)
    except Invalid as refused:
        assert refused.metadata == {"field": "session_id"}
    else:
        assert text.isascii()
        assert text == text.lower()
        assert not set(text) & set("*>. /$\r\n\0")


@pytest.mark.parametrize("good", ["evt_1", "toolu_01A", "sess_x/main/1", "a.b:c-d"])
def test_chosen_ids_are_the_callers(good: str) -> None:
    """Ids of events, requests and executions keep the caller's own spelling."""
    ids.check("event_id", good)
