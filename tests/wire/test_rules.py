"""What the log of a harness must look like, on logs that are made up: each rule finds its breach, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from handmesh.conformance.harness.rules import breaches
from handmesh.sandbox.v1.tool_pb2 import TOOL_OUTCOME_OK, ToolResult
from handmesh.session.v1 import event_pb2 as pb

DONE = pb.TURN_END_REASON_DONE


def log(*kinds: Any) -> list[pb.Event]:
    """Makes a log of events of these kinds; those of a harness carry the epoch of the last one that woke."""
    events, epoch = [], 0
    for position, kind in enumerate(kinds, 1):
        (field,) = [
            it for it in pb.Event.DESCRIPTOR.oneofs_by_name["kind"].fields if it.message_type is kind.DESCRIPTOR
        ]
        epoch = position if field.name == "harness_woke" else epoch
        emitter = "client" if field.name == "message_received" else "harness"
        mine = epoch if emitter == "harness" else 0
        events.append(pb.Event(position=position, emitter=emitter, epoch=mine, **{field.name: kind}))
    return events


def reply(read: int, *calls: str) -> pb.ModelReplied:
    """Makes a reply that calls `bash` so many times."""
    blocks = [{"type": "tool_use", "id": call, "name": "bash", "input": {}} for call in calls]
    return pb.ModelReplied(content_json=json.dumps(blocks), read_position=read)


WOKE = pb.HarnessWoke(harness="mine")
MESSAGE = pb.MessageReceived(content_json="[]")
OFFER = pb.ToolsOffered(hand="main", tools_json='[{"name": "bash"}]')
MADE = pb.SandboxProvisioned(hand="main", sandbox_id="sbx")
STARTED = pb.ToolStarted(tool_use_id="one", name="bash", hand="main", sandbox_id="sbx")
FINISHED = pb.ToolFinished(tool_use_id="one", result=ToolResult(output="x", outcome=TOOL_OUTCOME_OK))
GOOD = [
    MESSAGE,
    WOKE,
    OFFER,
    reply(3, "one"),
    MADE,
    STARTED,
    FINISHED,
    reply(7),
    pb.TurnEnded(reason=DONE, read_position=8),
]


def changed(position: int, kind: Any) -> Sequence[pb.Event]:
    """Returns the good log with another event at a position."""
    return log(*GOOD[: position - 1], kind, *GOOD[position:])


def test_a_good_log() -> None:
    """Nothing is found where nothing is wrong."""
    assert breaches(log(*GOOD), "mine") == []


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (changed(2, pb.HarnessWoke(harness="other")), "at 2 a harness says that it is a 'other'"),
        (changed(8, reply(9)), "model_replied at 8 has read up to 9, and the one before up to 3"),
        (changed(8, reply(2)), "model_replied at 8 has read up to 2, and the one before up to 3"),
        (
            log(MESSAGE, WOKE, reply(2), MESSAGE, pb.TurnEnded(reason=DONE, read_position=4)),
            "the turn that ended at 5 has no reply to the message at 4",
        ),
        (
            changed(3, pb.ToolsOffered(hand="main", tools_json="[]")),
            "the call at 6 is of bash, which nobody has offered",
        ),
        (
            changed(5, pb.SandboxProvisioned(hand="main", sandbox_id="another")),
            "the call at 6 runs in sbx, of which the log knows nothing",
        ),
        (log(*GOOD[:6], reply(6)), "the reply at 7 comes before a result of one"),
    ],
)
def test_each_breach_is_found(events: Sequence[pb.Event], found: str) -> None:
    """A harness is told what it did wrong, and where."""
    assert breaches(events, "mine") == [found]


def test_an_epoch_that_is_over() -> None:
    """Whoever speaks under an older epoch than the session's is named."""
    events = log(*GOOD[:2], WOKE, *GOOD[2:])
    events[3].epoch = 2
    assert breaches(events, "mine")[0] == "the event at 4 is of epoch 2, and the session's is 3"
