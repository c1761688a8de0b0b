"""GetEvents in all its forms against a list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handmesh.session.v1 import event_pb2 as ev
from services.session import codec
from services.session.integrity import Marks
from services.session.log import BATCH_SPAN, StoredBatch, Wire
from services.session.logs.memory import MemoryLog, MemoryRegistry, MemoryWire
from services.session.reader import Anchor, Reader
from services.session.slices import Ask
from services.session.writer import Writer
from tests.session.running import message, note, turn_ended

KINDS = ("message_received", "custom", "turn_ended")


@dataclass
class Sample:
    """A log in batches, its events, and what is asked of it."""

    counts: list[int]
    kinds: list[str]
    steps: list[int] = field(default_factory=list)


def build(sample: Sample) -> tuple[list[StoredBatch], list[ev.Event]]:
    """Makes the batches of a sample, each with one emit time, which goes on by 0 to 2 from batch to batch."""
    batches: list[StoredBatch] = []
    events: list[ev.Event] = []
    time = 10
    for at, count in enumerate(sample.counts):
        first = len(events) + 1
        part = []
        for position in range(first, first + count):
            kind = "session_started" if position == 1 else sample.kinds[position % len(sample.kinds)]
            made = {
                "session_started": lambda: ev.Event(session_started=ev.SessionStarted()),
                "message_received": message,
                "custom": note,
                "turn_ended": lambda: turn_ended(1),
            }[kind]()
            made.event_id = f"e{position}"
            part.append(made)
        time += sample.steps[at % len(sample.steps)]
        data = codec.seal(part, ["session"] * count, first, time, 0)
        batches.append(StoredBatch(first, count, batches[-1].digest if batches else "", data))
        events += codec.unseal(data)
    return batches, events


samples = st.builds(
    Sample,
    st.lists(st.integers(1, BATCH_SPAN), min_size=1, max_size=12),
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=5),
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
)
number = st.integers(0, 60)
asks = st.fixed_dictionaries(
    {"page_size": st.integers(0, 30), "descending": st.booleans()},
    optional={
        "kinds": st.frozensets(st.sampled_from(KINDS), max_size=2),
        "start": number,
        "end": number,
        "last": number,
    },
)
anchors = st.one_of(
    st.none(),
    st.builds(lambda value: ("position", value), st.integers(0, 80)),
    st.builds(lambda value: ("event_id", f"e{value}"), st.integers(0, 80)),
    st.builds(lambda value: ("time", value), st.integers(5, 40)),
)


def naive(events: list[ev.Event], ask: dict[str, Any], anchor: tuple[str, Any] | None) -> list[ev.Event] | None:
    """Says what a caller gets over all pages, by what the contract says; None for an anchor that is not there."""
    if anchor is not None:
        name, value = anchor
        if name == "time":
            at = next((at for at, event in enumerate(events) if event.emit_time.ToNanoseconds() >= value), len(events))
        else:
            wanted = value if name == "position" else int(value[1:])
            if not 1 <= wanted <= len(events):
                return None
            at = wanted - 1
        chosen = events[max(0, at - ask["before"]) : at + ask["after"]]
    else:
        start, end = max(1, ask.get("start", 0)), ask.get("end", 0) or len(events) + 1
        chosen = [event for event in events if start <= event.position < end]
        chosen = chosen[-ask["last"] :] if ask.get("last") else chosen
    kinds = ask.get("kinds") or frozenset()
    chosen = [event for event in chosen if not kinds or event.WhichOneof("kind") in kinds]
    return chosen[::-1] if ask["descending"] else chosen


async def paged(reader: Reader, ask: dict[str, Any], anchor: tuple[str, Any] | None, head: int) -> list[ev.Event]:
    """Reads page after page, as the contract says one goes on."""
    found: list[ev.Event] = []
    page = await reader.page("s", Ask(**ask), Anchor(**dict([anchor])) if anchor else None)
    limit = Ask(**ask).limit
    while True:
        assert page.last_position == head and len(page.events) <= limit
        found += page.events
        if not page.next_position:
            return found
        going = {key: value for key, value in ask.items() if key in ("page_size", "descending", "kinds")}
        if anchor is None:
            going |= {key: ask[key] for key in ("start", "end") if key in ask}
            if ask.get("last"):  # the slice's first position is the caller's to keep
                start = max(ask.get("start", 0), min(ask.get("end", 0) or head + 1, head + 1) - ask["last"])
                going["start"] = max(1, start)
        going["end" if ask["descending"] else "start"] = page.next_position
        if anchor is not None and not ask["descending"]:
            going["end"] = _anchored_end(ask, anchor, found, page.next_position)
        page = await reader.page("s", Ask(**going))


def _anchored_end(ask: dict[str, Any], anchor: tuple[str, Any], found: list[ev.Event], _: int) -> int:
    name, value = anchor
    assert name != "time", "pages around a time are read whole in these tests"
    return (value if name == "position" else int(value[1:])) + int(ask["after"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sample=samples, ask=asks, anchor=anchors, before=st.integers(0, 20), after=st.integers(0, 20))
async def test_every_form_of_slice_is_what_a_list_gives(
    sample: Sample, ask: dict[str, Any], anchor: tuple[str, Any] | None, before: int, after: int
) -> None:
    """Slices, last n, kinds, backwards and anchors of each sort, over all their pages, whatever the batches are."""
    log = MemoryLog()
    batches, events = build(sample)
    for batch in batches:
        await log.append("s", batch)
    wire: Wire = MemoryWire()
    reader = Reader(log, Writer(log, wire, Marks(MemoryRegistry()), lambda: 1))
    if anchor is not None:
        ask = {**ask, "before": before, "after": after or (0 if before else 1)}
        for key in ("start", "end", "last"):
            ask.pop(key, None)
        if anchor[0] == "time" or ask["descending"]:
            ask["page_size"] = 1_000
    wanted = naive(events, ask, anchor)
    if wanted is None:
        try:
            await reader.page("s", Ask(**ask), Anchor(**dict([anchor])) if anchor else None)
        except Exception as problem:
            assert getattr(problem, "reason", "") == "EVENT_NOT_FOUND"
            return
        raise AssertionError("an anchor that is not there was found")
    assert await paged(reader, ask, anchor, len(events)) == wanted
