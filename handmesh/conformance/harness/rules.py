"""What the log of a session must look like when its harness has come to rest. Pure: events in, sentences out.

The session service's own look at a log (`VerifySession`) comes on top: positions, epochs, one result for each call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from handmesh.session.v1.event_pb2 import TURN_END_REASON_DONE, Event


def kind_of(event: Event) -> str:
    """Names what happened, such as `tool_finished`."""
    return event.WhichOneof("kind") or ""


def only(events: Sequence[Event], kind: str) -> list[Event]:
    """Keeps the events of a kind."""
    return [event for event in events if kind_of(event) == kind]


def calls_of(reply: Event) -> dict[str, str]:
    """Returns the tool calls of a reply: id -> name of the tool."""
    blocks = json.loads(reply.model_replied.content_json)
    return {block["id"]: block["name"] for block in blocks if block["type"] == "tool_use"}


def breaches(events: Sequence[Event], harness: str) -> list[str]:
    """Says everything that a harness of the type has done wrong."""
    return [
        *_taken_up(events, harness),
        *_read_positions(events),
        *_messages_were_read(events),
        *_calls(events),
    ]


def _taken_up(events: Sequence[Event], harness: str) -> Iterator[str]:
    woke = 0
    for event in events:
        if kind_of(event) == "harness_woke":
            woke = event.position
            if event.harness_woke.harness != harness:
                yield f"at {woke} a harness says that it is a {event.harness_woke.harness!r}"
        elif event.emitter == "harness" and event.epoch != woke:
            yield f"the event at {event.position} is of epoch {event.epoch}, and the session's is {woke}"


def _read_positions(events: Sequence[Event]) -> Iterator[str]:
    """What a reply or a turn has read lies before it, and never goes back."""
    for kind in ("model_replied", "turn_ended"):
        before = 0
        for event in only(events, kind):
            read = getattr(event, kind).read_position
            if not before <= read < event.position:
                yield f"{kind} at {event.position} has read up to {read}, and the one before up to {before}"
            before = max(before, read)


def _messages_were_read(events: Sequence[Event]) -> Iterator[str]:
    """A turn that is done has read no message that no reply has read."""
    read = 0
    for event in events:
        if kind_of(event) == "model_replied":
            read = event.model_replied.read_position
        elif kind_of(event) == "turn_ended" and event.turn_ended.reason == TURN_END_REASON_DONE:
            for message in only(events, "message_received"):
                if read < message.position <= event.turn_ended.read_position:
                    yield f"the turn that ended at {event.position} has no reply to the message at {message.position}"


def _calls(events: Sequence[Event]) -> Iterator[str]:
    """A call is of a tool that was offered, and runs in a sandbox that is the session's."""
    offered: dict[str, set[str]] = {}
    sandboxes: set[str] = set()
    open_calls: dict[str, str] = {}
    for event in events:
        match kind_of(event):
            case "tools_offered":
                tools = json.loads(event.tools_offered.tools_json)
                offered[event.tools_offered.hand] = {tool["name"] for tool in tools}
            case "sandbox_provisioned":
                sandboxes.add(event.sandbox_provisioned.sandbox_id)
            case "hand_attached":
                sandboxes.add(event.hand_attached.sandbox_id)
            case "model_replied":
                if open_calls:
                    yield f"the reply at {event.position} comes before a result of {', '.join(open_calls)}"
                open_calls = calls_of(event)
            case "tool_started":
                started = event.tool_started
                if started.name not in set().union(*offered.values()):
                    yield f"the call at {event.position} is of {started.name}, which nobody has offered"
                if started.sandbox_id and started.sandbox_id not in sandboxes:
                    yield f"the call at {event.position} runs in {started.sandbox_id}, of which the log knows nothing"
            case "tool_finished":
                open_calls.pop(event.tool_finished.tool_use_id, None)
