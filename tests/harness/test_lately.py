"""What a harness knows of a session from its last turn, and of an offer: less is read, and nothing else changes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from handmesh.session.v1.event_pb2 import Event
from services.harness.adapters.codec import fact_of
from services.harness.core import Fact, Message
from services.harness.loops.messages import make
from services.harness.ports import HarnessType, Page
from services.harness.turn import lately
from services.harness.turn.lately import Lately
from services.harness.turn.state import State, fold_all
from services.kit.errors import OutOfRange
from tests.support.harness_ports import SESSION, MemoryHands, MemoryLog, ScriptedModel, Told, message, ports, said

LS = ("bash", {"command": "ls"})


class Read(MemoryLog):
    """Notes from where it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[int] = []

    async def follow(self, start_position: int) -> AsyncIterator[Page]:
        self.starts.append(start_position)
        if start_position > len(self.events) + 1:
            raise OutOfRange("POSITION_OUT_OF_RANGE", "no such position")
        async for page in super().follow(start_position):
            yield page


async def turn(kind: HarnessType, log: MemoryLog, model: ScriptedModel, hands: MemoryHands) -> float | None:
    return await kind.run(log, ports(model, hands), "test", Told())


async def two_turns(kind: HarnessType, other: HarnessType) -> tuple[Read, ScriptedModel]:
    log, model, hands = Read(), ScriptedModel(said(t1=LS), said(), said(t2=LS), said("end")), MemoryHands()
    await turn(kind, log, model, hands)
    await log.add(message("again", "m2"))
    await turn(other, log, model, hands)
    return log, model


async def test_a_known_session_is_read_from_its_last_known_event() -> None:
    """The next turn asks and writes what a harness does that has to read everything."""
    kind = make()
    known, model = await two_turns(kind, kind)
    unknown, other_model = await two_turns(make(), make())
    assert known.starts[1] > 1
    assert unknown.starts == [1, 1]
    assert model.requests == other_model.requests
    assert known.kinds() == unknown.kinds()


@pytest.mark.parametrize("damage", ["shorter", "other", "by one"])
async def test_a_log_that_does_not_hold_what_was_known_is_read_anew(damage: str) -> None:
    """It was replaced, or has lost its end: nothing of what was known counts."""
    kind, log, hands = make(), Read(), MemoryHands()
    await turn(kind, log, ScriptedModel(said(t1=LS), said()), hands)
    match damage:
        case "shorter":
            del log.events[3:]
        case "by one":
            log.events.pop()
        case _:
            log.events[-1].emit_time.FromNanoseconds(1)
    await log.add(message("again", "m2"))
    model = ScriptedModel(said("anew"))
    if await turn(kind, log, model, hands) is not None:
        assert not model.requests
        assert await turn(kind, log, model, hands) is None
    assert log.starts[-1] == 1
    assert "again" in str(model.requests[-1]["messages"][-1])
    assert log.kinds()[-2:] == ["model_replied", "turn_ended"]


async def test_an_offered_event_need_not_be_read_first() -> None:
    """What was offered follows what is known, so the session is taken up before the log has been heard."""
    kind, log, hands = make(), Read(), MemoryHands()
    await turn(kind, log, ScriptedModel(said()), hands)
    await log.add(message("again", "m2"))
    log.newest = [fact_of(log.events[-1])]
    model = ScriptedModel(said("at once"))
    await turn(kind, log, model, hands)
    assert "again" in str(model.requests[-1]["messages"][-1])
    assert log.kinds()[-3:] == ["harness_woke", "model_replied", "turn_ended"]


async def test_an_offered_event_that_does_not_follow_is_left_to_the_log() -> None:
    """A harness that knows nothing reads all of it."""
    log = Read()
    await log.add(message("again", "m2"))
    log.newest = [fact_of(log.events[-1])]
    model = ScriptedModel(said())
    await turn(make(), log, model, MemoryHands())
    assert "hello" in str(model.requests[-1]["messages"][0])
    assert log.starts == [1]


async def test_a_message_that_lands_while_the_session_is_taken_up_is_read_too() -> None:
    """It was offered without it: the harness reads on and asks with both."""
    log = Read()
    log.newest = [fact_of(event) for event in log.events]
    await log.add(message("and this", "m2"))
    model = ScriptedModel(said(), said())
    await turn(make(), log, model, MemoryHands())
    assert "and this" in str(model.requests[-1]["messages"][0])
    assert log.kinds().count("turn_ended") == 1


def facts(count: int, text: str) -> list[Fact]:
    return [Message(position, text) for position in range(1, count + 1)]


def kept(store: Lately, session: str, count: int, text: str = "") -> State:
    said = facts(count, text)
    state = fold_all(said)
    store.keep(session, state, said[-1], None, None)
    return state


def test_the_oldest_are_forgotten_when_there_is_too_much() -> None:
    """By what their conversations take, and by their number."""
    store = Lately(max_bytes=10 * (lately.FACT_BYTES + 100))
    kept(store, "a", 4, "x" * 100)
    kept(store, "b", 4, "x" * 100)
    kept(store, "c", 4, "x" * 100)
    assert store.take("a") is None
    assert store.take("b") is not None
    assert store.take("b") is None
    many = Lately()
    for number in range(lately.MAX_SESSIONS + 1):
        kept(many, str(number), 1)
    assert (many.take("0"), many.take("1") is None) == (None, False)


def test_what_was_added_up_is_not_added_up_again() -> None:
    """The size of a conversation that grew is that of the whole."""
    store = Lately()
    said = facts(6, "hello")
    first = fold_all(said[:4])
    store.keep(SESSION, first, said[3], None, None)
    before = store.take(SESSION)
    store.keep(SESSION, fold_all(said[4:], first), said[5], None, before)
    grown = store.take(SESSION)
    store.keep(SESSION, fold_all(said), said[5], None, None)
    whole = store.take(SESSION)
    assert grown is not None
    assert whole is not None
    assert grown.size == whole.size == 7 * lately.FACT_BYTES + 6 * 5


def test_a_fact_is_the_same_only_with_its_time() -> None:
    """So a log that was written anew is not taken for the one that was known, whatever its last event."""
    for kind in ("error_raised", "custom", "turn_ended", "message_received"):
        event = Event(position=1, event_id="a", ignorable=True)
        getattr(event, kind).SetInParent()
        event.emit_time.FromNanoseconds(1_000_000_000)
        assert fact_of(event).time == 1.0
