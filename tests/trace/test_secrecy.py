"""Nothing that anybody wrote is shown, whatever it is written into: every text field of every kind of event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from handmesh.diagnosis.verdict import diagnosed
from handmesh.session.v1 import event_pb2 as ev
from tests.trace.ground import CANARY, check_clean, forms
from tests.trace.story import Story

KINDS = [field.name for field in ev.Event.DESCRIPTOR.oneofs_by_name["kind"].fields]
DEEP = 6  # levels of messages within messages


def filled(message: Any, depth: int = 0) -> Any:
    """Writes a canary into every text field of a message, and of all that it holds."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and depth < DEEP:
            _fill_inner(message, field, depth)
        elif field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                getattr(message, field.name).append(f"{CANARY}-{field.name}")
            else:
                setattr(message, field.name, f"{CANARY}-{field.name}")
    return message


def _fill_inner(message: Any, field: Any, depth: int) -> None:
    inner = getattr(message, field.name)
    if field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].message_type is None:
            inner[f"{CANARY}-key"] = f"{CANARY}-value"
        else:
            filled(inner[f"{CANARY}-key"], depth + 1)
    elif field.is_repeated:
        filled(inner.add(), depth + 1)
    elif not field.message_type.full_name.startswith("google.protobuf."):
        filled(inner, depth + 1)


def _written(kind: str) -> Iterator[ev.Event]:
    event = ev.Event(event_id=f"{CANARY}-id", traceparent=f"{CANARY}-trace", emitter=CANARY)
    event.delay.reason = f"{CANARY}-reason"
    filled(getattr(event, kind))
    getattr(event, kind).SetInParent()
    yield event


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", ["RUNNING", "IDLE"])
def test_no_field_of_any_event_is_shown(kind: str, status: str) -> None:
    """The text, JSON and pictures of a session in which this kind of event is full of canaries have none."""
    story = Story().begun()
    for event in _written(kind):
        event.position = len(story.events) + 1
        event.emit_time.CopyFrom(story.events[-1].emit_time)
        story.events.append(event)
    evidence = story.ended(ev.TURN_END_REASON_FAILED).evidence(status, harness_type=f"{CANARY}-type", served={})
    check_clean(diagnosed(evidence))


def test_the_check_finds_what_is_shown() -> None:
    """With names wanted a canary in one is found: the check can fail."""
    started = ev.ToolStarted(tool_use_id="t", name=f"{CANARY}_tool", hand="main", sandbox_id="sbx_1")
    seen = diagnosed(Story().begun().then(tool_started=started).evidence("RUNNING"), plain=True)
    assert all("canary" in text for text in forms(seen).values())
