"""Whose turn it is in a session that moves between harness types."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import ConfigChanged, Event
from services.harness import core as harness
from services.harness.core import Config, Configured, Ended, Interrupt, Message, Replied, Retry, Started, Woke
from services.harness.loops import echo, messages, review
from services.harness.turn import core as turn
from services.harness.turn.state import State, fold, fold_all
from services.harness.turn.traits import Traits
from services.session import core as session
from tests.support.harness_ports import MemoryLog, ScriptedModel, Told, message, ports, said

NOW = 1_000.0
ONE, OTHER = Traits("one"), Traits("other", tools=False)
KINDS = ("message_received", "interrupt_requested", "harness_woke", "model_replied", "turn_ended", "config_changed")


def as_harness(kind: str, position: int, read: int, name: str) -> harness.Fact:
    """Makes what a harness reads."""
    match kind:
        case "message_received":
            return Message(position, "[]")
        case "interrupt_requested":
            return Interrupt(position)
        case "harness_woke":
            return Woke(position)
        case "model_replied":
            return Replied(position, "[]", "end_turn", read)
        case "turn_ended":
            return Ended(position, "DONE", read)
        case _:
            return Configured(position, Config(harness=name))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 4), st.sampled_from(["one", "other"])), max_size=25))
def test_sessions_and_harnesses_agree_on_whose_turn_it_is(steps: list[tuple[str, int, str]]) -> None:
    """Whom the session service offers a session to is who finds that the session is his, whatever has happened."""
    theirs = session.fold(session.WriteState(), session.Fact("session_started", "s", "session", harness="one"), 1)
    mine = fold(State(), Started(1, Config(harness="one")))
    for position, (kind, back, name) in enumerate(steps, 2):
        read = max(0, position - back)
        fact = session.Fact(kind, f"e{position}", "harness", read_position=read, harness=name)
        session.fold(theirs, fact, position)
        mine = fold(mine, as_harness(kind, position, read, name))
        assert theirs.harness == mine.config.harness


def test_a_turn_without_an_answer_goes_on_as_another_type() -> None:
    """A session whose type nobody runs is moved while its message waits, and what was to be tried again is not."""
    log = [Started(1, Config(harness="one", hands=())), Message(2, "[]"), Woke(3), Retry(4, 1, NOW + 60.0)]
    state = fold_all([*log, Configured(5, Config(harness="other"))])
    assert turn.decide(state, NOW, OTHER) == turn.AskModel(5)
    assert isinstance(turn.decide(state, NOW, ONE), turn.Rest)


def test_a_turn_with_an_answer_is_ended_by_who_began_it() -> None:
    """The move waits for the turn's end; a message that came meanwhile is the other type's."""
    log = [Started(1, Config(harness="one", hands=())), Message(2, "[]"), Woke(3), Replied(4, "[]", "end_turn", 3)]
    moved = fold_all([*log, Configured(5, Config(harness="other")), Message(6, "[]")])
    assert turn.decide(moved, NOW, OTHER) == turn.Rest("the session is a one one now")
    assert turn.decide(moved, NOW, ONE) == turn.AskModel(6)
    ended = fold_all([Ended(7, "DONE", 5)], moved)
    assert turn.decide(ended, NOW, OTHER) == turn.AskModel(7)
    assert turn.decide(ended, NOW, ONE) == turn.Rest("the session is a other one now")


async def test_each_type_builds_its_own_view_of_one_log() -> None:
    """A session that moves from type to type and back: each answers what was said to it, and the model is told of what
    the others have answered."""
    log = MemoryLog(SessionConfig(), "one")
    first, second, third = ScriptedModel(said("ONE")), ScriptedModel(said("THREE")), ScriptedModel(*[said("4")] * 3)
    for number, (kind, model) in enumerate(
        ((messages, first), (echo, ScriptedModel()), (messages, second), (review, third)), 1
    ):
        if number > 1:
            config = SessionConfig(harness=kind.__name__.rpartition(".")[2])
            await log.add(Event(event_id=f"move{number}", config_changed=ConfigChanged(config=config)))
            await log.add(message(f"text {number}", f"m{number}"))
        world = ports(model)
        for other in (messages, echo, review):  # those whose turn it is not leave it alone
            before, told = len(log.events), Told()
            await other.make().run(log, world, "test", told)
            assert (len(log.events) > before) == bool(told.epochs) == (other is kind)
    assert [woke.harness for woke in log.only("harness_woke")] == ["messages", "echo", "messages", "review"]
    assert log.kinds().count("turn_ended") == 4
    told_later = [(it["role"], it["content"][0]["text"]) for it in second.requests[0]["messages"]]
    assert told_later == [
        ("user", "one"),
        ("assistant", "ONE"),
        ("user", "text 2"),
        ("assistant", "text 2"),
        ("user", "text 3"),
    ]
    assert len(third.requests) == 3 and "text 4" in third.requests[0]["messages"][0]["content"]
    assert "text 3" not in third.requests[0]["messages"][0]["content"]
