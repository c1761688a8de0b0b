"""The checker finds each breach that is planted here, and nothing in a session that is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from handmesh.sandbox.v1.tool_pb2 import ToolOutcome, ToolResult
from handmesh.session.v1 import event_pb2 as pb
from handmesh.session.v1.session_pb2 import Preview
from tests.support.checker import World, check

OK = ToolResult(output="said", outcome=ToolOutcome.TOOL_OUTCOME_OK)
CALLS = json.dumps([{"type": "tool_use", "id": call, "name": "bash", "input": {}} for call in ("a", "b")])


def log() -> list[pb.Event]:
    """A turn with two calls, one of which a person was asked about."""
    kinds = [
        pb.Event(emitter="session", session_started=pb.SessionStarted()),
        pb.Event(emitter="client", message_received=pb.MessageReceived(content_json="[]")),
        pb.Event(harness_woke=pb.HarnessWoke()),
        pb.Event(model_replied=pb.ModelReplied(content_json=CALLS, read_position=3)),
        pb.Event(sandbox_provisioned=pb.SandboxProvisioned(hand="main", sandbox_id="s", generation=1)),
        pb.Event(tool_confirmation_requested=pb.ToolConfirmationRequested(tool_use_id="b", call_hash="h")),
        pb.Event(tool_started=pb.ToolStarted(tool_use_id="a", sandbox_id="s")),
        pb.Event(emitter="client", tool_confirmed=pb.ToolConfirmed(tool_use_id="b", allowed=True, call_hash="h")),
        pb.Event(tool_started=pb.ToolStarted(tool_use_id="b", sandbox_id="s")),
        pb.Event(tool_finished=pb.ToolFinished(tool_use_id="a", result=OK)),
        pb.Event(tool_finished=pb.ToolFinished(tool_use_id="b", result=OK)),
        pb.Event(model_replied=pb.ModelReplied(content_json='[{"type": "text", "text": "Done."}]', read_position=11)),
        pb.Event(turn_ended=pb.TurnEnded(read_position=12)),
    ]
    for position, event in enumerate(kinds, 1):
        event.position, event.event_id = position, f"e{position}"
        event.emit_time.seconds = position
        event.emitter = event.emitter or "harness"
        event.epoch = 3 if event.emitter == "harness" else 0
    return kinds


WORLD = World(
    executions={"s": {"a": False, "b": False}},
    effects={"a": 1, "b": 1},
    watched=(log(), log()[4:]),
    previews=(Preview(event_id="e12", offset=2, text="ne"),),
    sandboxes=frozenset({"s"}),
    seconds=1.0,
)


def test_a_session_that_is_right_has_nothing_wrong() -> None:
    """With its world, and its acknowledgements."""
    assert check(log(), {"e2": 2, "e8": 8}, WORLD) == []


def end(events: list[pb.Event]) -> None:
    """Makes the turn's end the session's."""
    events[-1].ClearField("kind")
    events[-1].session_ended.SetInParent()
    events[-1].emitter, events[-1].epoch = "session", 0


WORLDS = {
    "an execution that the log does not know": ({"executions": {"s": {"a": False, "b": False, "x": False}}}, "I6"),
    "an execution in another sandbox": ({"executions": {"s": WORLD.executions["s"], "t": {"a": False}}}, "I6"),
    "a result of what never ran": ({"executions": {"s": {"a": False}}}, "I6"),
    "a call done twice": ({"effects": {"a": 2, "b": 1}}, "I6"),
    "a call that is said to be done and was not": ({"effects": {"a": 0, "b": 1}}, "I6"),
    "a deed of no call": ({"effects": {"x": 1}}, "I6"),
    "a watcher that missed an event": ({"watched": (log()[:3] + log()[4:],)}, "I9"),
    "a watcher that saw an event twice": ({"watched": (log()[:3] + log()[2:],)}, "I9"),
    "a watcher that saw another event": ({"watched": ([*log()[:-1], pb.Event(position=13)],)}, "I9"),
    "a preview of another text": ({"previews": (Preview(event_id="e12", offset=2, text="xy"),)}, "I9"),
    "a sandbox that the log does not name": ({"sandboxes": frozenset({"s", "t"})}, "I10"),
    "something that is left": ({"leftovers": ("a socket",)}, "I10"),
    "a secret": ({"secrets": ("a log file",)}, "I11"),
    "a long silence": ({"seconds": 31.0}, "I12"),
}


@pytest.mark.parametrize("breach", WORLDS)
def test_what_is_wrong_in_the_world_is_found(breach: str) -> None:
    """Once, under its name."""
    changes, invariant = WORLDS[breach]
    assert [each.invariant for each in check(log(), {}, replace(WORLD, **changes))] == [invariant]  # type: ignore[arg-type]


def _lose(events: list[pb.Event]) -> None:
    events[9].ClearField("kind")
    events[9].custom.SetInParent()


def _change_hash(events: list[pb.Event]) -> None:
    events[7].tool_confirmed.call_hash = "other"


def _deny(events: list[pb.Event]) -> None:
    events[7].tool_confirmed.allowed = False


def _read_ahead(events: list[pb.Event]) -> None:
    events[3].model_replied.read_position = 4


def _read_back(events: list[pb.Event]) -> None:
    events[11].model_replied.read_position = 2


def _do_not_answer(events: list[pb.Event]) -> None:
    events[5].CopyFrom(pb.Event(event_id="e6", position=6, emitter="client", message_received=pb.MessageReceived()))
    events[5].emit_time.seconds = 6
    del events[6:]


def _make_two(events: list[pb.Event]) -> None:
    events[5].ClearField("kind")
    events[5].sandbox_provisioned.CopyFrom(pb.SandboxProvisioned(hand="main", sandbox_id="t", generation=1))


LOGS: dict[str, tuple[Callable[[list[pb.Event]], None], str]] = {
    "a lost result": (_lose, "I5"),
    "a yes to another call": (_change_hash, "I7"),
    "a no": (_deny, "I7"),
    "something that runs on": (end, "I7"),
    "an answer to what is not there yet": (_read_ahead, "I8"),
    "an answer to less than before": (_read_back, "I8"),
    "a message without an answer": (_do_not_answer, "I12"),
    "a sandbox that stays": (end, "I10"),
    "two sandboxes for one hand": (_make_two, "I10"),
}


@pytest.mark.parametrize("breach", LOGS)
def test_what_is_wrong_in_the_log_is_found(breach: str) -> None:
    """Under its name, among what else follows from it."""
    events = log()
    spoil, invariant = LOGS[breach]
    spoil(events)
    world = replace(WORLD, executions={"s": {"a": False, "b": True}}, watched=(), previews=())
    assert invariant in {each.invariant for each in check(events, {}, world)}


def test_a_lost_acknowledgement_is_found() -> None:
    """I1, also when the event is elsewhere."""
    assert [each.invariant for each in check(log(), {"e2": 3, "e99": 4}, WORLD)] == ["I1", "I1"]
